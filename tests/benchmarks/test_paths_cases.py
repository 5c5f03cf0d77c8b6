"""Cases of the path planner's benchmark are what their names say, and the same each time."""

import os
from collections import Counter
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from benchmarks.paths_cases import (
    CUT,
    DAMAGES,
    EXPERIMENTS,
    NAMESAKES,
    NVLINK_GBPS,
    ONE_PATH,
    SMALL,
    TRAFFIC,
    Case,
    Experiment,
    build,
    build_case,
    fabric_links,
    merge_namesakes,
    run_after_cut,
    run_by_chance,
    run_planned,
)
from lockstep.topology import Link, Nic, Node, Topology
from planner.paths.flows import FlowPaths, place_flows
from planner.paths.network import build_network, without


def case(fabric: str = "leaves 16 x 8", damage: str = "intact", traffic: str = "rings", flows: int = 128) -> Case:
    return Case(fabric, damage, traffic, flows, seed=1)


@pytest.mark.parametrize(("damage", "traffic"), list(zip(cycle(DAMAGES), TRAFFIC, strict=False)))
def test_each_case_is_the_same_each_time_and_has_its_flows(damage: str, traffic: str) -> None:
    (network, flows), again = (build_case(case("k=6", damage, traffic)) for _ in range(2))
    assert (len(flows), flows) == (128, again[1])
    assert (network.gbps == again[0].gbps).all()
    assert all(flow.src != flow.dst for flow in flows)


@pytest.mark.parametrize("fabric", [*SMALL, "planes 2 x 32 x 16"])
def test_each_fabric_can_carry_flows(fabric: str) -> None:
    network, flows = build_case(case(fabric))
    assert (FlowPaths(network, place_flows(network, flows)).height >= 0).all()


@pytest.mark.parametrize(
    ("damage", "rates"),
    [
        ("intact", {400.0: 128}),
        ("4 % of links missing", {400.0: 123, 0.0: 5}),
        ("4 % of links slow", {400.0: 123, 200.0: 3, 100.0: 2}),
        ("a spine missing", {400.0: 112, 0.0: 16}),
        ("three spines missing", {400.0: 80, 0.0: 48}),
    ],
)
def test_damage_is_done_to_as_many_links_as_it_says(damage: str, rates: dict[float, int]) -> None:
    network, _ = build_case(case(damage=damage))
    between = set(fabric_links(network.topology))
    directed_links = [2 * at for at, link in enumerate(network.topology.links) if link.id in between]
    assert Counter(network.gbps[directed_links].tolist()) == rates


def test_traffic_is_what_its_name_says_and_jobs_keep_to_their_rings() -> None:
    flows = {traffic: build_case(case(traffic=traffic, flows=640))[1] for traffic in TRAFFIC}
    sizes = {traffic: len({flow.gbps for flow in some}) for traffic, some in flows.items()}
    assert sizes == dict.fromkeys(TRAFFIC, 1) | {"four sizes": 4, "any sizes": 640}
    assert set(Counter(flow.src for flow in flows["rings"]).values()) == {10}
    assert max(Counter(flow.src for flow in flows["random"]).values()) > 20
    _, few = build_case(case(traffic="all to all", flows=90))
    assert (len({flow.src for flow in few}), len({(flow.src, flow.dst) for flow in few})) == (9 + 1, 90)
    _, planes = build_case(case("planes 2 x 32 x 16"))
    assert all("/" not in flow.src for flow in planes), "the choice of a port is the planner's"
    _, rings = build_case(case(traffic="jobs", flows=64))
    after = {flow.src: flow.dst for flow in rings}
    around = [rings[0].src]
    while (following := after[around[-1]]) != around[0]:
        around.append(following)
    assert len(around) == 8


def test_leaves_of_one_number_become_one_switch_with_the_links_of_all() -> None:
    tree = Topology(
        routing="ecmp",
        nodes=(
            *(Node(id=host, kind="host", nics=(Nic(id="nic0"),)) for host in ("h0", "h1", "h2")),
            *(Node(id=leaf, kind="switch", tier="leaf") for leaf in ("P1-S1", "P2-S1", "P2-S2")),
            *(Node(id=spine, kind="switch", tier="spine") for spine in ("P1", "P2")),
        ),
        links=tuple(
            Link(id=f"{a}--{b}", a=a, b=b, gbps=400)
            for a, b in [
                *(("h0/nic0", "P1-S1"), ("h1/nic0", "P2-S1"), ("h2/nic0", "P2-S2")),
                *(("P1-S1", "P1"), ("P2-S1", "P2"), ("P2-S2", "P2")),
            ]
        ),
    )
    network = build_network(merge_namesakes(tree))
    assert (network.leaves, network.up_paths[0].exists.tolist()) == (("S1", "S2"), [[True, True], [False, True]])


def test_lingjun_has_one_way_between_hosts_as_it_reads_and_up_to_three_if_names_are_switches() -> None:
    if "LOCKSTEP_PUBLIC_DATA" not in os.environ:
        pytest.skip("needs LOCKSTEP_PUBLIC_DATA, the folder of third-party data")
    counts = {}
    for fabric in (ONE_PATH, NAMESAKES):
        network, flows = build_case(case(fabric))
        paths = FlowPaths(network, place_flows(network, flows))
        counts[fabric] = np.array([len(paths.spines(flow)) for flow in np.flatnonzero(paths.height > 0).tolist()])
    assert set(counts[ONE_PATH].tolist()) == {1}
    assert counts[NAMESAKES].max() == 3


NETWORK = build()


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_a_plan_is_half_as_fast_again_as_chance_at_least(experiment: Experiment) -> None:
    network = without(NETWORK, experiment.dead)
    chance = np.median(
        [run_by_chance(network, replace(experiment, queue_pairs=8), seed).slowest for seed in range(5)]
    )
    assert run_planned(network, replace(experiment, queue_pairs=8)).slowest > 1.4 * chance


def test_jobs_get_the_same_with_a_plan_and_a_dynamic_one_loses_less_to_a_cut() -> None:
    planned, chance = run_planned(NETWORK, EXPERIMENTS[1]), run_by_chance(NETWORK, EXPERIMENTS[1], seed=1)
    assert planned.slowest == planned.fastest == NVLINK_GBPS
    assert chance.fastest > chance.slowest
    link = NETWORK.link_of(int(np.flatnonzero(NETWORK.fabric)[0]))
    static, dynamic = (run_after_cut(NETWORK, CUT, link, 1, is_dynamic).slowest for is_dynamic in (False, True))
    assert static <= 200.0
    assert dynamic >= 1.4 * static
