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


THREE_TIERS = fat_tree(4)


@pytest.mark.parametrize(
    ("topology", "dst", "seen", "hops"),
    [
        (TWO_TIERS, "h2", ["spine1"], ("leaf0", "spine1", "leaf1")),
        (TWO_TIERS, "h1", [], ("leaf0",)),
        (TWO_TIERS, "h2", ["leaf0", "leaf1"], ("leaf0", "*", "leaf1")),
        *((TWO_TIERS, "h2", seen, None) for seen in (["spine0", "spine1"], ["spine9"], ["h3"])),
        *((TWO_TIERS, dst, [], None) for dst in ("h0", "stranger")),
        (THREE_TIERS, "h15", ["core2"], ("pod0-leaf0", "pod0-spine1", "core2", "pod3-spine1", "pod3-leaf1")),
        (THREE_TIERS, "h15", ["pod0-spine1"], ("pod0-leaf0", "pod0-spine1", "*", "pod3-spine1", "pod3-leaf1")),
        (THREE_TIERS, "h15", ["pod0-spine0", "core2"], None),
    ],
)
def test_answers_settle_the_path_as_far_as_the_topology_leaves_no_choice(
    topology: Topology, dst: str, seen: list[str], hops: tuple[str, ...] | None
) -> None:
    path = PathFinder(topology, "h0").resolve(flow(dst), seen)
    assert (path.hops if path else None) == hops
    if path and hops:
        assert path.is_complete == ("*" not in hops)
        assert len(path.links) == (len(hops) + 1 if path.is_complete else 0)


def test_path_names_its_links_and_the_hops_that_are_open_and_parallel_links_halve_the_certainty_of_a_guess() -> None:
    two, three = PathFinder(TWO_TIERS, "h0"), PathFinder(THREE_TIERS, "h0")
    path, layers = two.resolve(flow(), ["spine1"]), three.layers("eth0", "h15", "eth0")
    assert path is not None
    assert path.links == ("h0/eth0--leaf0", "leaf0--spine1", "leaf1--spine1", "h2/eth0--leaf1")
    assert layers is not None
    assert layers.open == [2, 3, 4]
    assert [two.layers("eth0", dst, "eth0") for dst in ("h0", "stranger")] == [None, None]
    finder = PathFinder(with_parallel_links(TWO_TIERS), "h0")
    for seen, certainty, link in (("spine0", 0.5, "cable1"), ("spine0/swp2", 1.0, "cable2")):
        path = finder.resolve(flow(), [seen])
        assert path is not None
        assert (path.certainty, path.links[1]) == (certainty, link)


LEFT, RIGHT = FlowPath(("leaf0", "spine0", "leaf1"), ("a",)), FlowPath(("leaf0", "spine1", "leaf1"), ("b",))


def test_path_is_fresh_for_its_time_until_the_clock_is_set_back_or_a_packet_is_lost() -> None:
    catalogue = PathCatalogue(fresh_s=10)
    catalogue.learn(flow(), LEFT, T0)
    assert catalogue.is_fresh(flow(), T0 + 9 * SECOND)
    assert not catalogue.is_fresh(flow(), T0 + 10 * SECOND)
    assert not catalogue.is_fresh(flow(), T0 - 1)
    assert not catalogue.is_fresh(flow(sport=1), T0)
    catalogue.suspect(flow())
    catalogue.suspect(flow(sport=1))  # of which nothing is known
    known = catalogue.recall(flow())
    assert not catalogue.is_fresh(flow(), T0)
    assert known is not None
    assert known.path == LEFT


def test_flow_that_moved_makes_all_others_doubtful_and_the_oldest_is_forgotten_beyond_the_bound() -> None:
    catalogue = PathCatalogue(fresh_s=10, most=2)
    catalogue.learn(flow(sport=1), LEFT, T0)
    for path in (LEFT, RIGHT):
        catalogue.learn(flow(sport=2), path, T0)
    assert not catalogue.is_fresh(flow(sport=1), T0)
    assert catalogue.is_fresh(flow(sport=2), T0)
    for sport in (1, 3):
        catalogue.learn(flow(sport=sport), LEFT, T0)
    assert [sport for sport in (1, 2, 3) if catalogue.recall(flow(sport=sport))] == [1, 3]


def test_confidence_grows_with_each_trace_that_agrees_and_begins_anew_when_one_does_not() -> None:
    catalogue = PathCatalogue(fresh_s=10)
    grown = [catalogue.learn(flow(), LEFT, T0 + n * NS_PER_S).confidence for n in range(8)]
    assert grown == sorted(grown)
    assert grown[-1] == pytest.approx(0.9)
    assert catalogue.learn(flow(), RIGHT, T0).confidence == grown[0] == pytest.approx(2 / 3)
