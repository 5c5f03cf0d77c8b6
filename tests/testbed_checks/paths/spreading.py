"""A planner for tests: each flow on the least loaded way that is up, and what has a good way keeps it."""

from collections import Counter
from collections.abc import Sequence

from lockstep.topology import Topology, TopologyIndex
from tests.testbed.paths.flows import PlannedFlow, Ways, ways_between


def spread(topology: Topology, flows: Sequence[PlannedFlow], before: Ways) -> dict[PlannedFlow, tuple[str, ...]]:
    """Return the up-link and the down-link of each flow, on a fabric of two tiers.

    Where each leaf sends to one other leaf, as `shift_by_a_leaf` has it, no link gets more flows than it must.
    """
    index, alive = TopologyIndex(topology), {link.id for link in topology.links if link.up}
    planned = {flow: tuple(before[flow]) for flow in flows if flow in before and set(before[flow]) <= alive}
    load = Counter(place for flow, way in planned.items() for place in places(flow, way))
    for flow in flows:
        if flow not in planned:
            choices = ways_between(topology, str(index.leaf_of(*flow.src)), str(index.leaf_of(*flow.dst)))
            planned[flow] = min(choices, key=lambda way: [load[place] for place in places(flow, way)])
            load.update(places(flow, planned[flow]))
    return planned


def places(flow: PlannedFlow, way: Sequence[str]) -> list[tuple[str, ...]]:
    """Return what a flow takes room on, the scarcest first: links with a direction, and a host's share of them."""
    up, down = way
    return [("up", up), ("down", down), ("up", up, flow.src[0]), ("down", down, flow.dst[0])]
