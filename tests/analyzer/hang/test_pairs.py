"""Stuck transfers name the NIC that they share, or their wire with all that could be it."""

from analyzer.windows.window import End, Finding
from lockstep.topology import Link, Nic, Node, Topology, TopologyIndex
from tests.analyzer.hang.build import Job, Line, event, line, pair
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


def test_isolation_waits_out_the_retries_of_the_transport() -> None:
    assert [finding.may_isolate for finding in find(*both_ways(29))] == [False]
    assert [finding.may_isolate for finding in find(*both_ways(30))] == [True]
    failed = event("ib_completion_error", "h0", "status=12", component="nic:h1/eth1")
    assert [finding.may_isolate for finding in find(*both_ways(), events=(failed,))] == [True]


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


def test_nic_without_carrier_explains_the_standstill_unless_it_is_a_flap_or_older() -> None:
    lost = event("link_down", "h1", "eth0 went down", component="nic:h1/eth0")
    (finding,) = Job(lines=[line(rank, (5, 5, 4)) for rank in range(4)], facts={"events": (lost,)}).find()
    assert (finding.fault_class, finding.component, finding.may_isolate) == ("comm_hang", "nic:h1/eth0", True)
    lost = event("link_down", "h1", "eth0 went down", component="nic:h1/eth0", ago_s=4)
    lines = [line(rank, (5, 5, 4), since_ns=T0 - 4 * SECOND) for rank in range(4)]
    (finding,) = Job(lines=lines, facts={"events": (lost,)}).find()
    assert (finding.component, finding.may_isolate) == ("nic:h1/eth0", False)
    happened = (
        event("link_down", "h1", component="nic:h1/eth0", ago_s=10),
        event("link_up", "h1", component="nic:h1/eth0", ago_s=9),
    )
    assert Job(lines=[line(rank, (5, 5, 4)) for rank in range(4)], facts={"events": happened}).find() == []
    down = {End("h1", "eth0"): T0 - 99 * SECOND}
    assert Job(lines=[line(rank, (5, 5, 4)) for rank in range(4)], facts={"down_since_ns": down}).find() == []


def test_nic_that_has_just_got_its_carrier_back_explains_a_standstill_as_long_as_its_outage() -> None:
    def find_after(outage_s: float) -> list[str]:
        happened = (
            event("link_down", "h1", component="nic:h1/eth0", ago_s=4 + outage_s),
            event("link_up", "h1", component="nic:h1/eth0", ago_s=4),
        )
        lines = [line(rank, (5, 5, 4), since_ns=T0 - round((4 + outage_s) * SECOND)) for rank in range(4)]
        return [finding.component for finding in Job(lines=lines, facts={"events": happened}).find()]

    assert find_after(outage_s=3.0) == ["nic:h1/eth0"]
    assert find_after(outage_s=2.9) == []


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
    (finding,) = find(*(line(rank, (5, 5, 4)) for rank in range(4)), topology=fabric(), down_since_ns=down)
    assert finding.component == "switch:leaf0"
