"""What is doubtful is asked for: a probe past the rival, or all steps of the ranks in question."""

import pytest

from analyzer.context import Context
from analyzer.faults.wishes import propose_wishes
from analyzer.finding import Finding
from analyzer.roster import build_roster
from analyzer.windows import Window
from collector.rings.wishes import MinutesWishes, read_details
from lockstep.records import Comm
from lockstep.topology import TopologyIndex
from tests.analyzer.build import HOSTS, WINDOW_NS, fabric
from tests.builders import T0, make, rows


def context(topology: TopologyIndex | None) -> Context:
    members = [make(Comm, host=f"h{n}", rank=n, nranks=HOSTS, world_rank=n) for n in range(HOSTS)]
    return Context("train", 0, Window(T0, T0 + WINDOW_NS), T0, build_roster(rows(*members)), topology)


def finding(component: str, *rivals: str) -> Finding:
    return Finding(
        fault_class="comm_slow", component=component, likelihood=0.5, reason="it is slow", ambiguous_with=rivals
    )


RING_WIRE = finding("link:h3/eth1--h4/eth1", "nic:h3/eth1", "nic:h4/eth1", "link:h3/eth1--leaf1")


def test_without_doubt_nothing_is_asked_for() -> None:
    assert propose_wishes([finding("host:h3")], context(fabric())) == []


def test_cable_beside_its_nic_is_no_doubt() -> None:
    assert propose_wishes([finding("nic:h3/eth1", "link:h3/eth1--leaf1")], context(fabric())) == []


def test_two_nics_of_a_wire_are_told_apart_by_probes_that_pass_only_one_of_them() -> None:
    wishes = propose_wishes([RING_WIRE], context(fabric()))
    assert {wish.kind for wish in wishes} == {"probe"}
    ways = {
        (f"{wish.host}/{wish.details['src_nic']}", f"{wish.details['dst']}/{wish.details['dst_nic']}")
        for wish in wishes
    }
    assert all(len({"h3/eth1", "h4/eth1"} & set(way)) == 1 for way in ways), "each passes exactly one suspect"
    assert {"h3/eth1", "h4/eth1"} == {end for way in ways for end in way if end[:2] in ("h3", "h4")}


def test_without_a_topology_all_steps_of_both_hosts_are_asked_for() -> None:
    wishes = propose_wishes([RING_WIRE], context(None))
    now_ns = T0 + WINDOW_NS
    details = read_details(wishes, now_ns)
    assert {rank for wish in details for rank in wish.target.ranks or ()} == {3, 4}
    assert len(MinutesWishes().new(wishes, now_ns)) == 2, "the collector understands them"


@pytest.mark.parametrize("topology", [None, fabric()])
def test_same_doubt_is_the_same_wish_within_a_minute_and_expires(topology: TopologyIndex | None) -> None:
    first, again = (propose_wishes([RING_WIRE, RING_WIRE], context(topology)) for _ in range(2))
    assert [wish.id for wish in first] == [wish.id for wish in again]
    assert len({wish.id for wish in first}) == len(first)
    assert all(wish.expires_ns > T0 + WINDOW_NS for wish in first)
