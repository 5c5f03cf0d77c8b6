"""Who answered, and the topology, say which way a flow took; what is known grows old, doubtful, or is forgotten."""

import pytest

from collector.probes.packets import Flow
from collector.probes.paths import FlowPath, PathCatalogue, PathFinder
from lockstep.clock import NS_PER_S
from lockstep.fabrics import fat_tree, leaf_spine
from lockstep.topology import Link, Topology
from tests.builders import SECOND, T0

TWO_TIERS = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)


def flow(dst: str = "h2", sport: int = 50_000) -> Flow:
    return Flow("eth0", dst, "eth0", "tcp", sport, 9)


def with_parallel_links(topology: Topology) -> Topology:
    """Return the fabric with a second cable between leaf0 and spine0, at ports that have names."""
    cables = [Link(id=f"cable{port}", a=f"leaf0/up{port}", b=f"spine0/swp{port}", gbps=1.0) for port in (1, 2)]
    others = [link for link in topology.links if link.id != "leaf0--spine0"]
    return topology.model_copy(update={"links": (*others, *cables)})


def test_one_spine_that_answers_settles_the_path_in_two_tiers() -> None:
    assert PathFinder(TWO_TIERS, "h0").resolve(flow(), ["spine1"]) == FlowPath(
        ("leaf0", "spine1", "leaf1"), ("h0/eth0--leaf0", "leaf0--spine1", "leaf1--spine1", "h2/eth0--leaf1")
    )


def test_path_inside_a_leaf_needs_no_answer() -> None:
    path = PathFinder(TWO_TIERS, "h0").resolve(flow("h1"), [])
    assert path == FlowPath(("leaf0",), ("h0/eth0--leaf0", "h1/eth0--leaf0"))


def test_silence_where_there_is_a_choice_leaves_the_path_open() -> None:
    path = PathFinder(TWO_TIERS, "h0").resolve(flow(), ["leaf0", "leaf1"])
    assert path == FlowPath(("leaf0", "*", "leaf1"))
    assert not path.is_complete


@pytest.mark.parametrize("seen", [["spine0", "spine1"], ["spine9"], ["h3"]], ids=["two", "unknown", "host"])
def test_answers_that_no_shortest_path_joins_are_no_path(seen: list[str]) -> None:
    assert PathFinder(TWO_TIERS, "h0").resolve(flow(), seen) is None


def test_one_core_settles_all_five_hops_of_three_tiers() -> None:
    finder = PathFinder(fat_tree(4), "h0")
    layers = finder.layers("eth0", "h15", "eth0")
    assert layers is not None
    assert layers.open == [2, 3, 4]
    path = finder.resolve(flow("h15"), ["core2"])
    assert path is not None
    assert path.hops == ("pod0-leaf0", "pod0-spine1", "core2", "pod3-spine1", "pod3-leaf1")
    assert len(path.links) == 6


def test_spine_of_the_own_pod_leaves_its_cores_open() -> None:
    path = PathFinder(fat_tree(4), "h0").resolve(flow("h15"), ["pod0-spine1"])
    assert path is not None
    assert path.hops == ("pod0-leaf0", "pod0-spine1", "*", "pod3-spine1", "pod3-leaf1")


def test_switches_that_are_not_joined_are_no_path() -> None:
    assert PathFinder(fat_tree(4), "h0").resolve(flow("h15"), ["pod0-spine0", "core2"]) is None


def test_parallel_links_halve_the_certainty_unless_the_port_is_named() -> None:
    finder = PathFinder(with_parallel_links(TWO_TIERS), "h0")
    guess, named = finder.resolve(flow(), ["spine0"]), finder.resolve(flow(), ["spine0/swp2"])
    assert guess is not None
    assert named is not None
    assert (guess.certainty, guess.links[1]) == (0.5, "cable1")
    assert (named.certainty, named.links[1]) == (1.0, "cable2")


@pytest.mark.parametrize("dst", ["h0", "stranger"])
def test_there_is_no_path_to_oneself_or_to_strangers(dst: str) -> None:
    finder = PathFinder(TWO_TIERS, "h0")
    assert finder.layers("eth0", dst, "eth0") is None
    assert finder.resolve(flow(dst), []) is None


LEFT, RIGHT = FlowPath(("leaf0", "spine0", "leaf1"), ("a",)), FlowPath(("leaf0", "spine1", "leaf1"), ("b",))


def test_path_is_fresh_for_its_time_and_old_afterwards_or_when_the_clock_was_set_back() -> None:
    catalogue = PathCatalogue(fresh_s=10)
    catalogue.learn(flow(), LEFT, T0)
    assert catalogue.is_fresh(flow(), T0 + 9 * SECOND)
    assert not catalogue.is_fresh(flow(), T0 + 10 * SECOND)
    assert not catalogue.is_fresh(flow(), T0 - 1)
    assert not catalogue.is_fresh(flow(sport=1), T0)


def test_confidence_grows_with_each_trace_that_agrees_and_begins_anew_when_one_does_not() -> None:
    catalogue = PathCatalogue(fresh_s=10)
    grown = [catalogue.learn(flow(), LEFT, T0 + n * NS_PER_S).confidence for n in range(8)]
    assert grown == sorted(grown)
    assert grown[-1] == pytest.approx(0.9)
    assert catalogue.learn(flow(), RIGHT, T0).confidence == grown[0] == pytest.approx(2 / 3)


def test_flow_that_moved_makes_all_others_doubtful() -> None:
    catalogue = PathCatalogue(fresh_s=10)
    catalogue.learn(flow(sport=1), LEFT, T0)
    catalogue.learn(flow(sport=2), LEFT, T0)
    catalogue.learn(flow(sport=2), RIGHT, T0)
    assert not catalogue.is_fresh(flow(sport=1), T0)
    assert catalogue.is_fresh(flow(sport=2), T0)


def test_flow_that_lost_a_packet_is_traced_again_and_still_remembered() -> None:
    catalogue = PathCatalogue(fresh_s=10)
    catalogue.learn(flow(), LEFT, T0)
    catalogue.suspect(flow())
    catalogue.suspect(flow(sport=1))  # of which nothing is known
    known = catalogue.recall(flow())
    assert not catalogue.is_fresh(flow(), T0)
    assert known is not None
    assert known.path == LEFT


def test_catalogue_forgets_the_oldest_beyond_its_bound() -> None:
    catalogue = PathCatalogue(fresh_s=10, most=2)
    for sport in (1, 2, 1, 3):
        catalogue.learn(flow(sport=sport), LEFT, T0)
    assert [sport for sport in (1, 2, 3) if catalogue.recall(flow(sport=sport))] == [1, 3]
