"""What a change costs depends on the way: nothing for the untouched, little from a peer, much from a checkpoint."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.allocation.cluster import Cluster, Job, Recovery
from planner.allocation.gains import Choices, JobState, list_choices, state_of
from planner.allocation.throughput import tabulate
from tests.planner.allocation.clusters import clusters, job, linear, nodes, without

HOUR_S = 3_600.0
WAYS = Recovery(restart_s=300, lost_work_s=600, save_s=30, peer_s=20, drop_s=5)


def choices(one: Job, *lost: str, capacity: int = 16) -> Choices:
    cluster = Cluster(without(nodes(16), *lost), (one,))
    return list_choices(one, state_of(one, cluster), HOUR_S, capacity)


def at(those: Choices, count: int) -> tuple[str, float, float]:
    pick = those.counts.tolist().index(count)
    return those.change_at(pick), float(those.downtime_s[pick]), float(those.lost_work_s[pick])


HIT, HELD = job("a", 0, 8, recovery=WAYS, was_hit=True), job("a", 0, 8, recovery=WAYS)
WHOLE, PAIRS, FOURS = (replace(HELD, nodes_per_replica=count) for count in (8, 2, 4))


@pytest.mark.parametrize(
    ("one", "lost", "count", "expected"),
    [
        (HELD, ["h3"], 8, ("replace", 20.0, 0.0)),
        (WHOLE, ["h3"], 8, ("replace", 300.0, 600.0)),  # without a live replica the checkpoint must do
        (WHOLE, ["h3"], 16, ("reconfigure", 300.0, 600.0)),
        (HIT, [], 8, ("restart_process", 20.0, 0.0)),  # processes start again where they were
        (HELD, [], 6, ("reconfigure", 330.0, 0.0)),  # a planned change saves first and loses no work
        (WHOLE, ["h3"], 6, ("reconfigure", 300.0, 600.0)),  # a forced one does it again
        (HELD, [], 0, ("stop", 330.0, 0.0)),  # one that is stopped owes the restart
        (HELD, ["h3"], 0, ("stop", 300.0, 600.0)),
        (PAIRS, ["h3"], 6, ("drop_replica", 5.0, 0.0)),  # whole replicas, and those that were hit first
        (PAIRS, ["h3"], 7, ("reconfigure",)),
        (PAIRS, ["h2", "h3"], 6, ("drop_replica",)),
        (PAIRS, ["h1", "h3"], 6, ("reconfigure",)),
        (PAIRS, ["h1", "h3"], 4, ("drop_replica",)),
        (FOURS, [], 12, ("grow", 20.0, 0.0)),  # by whole replicas it gets its state from peers
        (FOURS, [], 11, ("reconfigure",)),
        (job("a"), [], 4, ("start",)),
        (job("a"), [], 0, ("none",)),
    ],
)
def test_a_change_costs_what_its_way_costs(
    one: Job, lost: list[str], count: int, expected: tuple[object, ...]
) -> None:
    assert at(choices(one, *lost), count)[: len(expected)] == expected


def test_peers_that_take_over_need_no_valid_count() -> None:
    even = tabulate({4: 400.0, 8: 700.0})
    one = job("a", 0, 8, even, recovery=Recovery(recycle_s=8.0, recycled={1: 650.0}))
    those = choices(one, "h3")
    assert those.counts.tolist() == [0, 4, 7, 8]
    assert at(those, 7) == ("recycle", 8.0, 0.0)
    assert those.work[2] == 650.0


def test_bounds_capacity_and_valid_counts_limit_what_may_be_chosen() -> None:
    one = job("a", 0, 8, tabulate({2: 100.0, 4: 200.0}), minimum=3)
    assert [one.work_on(count) for count in (2, 3, 4, 5)] == [0.0, 0.0, 200.0, 0.0]
    assert choices(one).counts.tolist() == [0, 4]
    assert choices(job("a", least=3, most=5)).counts.tolist() == [0, 3, 4, 5]
    assert choices(job("a", table=linear(8)), capacity=3).counts.tolist() == [0, 1, 2, 3]
    assert choices(job("a", table=linear(5), least=4, may_stop=False), capacity=3).counts.tolist() == [4, 5]


@given(clusters(), st.floats(1, 1e6))
def test_gain_is_work_until_the_next_plan_less_what_the_change_costs(cluster: Cluster, running_s: float) -> None:
    for one in cluster.jobs:
        those = list_choices(one, state_of(one, cluster), running_s, len(cluster.usable))
        paid = one.work_on(len(one.nodes)) * (those.downtime_s + those.lost_work_s)
        assert np.allclose(those.gains, those.work * running_s - paid)
        assert np.isfinite(those.gains).all()
        assert not those.work[those.counts < one.minimum].any()


def test_a_held_node_that_the_cluster_does_not_know_is_lost() -> None:
    one = job("a", 14, 4, nodes_per_replica=2)
    assert state_of(one, Cluster(nodes(16), (one,))) == JobState(4, 2, 1, True)
