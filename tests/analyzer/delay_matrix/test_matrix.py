"""Memory knows what a pair usually needs after a few evaluations, and forgets slowly."""

import math

import numpy as np
import pytest

from analyzer.delay_matrix.matrix import FORGOTTEN_AFTER, MIN_EVALUATIONS, MOST_EVALUATIONS, Hop, PairMemory, Paths
from lockstep.fabrics import FabricOptions, dual_plane, fat_tree, leaf_spine
from lockstep.topology import TopologyIndex
from tests.analyzer.localize.build import pairs, routed


def learn(memory: PairMemory, keys: list[int], value: float, times: int = 1) -> PairMemory:
    for _ in range(times):
        memory = memory.learn(np.array(keys, np.uint64), np.full(len(keys), value))
    return memory


def recall(memory: PairMemory, *keys: int) -> list[float]:
    known: list[float] = memory.recall(np.array(keys, np.uint64)).log_delay.tolist()
    return known


def test_usual_delay_is_known_after_a_few_evaluations_and_moves_slowly() -> None:
    memory = learn(PairMemory(), [5, 3], 2.0, MIN_EVALUATIONS - 1)
    assert np.isnan(recall(memory, 3)).all()
    assert recall(learn(memory, [5, 3], 2.0), 3, 5) == [2.0, 2.0]
    assert np.isnan(recall(PairMemory(), 1)).all()
    assert np.isnan(recall(learn(PairMemory(), [3], 2.0, 9), 1, 4)).all()
    memory = learn(learn(PairMemory(), [1], 1.0, 2), [1], 1.03, 1)
    assert recall(memory, 1) == [pytest.approx(1.01)]
    memory = learn(learn(PairMemory(), [1], 0.0, 2 * MOST_EVALUATIONS), [1], 0.06)
    assert recall(memory, 1) == [pytest.approx(0.06 / MOST_EVALUATIONS)]
    memory = learn(learn(PairMemory(), [10, 30], 1.0, 5), [20, 40, 10], 2.0, 5)
    assert recall(memory, 20, 30, 40) == [2.0, 1.0, 2.0]
    memory = learn(learn(PairMemory(), [1], 1.0, 5), [2], 1.0, FORGOTTEN_AFTER + 1)
    assert memory.keys.tolist() == [2]


def swing(memory: PairMemory) -> float:
    return float(memory.recall(np.array([1], np.uint64)).swing[0])


def test_swing_is_how_much_looks_differ() -> None:
    memory = PairMemory()
    for value in np.tile([0.0, 0.3], 40):
        memory = learn(memory, [1], value)
    assert swing(memory) == pytest.approx(0.15, rel=0.1)
    assert recall(memory, 1) == [pytest.approx(0.15, rel=0.1)]
    assert swing(learn(PairMemory(), [1], 2.0, 9)) == 0.0


@pytest.mark.parametrize("looks", [2, 9])
def test_one_evaluation_in_which_a_fault_begins_does_not_become_usual(looks: int) -> None:
    memory = learn(learn(PairMemory(), [1], 1.0, looks), [1], 1.7)
    assert recall(memory, 1) == [pytest.approx(1.0, abs=0.021)]
    assert swing(memory) <= 0.031


FABRIC = TopologyIndex(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))


def test_known_path_is_crossed_in_the_order_of_travel_as_far_as_it_goes() -> None:
    path = ("h0/eth0--leaf0", "leaf0--spine1", "leaf1--spine1", "h3/eth0--leaf1")
    assert Paths(FABRIC).hops(routed("h0/eth0", "h3/eth0", *path)) == (
        Hop("leaf0", None, 1.0),
        Hop("link:leaf0--spine1", "tx", 1.0),
        Hop("spine1", None, 1.0),
        Hop("link:leaf1--spine1", "rx", 1.0),
        Hop("leaf1", None, 1.0),
    )
    assert Paths(FABRIC).hops(routed("h0/eth0", "h3/eth0", path[0], *path[2:])) == (Hop("leaf0", None, 1.0),)


def test_unknown_path_is_spread_over_all_equal_paths() -> None:
    (pair,) = pairs([("h0/eth0", "h3/eth0")])
    shares = {f"{hop.name} {hop.side}": hop.share for hop in Paths(FABRIC).hops(pair)}
    assert shares == {
        "leaf0 None": 1.0,
        "leaf1 None": 1.0,
        **{f"spine{number} None": 0.5 for number in (0, 1)},
        **{f"link:leaf0--spine{number} tx": 0.5 for number in (0, 1)},
        **{f"link:leaf1--spine{number} rx": 0.5 for number in (0, 1)},
    }
    (pair,) = pairs([("h0/eth0", "h1/eth0")])
    assert Paths(FABRIC).hops(pair) == (Hop("leaf0", None, 1.0),)
    (pair,) = pairs([("h0/eth0", "h15/eth0")])
    hops = Paths(TopologyIndex(fat_tree(4))).hops(pair)
    for tier, number in {"leaf": 2, "spine": 2, "core": 1}.items():
        total = sum(hop.share for hop in hops if hop.side is None and tier in hop.name)
        assert total == pytest.approx(number)


def test_flow_is_no_faster_than_the_narrowest_link_of_the_widest_way() -> None:
    """Two uplinks of a quarter of the rate of a NIC, as in a fabric of which half may be away."""
    thin = Paths(TopologyIndex(leaf_spine(4, 1, 2, 2, FabricOptions(gbps=400.0, uplink_gbps=100.0))))
    across, inside, nowhere = pairs([("h0/eth0", "h3/eth0"), ("h0/eth0", "h1/eth0"), ("h0/eth0", "h9/eth0")])
    assert [thin.gbps_of(pair) for pair in (across, inside, nowhere)] == [100.0, math.inf, math.inf]
    assert thin.gbps_of(routed("h0/eth0", "h3/eth0", "h0/eth0--leaf0", "leaf0--spine1")) == 100.0


@pytest.mark.parametrize("end", ["h9/eth0", "h1/eth7"])
def test_unknown_end_leads_nowhere(end: str) -> None:
    (pair,) = pairs([("h0/eth0", end)])
    assert Paths(FABRIC).hops(pair) == (Hop("leaf0", None, 1.0),)


def test_nics_that_are_used_as_one_cross_the_links_of_each_of_their_ports() -> None:
    paths = Paths(TopologyIndex(dual_plane(hosts=4, leaves_per_plane=2, spines_per_plane=1)))
    one, fused = pairs([("h0/eth0", "h3/eth0"), ("h0/eth0,eth1", "h3/eth0,eth1")])
    of_one = {(hop.name, hop.side): hop.share for hop in paths.hops(one)}
    of_both = {(hop.name, hop.side): hop.share for hop in paths.hops(fused)}
    assert {part: of_both[part] for part in of_one} == {part: share / 2 for part, share in of_one.items()}
    assert sum(of_both.values()) == sum(of_one.values())
    assert paths.path_of(one) != paths.path_of(fused)
