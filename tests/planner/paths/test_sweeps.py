"""Rounds of probes find every way between all leaves, the ones in doubt first, and never more than a round may."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.fabrics import dual_plane, fat_tree, leaf_spine
from lockstep.records import Path, Probe
from lockstep.topology import Link, Nic
from planner.paths.catalogue import Catalogue, Circumstances, LeftOut, build_catalogue
from planner.paths.network import Network, build_network, without
from planner.paths.routes import fold_probes
from planner.paths.sweeps import ROCE_PORTS, ProbeWish, SweepOptions, choose_probes, count_ports, count_ways
from tests.builders import SECOND, T0
from tests.planner.paths.probed import PORT, answer, entry, packets

FABRIC = build_network(leaf_spine(hosts=8, nics_per_host=1, leaves=4, spines=4))


def learn(probes: list[Probe], network: Network = FABRIC, now_ns: int = T0) -> Catalogue:
    return build_catalogue(fold_probes(packets(*probes)), Circumstances(network.topology, now_ns))


def leaves_of(wish: ProbeWish, network: Network = FABRIC) -> tuple[int, int]:
    return network.ports[f"{wish.src}/{wish.src_nic}"][1], network.ports[f"{wish.dst}/{wish.dst_nic}"][1]


@pytest.mark.parametrize("ways", [2, 4, 16])
def test_so_many_ports_meet_all_ways_as_often_as_promised(ways: int) -> None:
    ports = count_ports(ways, coverage=0.99)
    rng = np.random.default_rng(5)
    trials = [len(np.unique(rng.integers(0, ways, ports))) == ways for _ in range(5000)]
    fewer = [len(np.unique(rng.integers(0, ways, ports * 2 // 3))) == ways for _ in range(5000)]
    assert np.mean(trials) > 0.985
    assert np.mean(fewer) < 0.98


def test_a_first_round_sweeps_from_every_leaf_to_every_other() -> None:
    wishes = choose_probes(FABRIC, Catalogue(), turn=0, now_ns=T0)
    assert sorted(map(leaves_of, wishes)) == [(a, b) for a in range(4) for b in range(4) if a != b]
    assert {wish.ports for wish in wishes} == {count_ports(4)}
    assert {wish.sport for wish in wishes} == {ROCE_PORTS.start}


def test_each_turn_other_servers_probe() -> None:
    first, second = (choose_probes(FABRIC, Catalogue(), turn, T0) for turn in (0, 1))
    assert {wish.src for wish in first}.isdisjoint(wish.src for wish in second)


def test_rounds_find_every_way_and_then_rest() -> None:
    probes: list[Probe] = []
    for turn in range(4):
        probes += answer(choose_probes(FABRIC, learn(probes), turn // 2, T0 + turn), FABRIC, T0 + turn)
    assert choose_probes(FABRIC, learn(probes), 9, T0 + 9) == []
    ways = {(path.links[1], path.links[2]) for path in learn(probes).paths}
    assert len(ways) == 4 * 3 * 4


def test_what_was_not_looked_at_for_long_is_looked_at_again() -> None:
    probes = answer(choose_probes(FABRIC, Catalogue(), 0, T0, SweepOptions(coverage=0.9999)), FABRIC, T0)
    known = learn(probes)
    assert choose_probes(FABRIC, known, 0, T0 + 899 * SECOND) == []
    assert len(choose_probes(FABRIC, known, 0, T0 + 901 * SECOND)) == 12


def test_a_round_is_bounded_and_the_stalest_leaves_come_first() -> None:
    tried = LeftOut(entry(seen_ns=0, links=[]), "unclear", "r", T0)  # from leaf0 to leaf1, lately and without success
    options = SweepOptions(most_probes=11 * count_ports(4) + 5)
    wishes = choose_probes(FABRIC, Catalogue(left_out=(tried,)), 0, T0 + 1, options)
    assert sum(wish.ports for wish in wishes) == options.most_probes
    assert leaves_of(wishes[-1]) == (0, 1)
    assert wishes[-1].ports == 5


def test_what_was_cut_off_goes_on_behind_the_ports_that_are_known() -> None:
    known = Catalogue((entry(dst="h2", sport=PORT + 4),))
    wish = next(each for each in choose_probes(FABRIC, known, 0, T0) if (each.src, each.dst) == ("h0", "h2"))
    assert wish.sport == PORT + 5


def test_at_the_end_of_the_ports_a_sweep_begins_anew() -> None:
    known = Catalogue((entry(dst="h2", sport=0xFFFF),))
    wish = next(each for each in choose_probes(FABRIC, known, 0, T0) if (each.src, each.dst) == ("h0", "h2"))
    assert wish.sport == PORT


def left_out(sport: int, why: str = "changed") -> LeftOut:
    path: Path = entry(sport=sport)
    return LeftOut(path, why, "r", T0)  # type: ignore[arg-type]  # a parameter of tests


def test_ports_in_doubt_are_probed_again_first_and_together() -> None:
    doubtful = tuple(left_out(PORT + place) for place in (0, 1, 2, 9))
    wishes = choose_probes(FABRIC, Catalogue(left_out=(*doubtful, left_out(PORT + 5, "dead"))), 0, T0)
    assert [(wish.src, wish.dst, wish.sport, wish.ports) for wish in wishes[:2]] == [
        ("h0", "h2", PORT, 3),
        ("h0", "h2", PORT + 9, 1),
    ]
    assert len(wishes) == 2 + 12


def test_only_nics_with_an_address_are_chosen_where_some_have_one() -> None:
    topology = FABRIC.topology
    nodes = tuple(
        node.model_copy(update={"nics": (Nic(id="eth0", address="10.0.0.1"),)}) if node.id in ("h1", "h3") else node
        for node in topology.nodes
    )
    network = build_network(topology.model_copy(update={"nodes": nodes}))
    wishes = choose_probes(network, Catalogue(), 0, T0)
    assert {wish.src for wish in wishes} == {"h1", "h3", "h4", "h6"}


def test_planes_are_not_probed_across() -> None:
    network = build_network(dual_plane(hosts=4, leaves_per_plane=2, spines_per_plane=2))
    assert {(wish.src_nic, wish.dst_nic) for wish in choose_probes(network, Catalogue(), 0, T0)} == {
        ("eth0", "eth0"),
        ("eth1", "eth1"),
    }


def test_ways_are_counted_over_links_that_carry() -> None:
    tree = build_network(fat_tree(4))
    assert sorted(np.unique(count_ways(tree)).tolist()) == [2, 4]
    cut = count_ways(without(FABRIC, ["leaf0--spine0"]))
    assert (cut[0, 1], cut[1, 2]) == (3, 4)


def doubled() -> Network:
    """Return two leaves under two spines, with a second cable from leaf0 to spine0 and from leaf1 to spine0."""
    topology = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)
    more = (Link(id=f"more{leaf}", a=f"leaf{leaf}", b="spine0", gbps=400) for leaf in (0, 1))
    return build_network(topology.model_copy(update={"links": (*topology.links, *more)}))


def test_switches_may_take_any_of_parallel_cables_up_and_down() -> None:
    assert count_ways(doubled())[0, 1] == 2 * 2 + 1
    assert count_ways(without(doubled(), ["more1"]))[0, 1] == 2 * 1 + 1


def test_parallel_cables_that_nobody_can_tell_apart_are_not_looked_for_for_ever() -> None:
    network = doubled()
    met = [entry("spine0", sport=PORT), entry("spine1", sport=PORT + 1)]
    assert [leaves_of(wish, network) for wish in choose_probes(network, Catalogue(tuple(met)), 0, T0)] == [(1, 0)]
    assert [wish.ports for wish in choose_probes(network, Catalogue(tuple(met[:1])), 0, T0)] == [count_ports(5)] * 2


def test_details_are_what_a_collector_reads() -> None:
    wish = choose_probes(FABRIC, Catalogue(), 0, T0)[0]
    assert wish.details == {
        "src_nic": "eth0",
        "dst": "h2",
        "dst_nic": "eth0",
        "proto": "roce",
        "sport": PORT,
        "dport": 4791,
        "ports": 21,
    }


@given(st.integers(1, 400), st.integers(0, 50))
def test_no_round_is_larger_than_it_may_be(most: int, turn: int) -> None:
    wishes = choose_probes(FABRIC, Catalogue(), turn, T0, SweepOptions(most_probes=most))
    assert sum(wish.ports for wish in wishes) == min(most, 12 * count_ports(4))
    assert all(wish.sport + wish.ports <= 0x10000 for wish in wishes)
