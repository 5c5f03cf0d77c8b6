"""Stuck transfers name the NIC that they share, or their wire with all that could be it."""

from dataclasses import replace

import pytest

from analyzer.hang.facts import HostEvent, Pair, PairKey
from analyzer.windows.window import End, Finding
from lockstep.fabrics import leaf_spine
from lockstep.topology import Link, Nic, Node, Topology, TopologyIndex
from tests.analyzer.hang.build import Job, Line, event, line, pair, standing
from tests.builders import SECOND, T0

NICS = [End(f"h{rank}", "eth1") for rank in range(4)]


def waits(rank: int, state: str, peer: int, seconds: int = 10) -> Line:
    since_ns = T0 - seconds * SECOND
    return line(rank, (5, 5, 4), state=state, head_peer=peer, head_channel=0, since_ns=since_ns)


def find(
    *lines: Line, transport: str = "ib", topology: TopologyIndex | None = None, **facts: object
) -> list[Finding]:
    pairs = {
        key: told
        for src in range(4)
        for key, told in pair((src, NICS[src]), ((src + 1) % 4, NICS[(src + 1) % 4]), transport).items()
    }
    return Job(lines=list(lines), facts={"pairs": pairs, **facts}, topology=topology).find()


def both_ways(seconds: int = 10) -> list[Line]:
    """Nothing passes NIC h1/eth1, in either direction."""
    states = [("wire", 1), ("wire", 2), ("recv_wait", 1), ("recv_wait", 2)]
    return [waits(rank, state, peer, seconds) for rank, (state, peer) in enumerate(states)]


def test_nic_that_several_stuck_wires_share_is_named_and_its_cable_beside_it() -> None:
    (finding,) = find(*both_ways())
    assert (finding.fault_class, finding.component, finding.side) == ("comm_hang", "nic:h1/eth1", None)
    assert finding.reason == "2 transfers through h1/eth1 have stood on the wire for 10 s"
    assert {cleared.component for cleared in finding.ruled_out} == {"nic:h0/eth1", "nic:h2/eth1"}
    (finding,) = find(*both_ways(), topology=fabric())
    assert (finding.component, finding.ambiguous_with) == ("nic:h1/eth1", ("link:h1/eth1--leaf0",))


def test_first_operation_of_its_kind_may_take_longer_than_those_that_come_round() -> None:
    first = {"enqueued": 1, "started": 1, "done": 0}
    assert find(*(row | first for row in both_ways(19))) == []
    (finding,) = find(*(row | first for row in both_ways(20)))
    assert finding.component == "nic:h1/eth1"


def test_operation_that_one_has_just_left_may_have_been_left_by_all_since_their_newest_rows() -> None:
    for ago_ns, blamed in ((SECOND - 1, []), (SECOND, ["nic:h1/eth1"])):
        found = find(*both_ways()[:3], line(3, (5, 5, 5), since_ns=T0 - ago_ns))
        assert [finding.component for finding in found] == blamed


def test_isolation_waits_out_the_retries_of_the_transport() -> None:
    failed = event("ib_completion_error", "h0", "status=12", component="nic:h1/eth1")
    found = *find(*both_ways(29)), *find(*both_ways(30)), *find(*both_ways(), events=(failed,))
    assert [finding.may_isolate for finding in found] == [False, True, True]


def test_single_wire_is_named_with_both_ends_beside_unless_nobody_reads_its_socket() -> None:
    (finding,) = find(
        waits(0, "recv_wait", 3), waits(1, "wire", 2), waits(2, "recv_wait", 1), waits(3, "recv_wait", 2)
    )
    assert (finding.component, finding.side) == ("link:h1/eth1--h2/eth1", "tx")
    assert {"nic:h1/eth1", "nic:h2/eth1"} <= set(finding.ambiguous_with)
    assert finding.likelihood < 0.5
    assert not finding.may_isolate
    lines = [waits(0, "gpu_wait", 1), waits(1, "wire", 2), waits(2, "peer_wait", 3), waits(3, "gpu_wait", 0)]
    assert find(*lines, transport="socket") == []
    assert [finding.fault_class for finding in find(*lines)] == ["comm_hang"], "on IB the NIC itself acknowledges"


def carrier(state: str, ago_s: float) -> HostEvent:
    return event(f"link_{state}", "h1", component="nic:h1/eth0", ago_s=ago_s)


def test_nic_without_carrier_explains_the_standstill_unless_it_is_a_flap_or_older() -> None:
    for ago_s, may_isolate in ((10, True), (4, False)):
        (finding,) = Job(lines=standing(ago_s), facts={"events": (carrier("down", ago_s),)}).find()
        named = finding.fault_class, finding.component, finding.may_isolate
        assert named == ("comm_hang", "nic:h1/eth0", may_isolate)
    assert Job(lines=standing(10), facts={"events": (carrier("down", 10), carrier("up", 9))}).find() == []
    down = {End("h1", "eth0"): T0 - 99 * SECOND}
    assert Job(lines=standing(10), facts={"down_since_ns": down}).find() == []


def test_nic_may_have_lost_its_carrier_a_whole_step_before_it_was_needed() -> None:
    for ago_s, part in ((140, "nic:h1/eth0"), (141, "job:j1")):  # that it stands still is said, but not of what
        facts = {"down_since_ns": {End("h1", "eth0"): T0 - ago_s * SECOND}, "period_ns": 40 * SECOND}
        assert Job(lines=standing(100), facts=facts).blamed == [part]


@pytest.mark.parametrize("period_s", [None, 40])
def test_carrier_lost_within_a_long_operation_is_told_before_the_step_is_late(period_s: int | None) -> None:
    def find_after(stood_s: float, nics: tuple[str, ...], out_s: float = 5) -> list[str]:
        facts = {"period_ns": period_s and period_s * SECOND, "nics": {"h1": nics}}
        return Job(lines=standing(stood_s), facts=facts | {"events": (carrier("down", out_s),)}).blamed

    assert find_after(5, ("eth0",)) == ["nic:h1/eth0"]
    assert find_after(4.9, ("eth0",)) == []
    assert find_after(5, ("eth1",)) == [], "the job does not use it"
    assert find_after(30, ("eth0",), out_s=4.9) == [], "it may be a flap"


def test_nic_that_has_just_got_its_carrier_back_explains_a_standstill_as_long_as_its_outage() -> None:
    for outage_s, blamed in ((3.0, ["nic:h1/eth0"]), (2.9, [])):
        events = carrier("down", 4 + outage_s), carrier("up", 4)
        assert Job(lines=standing(4 + outage_s), facts={"events": events}).blamed == blamed


def fabric() -> TopologyIndex:
    """Four hosts with a NIC each: h0 to h2 under leaf0, h3 under leaf1."""
    hosts = [Node(id=f"h{number}", kind="host", nics=(Nic(id="eth1"),)) for number in range(4)]
    leaves = [Node(id=f"leaf{number}", kind="switch", tier="leaf") for number in range(2)]
    cables = [
        Link(id=f"c{number}", a=f"h{number}/eth1", b="leaf1" if number == 3 else "leaf0", gbps=100)
        for number in range(4)
    ]
    return TopologyIndex(Topology(routing="ecmp", nodes=(*hosts, *leaves), links=tuple(cables)))


def test_leaf_under_which_all_stuck_wires_or_lost_carriers_meet_is_named() -> None:
    lines = [waits(rank, "wire", (rank + 1) % 4) for rank in range(4)]
    (finding,) = find(*lines, topology=fabric())
    assert (finding.fault_class, finding.component) == ("comm_hang", "switch:leaf0")
    assert finding.evidence[0]["ends"] == [str(end) for end in NICS]
    down = {End("h0", "eth1"): T0 - 10 * SECOND, End("h1", "eth1"): T0 - 10 * SECOND}
    (finding,) = find(*standing(10), topology=fabric(), down_since_ns=down)
    assert finding.component == "switch:leaf0"


CLOS = TopologyIndex(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))  # h0 and h1 under leaf0


def clos_pairs(**paths: str) -> dict[PairKey, Pair]:
    """The ring of four hosts, whose wires between leaves go over the spines that are told, as h1=spine0."""
    ends = [End(f"h{rank}", "eth0") for rank in range(4)]
    found: dict[PairKey, Pair] = {}
    for src, dst in ((0, 1), (1, 2), (2, 3), (3, 0)):
        spine = paths.get(f"h{src}")
        links = (f"leaf{src // 2}--{spine}", f"leaf{dst // 2}--{spine}") if spine else ()
        path = (f"h{src}/eth0--leaf{src // 2}", *links, f"h{dst}/eth0--leaf{dst // 2}") if spine else ()
        found |= {key: replace(told, path=path) for key, told in pair((src, ends[src]), (dst, ends[dst])).items()}
    return found


BETWEEN_LEAVES = [waits(0, "recv_wait", 3), waits(1, "wire", 2), waits(2, "recv_wait", 1), waits(3, "wire", 0)]


def test_link_between_switches_whose_port_lost_its_carrier_is_named() -> None:
    inside = [waits(0, "wire", 1), waits(1, "recv_wait", 0), waits(2, "recv_wait", 1), waits(3, "recv_wait", 2)]
    for lines, leaves, blamed in (
        (BETWEEN_LEAVES, (1,), ("comm_hang", "link:leaf1--spine1")),
        (BETWEEN_LEAVES, (0, 1), ("comm_hang", "switch:spine1")),
        (inside, (0, 1), ("comm_hang", "link:h0/eth0--h1/eth0")),  # packets between them stay below
    ):
        down = {f"leaf{leaf}--spine1": T0 - 11 * SECOND for leaf in leaves}
        (finding,) = Job(lines=lines, facts={"pairs": clos_pairs(), "down_links": down}, topology=CLOS).find()
        assert (finding.fault_class, finding.component) == blamed


def test_link_that_all_stuck_wires_take_is_named_and_what_may_be_it_where_paths_are_unknown() -> None:
    told = {"pairs": clos_pairs(h1="spine0", h3="spine0")}
    (finding,) = Job(lines=BETWEEN_LEAVES, facts=told, topology=CLOS).find()
    assert (finding.component, finding.ambiguous_with) == ("link:leaf0--spine0", ("link:leaf1--spine0",))
    (finding,) = Job(lines=BETWEEN_LEAVES, facts={"pairs": clos_pairs()}, topology=CLOS).find()
    assert len({finding.component, *finding.ambiguous_with}) == 4, "any of the links between the leaves"
    assert (finding.likelihood < 0.3, finding.may_isolate) == (True, False)
    apart = Job(lines=BETWEEN_LEAVES, facts={"pairs": clos_pairs(h1="spine0", h3="spine1")}, topology=CLOS)
    assert apart.blamed == ["link:h1/eth0--h2/eth0", "link:h3/eth0--h0/eth0"]
