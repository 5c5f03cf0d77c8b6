"""Lockstep's planner gives trials what their ideal assumes: all links evenly full, and few moves after a cut."""

from collections import Counter
from collections.abc import Sequence

import pytest

from lockstep.topology import Topology
from tests.testbed.paths.flows import Planner, shift_by_a_leaf, without
from tests.testbed.paths.planners import plan_by_lockstep
from tests.testbed.paths.trials import eight_hosts, sixteen_hosts
from tests.testbed_checks.paths.spreading import places, spread

DEAD = "leaf0--spine1"


def inner(way: Sequence[str]) -> list[str]:
    """Return the links between switches."""
    return [link for link in way if "/" not in link]


@pytest.mark.parametrize("planner", [plan_by_lockstep, spread])
@pytest.mark.parametrize("topology", [eight_hosts(), sixteen_hosts()])
@pytest.mark.parametrize(("per_pair", "dead", "most"), [(1, [], 1), (3, [], 3), (3, [DEAD], 4)])
def test_no_link_gets_more_flows_than_it_must(
    planner: Planner, topology: Topology, per_pair: int, dead: list[str], most: int
) -> None:
    flows = shift_by_a_leaf(topology, per_pair)
    before = planner(topology, flows, {})
    after = planner(without(topology, dead), flows, before)

    load = Counter(place for flow, way in after.items() for place in places(flow, inner(way))[:2])
    assert max(load.values()) == most
    assert not any(set(way) & set(dead) for way in after.values())


@pytest.mark.parametrize("topology", [eight_hosts(), sixteen_hosts()])
def test_only_flows_on_the_dead_link_move(topology: Topology) -> None:
    flows = shift_by_a_leaf(topology, 3, is_one_way=True)
    before = plan_by_lockstep(topology, flows, {})
    after = plan_by_lockstep(without(topology, [DEAD]), flows, before)

    moved = {flow for flow in flows if after[flow] != before[flow]}
    assert moved == {flow for flow in flows if DEAD in before[flow]}
    assert len(moved) == 3
