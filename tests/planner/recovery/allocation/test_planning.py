"""Healthy jobs are left alone where failures are frequent, and moved where they are rare; the plan is never worse."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from lockstep.errors import BadInput
from planner.recovery.allocation.events import Event, apply
from planner.recovery.allocation.jobs import Cluster, Job, Ways, check_cluster
from planner.recovery.allocation.planning import plan_allocation
from planner.recovery.allocation.throughput import tabulate
from tests.planner.recovery.allocation.clusters import clusters, job, linear, nodes, without

SLOW = Ways(restart_s=600, lost_work_s=900, save_s=60)
PAIR = tuple(
    job(name, first, 8, linear(16, share=0.6), weight=weight, ways=SLOW)
    for name, first, weight in (("a", 0, 1.5), ("b", 8, 1.0))
)


def after_a_loss(rate: float) -> Cluster:
    return apply(Cluster(nodes(16, rate=rate), PAIR), Event("node_lost", "h3"))


def test_with_rare_failures_a_healthy_job_gives_nodes_to_one_that_does_more_with_them() -> None:
    plan = plan_allocation(after_a_loss(rate=0.001))
    heavy, light = plan.jobs
    assert heavy.after > 8
    assert (light.change, light.after < 8) == ("reconfigure", True)
    assert "changing 1 of 1 healthy jobs pays within the" in plan.reason


def test_with_frequent_failures_healthy_jobs_are_not_touched() -> None:
    plan = plan_allocation(after_a_loss(rate=10.0))
    heavy, light = plan.jobs
    assert (heavy.change, heavy.after) == ("reconfigure", 7)
    assert (light.change, light.after, light.downtime_s) == ("none", 8, 0.0)
    assert "the 1 healthy jobs stay as they are, changing them would not pay within the" in plan.reason


def test_a_spare_replaces_what_was_lost() -> None:
    plan = plan_allocation(Cluster(without(nodes(9), "h3"), (job("a", 0, 8, linear(8), ways=Ways(peer_s=15)),)))
    assert (plan.jobs[0].change, plan.jobs[0].downtime_s, plan.jobs[0].placement.taken) == ("replace", 15.0, ("h8",))
    assert plan.waf_after == plan.waf_before
    assert plan.reason.startswith("a 8 -> 8 nodes by replace:")


def test_re_routing_wins_where_it_costs_little() -> None:
    ways = replace(SLOW, recycle_s=8.0, recycled={1: 640.0})
    one = job("a", 0, 8, tabulate({4: 400.0, 8: 700.0}), ways=ways)
    plan = plan_allocation(Cluster(without(nodes(8), "h3"), (one,)))
    assert (plan.jobs[0].change, plan.jobs[0].after, plan.jobs[0].waf_after) == ("recycle", 7, 640.0)


@pytest.mark.parametrize(("measured", "is_measured"), [([8], True), ([4], False)])
def test_a_plan_says_whether_its_throughput_was_seen(measured: list[int], is_measured: bool) -> None:
    one = job("a", 0, 8, tabulate({4: 400.0, 8: 700.0}, measured))
    assert plan_allocation(Cluster(nodes(8), (one,))).jobs[0].is_measured is is_measured


def test_when_all_is_well_nothing_changes() -> None:
    plan = plan_allocation(Cluster(nodes(8), (job("a", 0, 8, linear(8)),)))
    assert plan.jobs[0].change == "none"
    assert plan.reason.startswith("nothing changes: no other plan does more work within the")


def test_alternatives_say_what_doing_nothing_costs() -> None:
    plan = plan_allocation(after_a_loss(rate=0.001))
    nothing, hit_only = plan.alternatives
    assert (nothing.name, nothing.changed) == ("do nothing", 1)
    assert nothing.waf_after == PAIR[1].work_on(8)
    assert hit_only.reason.startswith("no healthy job is touched; worth 9")
    assert nothing.value < hit_only.value < plan.value


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_no_alternative_is_better_than_the_plan(cluster: Cluster) -> None:
    try:
        plan = plan_allocation(cluster)
    except BadInput:
        return
    assert all(other.value <= plan.value + 1e-9 * abs(plan.value) + 1e-6 for other in plan.alternatives)


def test_jobs_that_need_more_than_there_is_are_refused_in_a_sentence() -> None:
    stubborn = job("a", 0, 8, least=8, may_stop=False)
    with pytest.raises(BadInput, match="the jobs need at least 8 nodes together, and 7 can be used"):
        plan_allocation(Cluster(without(nodes(8), "h0"), (stubborn,)))


@pytest.mark.parametrize(
    ("jobs", "sentence"),
    [
        ((job("a", 0, 2), job("b", 1, 2)), "node h1 is held 2 times"),
        ((job("a"), job("a")), "job a is listed 2 times"),
        ((job("a", weight=0.0),), "job a has weight 0.0"),
        ((job("a", least=4, most=3),), "job a may have 4 to 3 nodes"),
        ((job("a", nodes_per_replica=0),), "job a has 0 nodes in each replica"),
        ((job("a", ways=Ways(peer_s=-1.0)),), "job a has peer_s -1.0"),
        ((job("a", least=40, may_stop=False),), "job a may not stop, and its table holds no count"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(jobs: tuple[Job, ...], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        plan_allocation(Cluster(nodes(4), jobs))


def test_nodes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="node h0 is listed 2 times"):
        check_cluster(Cluster((*nodes(1), *nodes(1)), ()))
    with pytest.raises(BadInput, match="node h0 has -1 failures per day"):
        check_cluster(Cluster(nodes(1, rate=-1), ()))
    with pytest.raises(BadInput, match="nan repairs per day"):
        check_cluster(Cluster((), (), repairs_per_day=float("nan")))


def test_alternative_that_would_need_more_nodes_than_there_are_is_left_out() -> None:
    rigid = tuple(replace(each, least=8, may_stop=False) if each.id == "a" else each for each in PAIR)
    plan = plan_allocation(apply(Cluster(nodes(16), rigid), Event("node_lost", "h3")))
    assert {each.job: each.after for each in plan.jobs}["a"] >= 8, "b gives what a cannot do without"
    assert [each.name for each in plan.alternatives] == []
