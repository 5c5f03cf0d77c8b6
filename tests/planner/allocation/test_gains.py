"""What a change costs depends on the way: nothing for the untouched, little from a peer, much from a checkpoint."""

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
    """Return way, downtime and work done again."""
    pick = those.counts.tolist().index(count)
    return those.change_at(pick), float(those.downtime_s[pick]), float(those.lost_work_s[pick])


def test_untouched_job_pays_nothing() -> None:
    one = job("a", 0, 8, weight=2.0)
    those = choices(one)
    assert at(those, 8) == ("none", 0.0, 0.0)
    assert those.gains[8] == pytest.approx(2.0 * one.throughput.at(8) * HOUR_S)


def test_a_job_that_was_hit_pays_also_when_it_keeps_its_count() -> None:
    one = job("a", 0, 8, recovery=WAYS)
    those = choices(one, "h3")
    assert at(those, 8) == ("replace", 20.0, 0.0)
    assert those.gains[8] == pytest.approx(one.work_on(8) * (HOUR_S - 20))


def test_without_a_live_replica_the_checkpoint_must_do() -> None:
    one = job("a", 0, 8, recovery=WAYS, nodes_per_replica=8)
    assert at(choices(one, "h3"), 8) == ("replace", 300.0, 600.0)
    assert at(choices(one, "h3"), 16) == ("reconfigure", 300.0, 600.0)


def test_processes_that_failed_start_again_where_they_were() -> None:
    assert at(choices(job("a", 0, 8, recovery=WAYS, was_hit=True)), 8) == ("restart_process", 20.0, 0.0)


def test_a_planned_change_saves_first_and_loses_no_work() -> None:
    assert at(choices(job("a", 0, 8, recovery=Recovery(restart_s=300, save_s=30))), 6) == ("reconfigure", 330.0, 0.0)


def test_a_forced_change_does_the_work_since_the_checkpoint_again() -> None:
    assert at(choices(job("a", 0, 8, recovery=Recovery(300, 600)), "h3"), 6) == ("reconfigure", 300.0, 600.0)


def test_a_job_that_is_stopped_owes_the_restart() -> None:
    assert at(choices(job("a", 0, 8, recovery=WAYS)), 0) == ("stop", 330.0, 0.0)
    assert at(choices(job("a", 0, 8, recovery=WAYS), "h3"), 0) == ("stop", 300.0, 600.0)


def test_only_whole_replicas_are_dropped_and_those_that_were_hit_first() -> None:
    one = job("a", 0, 8, recovery=WAYS, nodes_per_replica=2)
    assert at(choices(one, "h3"), 6) == ("drop_replica", 5.0, 0.0)
    assert at(choices(one, "h3"), 7)[0] == "reconfigure"
    assert at(choices(one, "h2", "h3"), 6)[0] == "drop_replica"
    assert at(choices(one, "h1", "h3"), 6)[0] == "reconfigure"
    assert at(choices(one, "h1", "h3"), 4)[0] == "drop_replica"


def test_growth_by_whole_replicas_gets_its_state_from_peers() -> None:
    one = job("a", 0, 8, recovery=WAYS, nodes_per_replica=4)
    assert at(choices(one), 12) == ("grow", 20.0, 0.0)
    assert at(choices(one), 11)[0] == "reconfigure"


def test_peers_that_take_over_need_no_valid_count() -> None:
    even = tabulate({4: 400.0, 8: 700.0})
    one = job("a", 0, 8, even, recovery=Recovery(recycle_s=8.0, recycled={1: 650.0}))
    those = choices(one, "h3")
    assert those.counts.tolist() == [0, 4, 7, 8]
    assert at(those, 7) == ("recycle", 8.0, 0.0)
    assert those.work[2] == 650.0


def test_a_count_that_is_not_valid_or_below_the_minimum_does_no_work() -> None:
    one = job("a", 0, 8, tabulate({2: 100.0, 4: 200.0}), minimum=3)
    assert [one.work_on(count) for count in (2, 3, 4, 5)] == [0.0, 0.0, 200.0, 0.0]
    assert choices(one).counts.tolist() == [0, 4]


def test_bounds_and_capacity_limit_what_may_be_chosen() -> None:
    assert choices(job("a", least=3, most=5)).counts.tolist() == [0, 3, 4, 5]
    assert choices(job("a", table=linear(8)), capacity=3).counts.tolist() == [0, 1, 2, 3]
    assert choices(job("a", table=linear(5), least=4, may_stop=False), capacity=3).counts.tolist() == [4, 5]


def test_a_job_that_waits_starts_at_no_cost_to_what_it_does_not_do_yet() -> None:
    those = choices(job("a"))
    assert at(those, 4)[0] == "start"
    assert at(those, 0)[0] == "none"
    assert those.gains[4] == pytest.approx(linear(16).at(4) * HOUR_S)


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
