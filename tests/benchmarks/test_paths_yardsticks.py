"""Yardsticks of plans are what they say: optima that agree where they must, and choices among the roads there are."""

import numpy as np
import pytest

from benchmarks.paths_cases import Case, build_case
from benchmarks.paths_yardsticks import (
    build_program,
    choose_greedily,
    count_variables,
    draw_at_random,
    highest_use,
    solve_fraction,
    solve_whole,
)
from lockstep.fabrics import dual_plane, fat_tree, leaf_spine, rail_optimised
from lockstep.topology import Topology
from planner.paths.bounds import find_bound
from planner.paths.flows import Flow, place_flows
from planner.paths.network import build_network, with_rates, without
from planner.paths.roads import Roads

LIMIT_S = 60.0


def roads_of(case: Case) -> Roads:
    network, flows = build_case(case)
    return Roads(network, place_flows(network, flows))


def two_leaves(flows: int, spines: int = 2, slow: dict[str, float] | None = None) -> Roads:
    """Return flows of 100 Gbit/s from one leaf to another."""
    network = build_network(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=spines))
    sent = [Flow(id=str(number), src="h0", dst="h1", gbps=100.0) for number in range(flows)]
    return Roads(with_rates(network, slow or {}), place_flows(network, sent))


def random_flows(topology: Topology, seed: int) -> Roads:
    print(f"seed {seed}")
    rng, network = np.random.default_rng(seed), build_network(topology)
    hosts = [host.id for host in topology.hosts]
    pairs = [rng.choice(len(hosts), 2, replace=False) for _ in range(100)]
    flows = [
        Flow(id=str(n), src=hosts[a], dst=hosts[b], gbps=float(rng.integers(1, 9))) for n, (a, b) in enumerate(pairs)
    ]
    return Roads(network, place_flows(network, flows))


@pytest.mark.parametrize(
    "topology",
    [
        leaf_spine(hosts=16, nics_per_host=1, leaves=8, spines=5),
        rail_optimised(hosts=8, rails=3, spines=4, pods=2),
        dual_plane(hosts=12, leaves_per_plane=4, spines_per_plane=3),
        fat_tree(4),
        fat_tree(6),
    ],
    ids=["leaf-spine", "rails", "planes", "k=4", "k=6"],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_closed_form_is_the_fractional_optimum_of_intact_fabrics(topology: Topology, seed: int) -> None:
    roads = random_flows(topology, seed)
    assert solve_fraction(build_program(roads), LIMIT_S) == pytest.approx(find_bound(roads), rel=1e-6)


@pytest.mark.parametrize("fabric", ["k=6", "leaves 12 x 7", "rails 16 x 6"])
@pytest.mark.parametrize("damage", ["4 % of links missing", "4 % of links slow", "three spines missing"])
@pytest.mark.parametrize("seed", [1, 2])
def test_fractional_optimum_of_broken_fabrics_is_never_below_the_closed_form(
    fabric: str, damage: str, seed: int
) -> None:
    roads = roads_of(Case(fabric, damage, "random", 200, seed))
    found = solve_fraction(build_program(roads), LIMIT_S)
    assert found is not None
    assert found >= find_bound(roads) * (1 - 1e-6)


def test_closed_form_may_be_below_the_fractional_optimum_of_a_broken_fabric() -> None:
    # h0 and h1 reach h2 only over spine0, each alone within its own share of it, together not.
    network = build_network(leaf_spine(hosts=3, nics_per_host=1, leaves=3, spines=3))
    broken = without(network, ["leaf0--spine1", "leaf1--spine2", "leaf2--spine1", "leaf2--spine2"])
    lanes = [Flow(id=name, src=name, dst="h2", gbps=100.0) for name in ("h0", "h1")]
    across = [Flow(id="across", src="h0", dst="h1", gbps=300.0)]
    roads = Roads(broken, place_flows(broken, lanes + across))
    assert find_bound(roads) <= 0.75
    assert solve_fraction(build_program(roads), LIMIT_S) == pytest.approx(1.0)


def test_whole_flows_cannot_be_halved() -> None:
    program = build_program(two_leaves(flows=3))
    assert solve_fraction(program, LIMIT_S) == pytest.approx(150 / 400)
    assert solve_whole(program, 100.0, LIMIT_S) == pytest.approx(200 / 400)


def test_whole_optimum_uses_a_slow_link_for_what_it_can_carry() -> None:
    program = build_program(two_leaves(flows=5, slow={"leaf0--spine0": 0.25}))
    assert solve_fraction(program, LIMIT_S) == pytest.approx(1.0)
    assert solve_whole(program, 100.0, LIMIT_S) == pytest.approx(1.0)
    assert solve_whole(
        build_program(two_leaves(flows=4, slow={"leaf0--spine0": 0.25})), 100.0, LIMIT_S
    ) == pytest.approx(1.0)


def test_programs_without_flows_to_choose_for_have_no_use() -> None:
    program = build_program(two_leaves(flows=0))
    assert solve_fraction(program, LIMIT_S) == solve_whole(program, 100.0, LIMIT_S) == 0.0


def test_time_that_does_not_suffice_gives_no_optimum() -> None:
    program = build_program(roads_of(Case("k=8", "4 % of links missing", "rings", 512, 1)))
    assert solve_fraction(program, 1e-6) is None
    assert solve_whole(program, 50.0, 1e-6) is None


@pytest.mark.parametrize("damage", ["intact", "4 % of links missing"])
@pytest.mark.parametrize("fabric", ["leaves 12 x 7", "k=6"])
def test_programs_have_as_many_ways_as_matrices_of_links_count(fabric: str, damage: str) -> None:
    roads = roads_of(Case(fabric, damage, "random", 60, 3))
    to_spines = links_that_carry(roads, "leaf", "spine")
    to_cores = to_spines @ links_that_carry(roads, "spine", "core")
    over_spines, over_cores = to_spines @ to_spines.T, to_cores @ to_cores.T
    ways = np.where(over_spines > 0, over_spines, over_cores)
    apart = {(near, far) for near, far in zip(roads.flows.near, roads.flows.far, strict=True) if near != far}
    assert build_program(roads).variables == count_variables(roads) == sum(ways[near, far] for near, far in apart)


def links_that_carry(roads: Roads, low: str, high: str) -> np.ndarray:
    """Return how many links that are up join each switch of a tier to each of the one above it."""
    topology, rates = roads.network.topology, roads.network.gbps
    lower, upper = ([switch.id for switch in topology.switches if switch.tier == tier] for tier in (low, high))
    joined = np.zeros((len(lower), len(upper)), np.int64)
    for at, link in enumerate(topology.links):
        if link.a in lower and link.b in upper and rates[2 * at] > 0:
            joined[lower.index(link.a), upper.index(link.b)] += 1
    return joined


def test_random_choice_takes_all_roads_equally_often() -> None:
    roads = two_leaves(flows=4_000, spines=4)
    uses = draw_at_random(roads, range(100, 105))
    even = highest_use(roads, np.arange(4_000) % 4)
    assert all(even < use < 1.1 * even for use in uses)
    assert len(set(uses)) > 1


def test_random_choice_is_repeatable_and_keeps_off_dead_links() -> None:
    roads = roads_of(Case("k=6", "three spines missing", "rings", 200, 1))
    uses = draw_at_random(roads, range(100, 103))
    assert uses == draw_at_random(roads, range(100, 103))
    assert np.isfinite(uses).all()


def test_all_choices_are_the_same_where_there_is_one_road() -> None:
    roads = two_leaves(flows=4, spines=1)
    assert draw_at_random(roads, range(100, 102)) == [1.0, 1.0]
    assert choose_greedily(roads) == 1.0
    assert solve_whole(build_program(roads), 100.0, LIMIT_S) == pytest.approx(1.0)


def test_greedy_choice_fills_a_slow_link_last() -> None:
    assert choose_greedily(two_leaves(flows=4)) == 0.5
    assert choose_greedily(two_leaves(flows=1, slow={"leaf0--spine0": 0.25})) == 0.25
    assert choose_greedily(two_leaves(flows=5, slow={"leaf0--spine0": 0.25})) == 1.0
