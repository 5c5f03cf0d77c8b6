"""Healthy jobs are left alone where failures are frequent, and moved where they are rare; the plan is never worse."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from planner.allocation.allocate import Placement, WarmAnswers, finish, place_jobs, plan_allocation, solve_now
from planner.allocation.cluster import Cluster, Event, Job, Node, Recovery, apply, check_cluster, list_events
from planner.allocation.foresight import foresee
from planner.allocation.gains import Change
from planner.allocation.solve import solve
from planner.allocation.throughput import tabulate
from tests.planner.allocation.clusters import clusters, job, linear, nodes, without

SLOW = Recovery(restart_s=600, lost_work_s=900, save_s=60)
PAIR = tuple(
    job(name, first, 8, linear(16, share=0.6), weight=weight, recovery=SLOW)
    for name, first, weight in (("a", 0, 1.5), ("b", 8, 1.0))
)


def after_a_loss(rate: float) -> Cluster:
    return apply(Cluster(nodes(16, rate=rate), PAIR), Event("node_lost", "h3"))


def test_healthy_jobs_give_nodes_where_failures_are_rare_and_are_not_touched_where_they_are_frequent() -> None:
    plan = plan_allocation(after_a_loss(rate=0.001))
    heavy, light = plan.jobs
    assert heavy.after > 8
    assert (light.change, light.after < 8) == ("reconfigure", True)
    assert "changing 1 of 1 healthy jobs pays within the" in plan.reason
    nothing, hit_only = plan.alternatives
    assert (nothing.name, nothing.changed) == ("do nothing", 1)
    assert nothing.throughput_after == PAIR[1].work_on(8)
    assert hit_only.reason.startswith("no healthy job is touched; worth 9")
    assert nothing.value < hit_only.value < plan.value
    plan = plan_allocation(after_a_loss(rate=10.0))
    heavy, light = plan.jobs
    assert (heavy.change, heavy.after) == ("reconfigure", 7)
    assert (light.change, light.after, light.downtime_s) == ("none", 8, 0.0)
    assert "the 1 healthy jobs stay as they are, changing them would not pay within the" in plan.reason


def test_a_spare_replaces_what_was_lost_and_re_routing_wins_where_it_costs_little() -> None:
    plan = plan_allocation(
        Cluster(without(nodes(9), "h3"), (job("a", 0, 8, linear(8), recovery=Recovery(peer_s=15)),))
    )
    assert (plan.jobs[0].change, plan.jobs[0].downtime_s, plan.jobs[0].placement.taken) == ("replace", 15.0, ("h8",))
    assert plan.throughput_after == plan.throughput_before
    assert plan.reason.startswith("a 8 -> 8 nodes by replace:")
    ways = replace(SLOW, recycle_s=8.0, recycled={1: 640.0})
    one = job("a", 0, 8, tabulate({4: 400.0, 8: 700.0}), recovery=ways)
    plan = plan_allocation(Cluster(without(nodes(8), "h3"), (one,)))
    assert (plan.jobs[0].change, plan.jobs[0].after, plan.jobs[0].throughput_after) == ("recycle", 7, 640.0)


def test_when_all_is_well_nothing_changes_and_a_plan_says_whether_its_throughput_was_seen() -> None:
    for measured, is_measured in (([8], True), ([4], False)):
        plan = plan_allocation(Cluster(nodes(8), (job("a", 0, 8, tabulate({4: 400.0, 8: 700.0}, measured)),)))
        assert (plan.jobs[0].change, plan.jobs[0].is_measured) == ("none", is_measured)
        assert plan.reason.startswith("nothing changes: no other plan does more work within the")


@pytest.mark.parametrize(
    ("jobs", "sentence"),
    [
        ((job("c", least=8, may_stop=False),), "the jobs need at least 8 nodes together, and 4 can be used"),
        ((job("a", 0, 2), job("b", 1, 2)), "node h1 is held 2 times"),
        ((job("a"), job("a")), "job a is listed 2 times"),
        ((job("a", weight=0.0),), "job a has weight 0.0"),
        ((job("a", least=4, most=3),), "job a may have 4 to 3 nodes"),
        ((job("a", nodes_per_replica=0),), "job a has 0 nodes in each replica"),
        ((job("a", recovery=Recovery(peer_s=-1.0)),), "job a has peer_s -1.0"),
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


def placed(cluster: Cluster, change: Change = "reconfigure", **counts: int) -> dict[str, Placement]:
    return place_jobs(cluster, counts, dict.fromkeys(counts, change))


def with_rate(those: tuple[Node, ...], rate: float, *names: str) -> tuple[Node, ...]:
    return tuple(replace(node, failures_per_day=rate) if node.name in names else node for node in those)


@given(clusters())
def test_no_node_is_used_twice_or_while_unusable_and_all_that_can_stay_stays(cluster: Cluster) -> None:
    try:
        plan = plan_allocation(cluster)
    except BadInput:
        return
    assert all(other.value <= plan.value + 1e-9 * abs(plan.value) + 1e-6 for other in plan.alternatives)
    used = [name for one in plan.jobs for name in one.placement.nodes]
    assert len(used) == len(set(used))
    assert not any(cluster.is_lost(name) for name in used)
    for one in plan.jobs:
        live = {name for name in cluster.job(one.job).nodes if not cluster.is_lost(name)}
        kept = live & set(one.placement.nodes)
        assert len(one.placement.nodes) == one.after
        assert len(kept) == min(len(live), one.after)
        assert set(one.placement.taken) == set(one.placement.nodes) - kept
        assert set(one.placement.reasons) == set(one.placement.nodes) | set(cluster.job(one.job).nodes)


def test_a_lost_node_is_replaced_on_its_leaf_then_in_its_block() -> None:
    cluster = Cluster(without(nodes(12), "h1"), (job("a", 0, 3),))
    found = placed(cluster, "replace", a=3)["a"]
    assert found.nodes == ("h0", "h3", "h2")
    assert found.reasons["h3"] == "taken: on leaf0 with 2 of a, 0.01 failures a day"
    assert found.reasons["h1"] == "lost: it cannot be used"
    assert found.reasons["h0"] == "kept: a runs there"
    cluster = Cluster(nodes(16), (job("a", 8, 4),))
    found = placed(cluster, a=5)["a"]
    assert found.taken == ("h12",)
    assert found.reasons["h12"] == "taken: in block1 with 4 of a, 0.01 failures a day"
    cluster = Cluster(without(nodes(12), "h4", "h5"), (job("a"),))
    found = placed(cluster, "start", a=2)["a"]
    assert found.nodes == ("h6", "h7")
    assert found.reasons["h6"].startswith("taken: leaf1 fits best")


def test_nodes_that_fail_often_are_taken_last_and_given_up_first_then_stragglers() -> None:
    cluster = Cluster(with_rate(nodes(8), 0.5, "h3"), (job("a", 0, 3),))
    assert placed(cluster, a=4)["a"].taken == ("h4",)
    all_of_them = placed(cluster, a=8)["a"]
    assert all_of_them.taken[-1] == "h3"
    assert all_of_them.reasons["h3"] == "taken: nothing better is left, 0.5 failures a day is much"
    cluster = Cluster(with_rate(nodes(8), 0.5, "h2"), (job("a", 0, 5),))
    found = placed(cluster, a=3)["a"]
    assert found.nodes == ("h0", "h1", "h3")
    assert found.reasons["h2"] == "given up: it fails 0.5 times a day, more than 0.03"
    assert found.reasons["h4"] == "given up: fewest other nodes of the job are near it on leaf1"
    cluster = Cluster(without(nodes(8), "h2"), (job("a", 0, 6, nodes_per_replica=2),))
    found = placed(cluster, "drop_replica", a=4)["a"]
    assert found.nodes == ("h0", "h1", "h4", "h5")
    assert found.reasons["h3"] == "given up: its replica lost a node"


def test_what_one_job_gives_up_another_can_have_but_no_more_than_there_is() -> None:
    cluster = Cluster(nodes(8), (job("a", 0, 6), job("b", 6, 2)))
    found = placed(cluster, a=4, b=4)
    assert set(found["a"].given_up) == set(found["b"].taken) == {"h4", "h5"}
    assert found["b"].nodes == ("h6", "h7", "h4", "h5")
    with pytest.raises(BadInput, match="9 nodes are asked for, and 8 can be used"):
        placed(Cluster(nodes(8), (job("a"),)), a=9)


HOUR_NS = 3600 * NS_PER_S
UNKNOWN = Event("node_joins", "h99")


def cluster(*held: int, free: int = 1, age_s: float = 60.0) -> Cluster:
    nodes = tuple(Node(f"h{number}", failures_per_day=0.01) for number in range(sum(held) + free))
    jobs, first = list[Job](), 0
    for count in held:
        names = tuple(node.name for node in nodes[first : first + count])
        table = tabulate({size: float(size) for size in range(1, 9)})
        jobs.append(Job(f"j{len(jobs)}", table, names, may_stop=False, recovery=Recovery(60.0, age_s)))
        first += count
    return Cluster(nodes, tuple(jobs))


@pytest.mark.parametrize(
    "event", [Event("node_lost", "h0"), Event("node_lost", "h5"), Event("job_ends", "j1"), UNKNOWN]
)
def test_looked_up_answer_is_the_solved_one(event: Event) -> None:
    before, warm = cluster(3, 2), WarmAnswers()
    warm.keep(before, 0)
    after = apply(before, event)
    found, anew = warm.answer(before, event, after, 7 * NS_PER_S), plan_allocation(after)
    assert (found.jobs, found.value) == (anew.jobs, anew.value)
    assert found.reason.endswith("(looked up: worked out 7 s before the event)")


def test_age_of_checkpoints_alone_changes_nothing() -> None:
    warm = WarmAnswers()
    assert warm.keep(cluster(3, 2), 0)
    assert not warm.keep(cluster(3, 2, age_s=90.0), 200 * NS_PER_S)
    assert warm.keep(cluster(3, 2, age_s=90.0), 301 * NS_PER_S), "by then their cost is another one"


def test_changed_cluster_is_worked_out_again_and_until_then_solved() -> None:
    warm, event = WarmAnswers(), Event("node_lost", "h0")
    warm.keep(cluster(3, 2), 0)
    other = cluster(4, 2)
    assert "looked up" not in warm.answer(other, event, apply(other, event), 0).reason
    assert warm.keep(other, HOUR_NS)
    assert "looked up" in warm.answer(other, event, apply(other, event), 0).reason
    now = cluster(3, 2)
    assert WarmAnswers().answer(now, None, now, 0).jobs == plan_allocation(now).jobs
    warm.keep(now, 2 * HOUR_NS)
    after = apply(now, event)
    heavier = replace(after, jobs=tuple(replace(job, weight=2.0) for job in after.jobs))
    assert "looked up" not in warm.answer(now, event, heavier, 0).reason


def test_working_out_takes_a_tenth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    timestamps = iter([0.0, 30.0, 100.0, 130.0])
    monkeypatch.setattr("planner.allocation.allocate.time.perf_counter", lambda: next(timestamps))
    warm = WarmAnswers()
    assert warm.keep(cluster(3, 2), 0)
    assert not warm.keep(cluster(4, 2), 299 * NS_PER_S), "it took 30 s, and 300 s must pass"
    assert warm.keep(cluster(4, 2), 301 * NS_PER_S)


def test_cluster_without_jobs_too_large_or_contradicting_itself_is_not_worked_out() -> None:
    many = tuple(Node(f"n{number}") for number in range(10_001))
    assert not WarmAnswers().keep(cluster(), 0)
    assert not WarmAnswers().keep(replace(cluster(1, 1), nodes=many), 0)
    twice = replace(cluster(2, 2), jobs=tuple(replace(job, nodes=("h0",)) for job in cluster(2, 2).jobs))
    assert not WarmAnswers().keep(twice, 0)


def test_too_few_nodes_are_said() -> None:
    before = replace(cluster(2, 2, free=0), jobs=tuple(replace(job, least=2) for job in cluster(2, 2).jobs))
    warm, event = WarmAnswers(), Event("node_lost", "h0")
    warm.keep(before, 0)
    with pytest.raises(BadInput, match="more than the 3 nodes"):
        warm.answer(before, event, apply(before, event), 0)


CLUSTER = Cluster(nodes(12), (job("a", 0, 5), job("b", 5, 4, weight=2.0)), (job("c", weight=5.0),))


@given(clusters())
def test_every_entry_equals_solving_anew(cluster: Cluster) -> None:
    table = foresee(cluster)
    for event in list_events(cluster):
        seen, after = table.lookup(event), apply(cluster, event)
        try:
            anew = solve_now(after)
        except BadInput:
            assert seen.solution is None
            continue
        assert seen.solution is not None
        assert anew.solution is not None
        assert seen.running_s == anew.running_s
        assert seen.solution.value == pytest.approx(anew.solution.value, rel=1e-9, abs=1e-6)
        assert seen.solution.counts.sum() <= len(after.usable)
        assert [one.job.id for one in seen.choices] == [one.id for one in after.jobs]
        assert [one.state for one in seen.choices] == [one.state for one in anew.choices]


def test_jobs_that_could_not_go_on_and_events_that_cannot_happen_are_refused() -> None:
    tight = Cluster(nodes(6), (job("a", 0, 6, least=6, may_stop=False),))
    seen = foresee(tight).lookup(Event("node_lost", "h2"))
    assert seen.solution is None
    with pytest.raises(BadInput, match="more than the 5 nodes that can be used"):
        finish(apply(tight, Event("node_lost", "h2")), seen)
    rigid = (job(name, at, 2, least=6, may_stop=False) for name, at in (("a", 0), ("b", 2)))
    greedy = Cluster(nodes(6), (*rigid, job("c", 4, 2)))
    assert foresee(greedy).lookup(Event("node_lost", "h2")).solution is None
    assert foresee(greedy).lookup(Event("job_ends", "a")).solution is not None
    table = foresee(replace(CLUSTER, nodes=without(CLUSTER.nodes, "h11")))
    with pytest.raises(BadInput, match="node_lost:h11 cannot be the next event"):
        table.lookup(Event("node_lost", "h11"))


@dataclass(frozen=True)
class Table:
    counts: np.ndarray
    gains: np.ndarray


def table(choices: dict[int, float]) -> Table:
    counts = sorted(choices)
    return Table(np.array(counts), np.array([choices[count] for count in counts], float))


def menus(most: int = 7) -> st.SearchStrategy[list[dict[int, float]]]:
    gain = st.floats(-100, 100) | st.integers(-3, 3).map(float)
    return st.lists(st.dictionaries(st.integers(0, most), gain, min_size=1, max_size=most), max_size=4)


def best_by_force(choices: list[dict[int, float]], capacity: int) -> float | None:
    sums = [
        sum(menu[count] for menu, count in zip(choices, counts, strict=True))
        for counts in product(*choices)
        if sum(counts) <= capacity
    ]
    return max(sums, default=None)


@given(menus(), st.integers(0, 20), st.booleans())
def test_no_combination_beats_the_optimum(choices: list[dict[int, float]], capacity: int, prune: bool) -> None:
    best = best_by_force(choices, capacity)
    if best is None:
        with pytest.raises(BadInput, match=f"and {capacity} can be used"):
            solve([table(menu) for menu in choices], capacity, prune)
        return
    found = solve([table(menu) for menu in choices], capacity, prune)
    assert found.value == pytest.approx(best, abs=1e-9)
    assert found.counts.sum() <= capacity
    assert found.value == pytest.approx(sum(menu[int(k)] for menu, k in zip(choices, found.counts, strict=True)))


def test_jobs_that_need_more_than_there_is_are_refused_in_a_sentence() -> None:
    with pytest.raises(BadInput, match="need at least 9 nodes together, and 8 can be used"):
        solve([table({4: 1.0}), table({5: 1.0, 6: 2.0})], 8)
