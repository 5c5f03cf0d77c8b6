"""Plans are made for the time until the next failure of the very nodes at hand."""

from dataclasses import replace

import pytest

from planner.recovery.allocation.horizon import expect_running_s
from planner.recovery.allocation.jobs import Cluster
from tests.planner.recovery.allocation.clusters import job, linear, nodes

DAY_S = 86_400.0
CLUSTER = Cluster(nodes(10, rate=0.1), (job("a", 0, 10),))


def test_ten_nodes_that_fail_every_ten_days_leave_a_day() -> None:
    assert expect_running_s(CLUSTER) == pytest.approx(DAY_S, rel=0.05)


def test_one_bad_node_shortens_the_time_for_all() -> None:
    bad = replace(CLUSTER.nodes[0], failures_per_day=9.1)
    assert expect_running_s(replace(CLUSTER, nodes=(bad, *CLUSTER.nodes[1:]))) == pytest.approx(DAY_S / 10, rel=0.05)


def test_nodes_that_no_job_can_use_do_not_count() -> None:
    small = replace(CLUSTER, jobs=(job("a", 0, 2, linear(2)),))
    assert expect_running_s(small) == pytest.approx(5 * DAY_S, rel=0.05)
    assert expect_running_s(replace(small, jobs=(job("a", most=1),))) == pytest.approx(10 * DAY_S, rel=0.05)


def test_repairs_bring_the_next_plan_nearer() -> None:
    assert expect_running_s(replace(CLUSTER, repairs_per_day=3.0)) == pytest.approx(DAY_S / 4, rel=0.05)


def test_without_failures_nobody_plans_for_ever() -> None:
    calm = Cluster(nodes(4, rate=0.0), (job("a", 0, 4),))
    assert expect_running_s(calm) == pytest.approx(28 * DAY_S, rel=0.05)
    assert expect_running_s(Cluster((), ())) == pytest.approx(28 * DAY_S, rel=0.05)
