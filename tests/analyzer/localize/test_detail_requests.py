"""What is doubtful is asked for: a probe past the rival, or all steps of the ranks in question."""

from dataclasses import replace

import pytest

from analyzer.localize.detail_requests import propose_detail_requests, propose_sampling
from analyzer.windows.jobs import build_roster
from analyzer.windows.window import Context, Finding, Window
from collector.nccl.budget import WHOLE_SHARE
from collector.nccl.detail import Detail, MinutesRequests, read_details
from lockstep import wire
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
    assert propose_detail_requests([finding("host:h3")], context(fabric())) == []
    assert propose_detail_requests([finding("nic:h3/eth1", "link:h3/eth1--leaf1")], context(fabric())) == []


def test_two_nics_of_a_wire_are_told_apart_by_probes_that_pass_only_one_of_them() -> None:
    requests = propose_detail_requests([RING_WIRE], context(fabric()))
    assert {request.kind for request in requests} == {"probe"}
    paths = {
        (f"{request.host}/{request.details['src_nic']}", f"{request.details['dst']}/{request.details['dst_nic']}")
        for request in requests
    }
    assert all(len({"h3/eth1", "h4/eth1"} & set(path)) == 1 for path in paths), "each passes exactly one suspect"
    assert {"h3/eth1", "h4/eth1"} == {end for path in paths for end in path if end[:2] in ("h3", "h4")}


def test_without_a_topology_all_steps_of_both_hosts_are_asked_for() -> None:
    requests = propose_detail_requests([RING_WIRE], context(None))
    now_ns = T0 + WINDOW_NS
    details = read_details(requests, now_ns)
    assert {rank for request in details for rank in request.target.ranks or ()} == {3, 4}
    assert len(MinutesRequests().new(requests, now_ns)) == 2, "the collector understands them"


def test_slowdown_that_nothing_explains_asks_every_host_that_speaks_for_steps_of_all_its_ranks() -> None:
    requests = propose_sampling(replace(context(fabric()), silent=frozenset({"h2"})))
    assert {request.host for request in requests} == {f"h{n}" for n in range(HOSTS)} - {"h2"}
    details = read_details(requests, T0 + WINDOW_NS)
    assert len(details) == HOSTS - 1
    assert all(each.target.means("train", rank) for each in details for rank in range(HOSTS))
    assert {each.detail for each in details} == {Detail(wire.STEPS, WHOLE_SHARE // 4)}


@pytest.mark.parametrize("topology", [None, fabric()])
def test_same_doubt_is_the_same_detail_request_within_a_minute_and_expires(topology: TopologyIndex | None) -> None:
    first, again = (propose_detail_requests([RING_WIRE, RING_WIRE], context(topology)) for _ in range(2))
    assert [request.id for request in first] == [request.id for request in again]
    assert len({request.id for request in first}) == len(first)
    assert all(request.expires_ns > T0 + WINDOW_NS for request in first)
