"""Answers are kept for the cluster as it is, worked out again when it changes, and never for most of the time."""

from dataclasses import replace

import pytest

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from planner.recovery.allocation.events import Event, apply
from planner.recovery.allocation.jobs import Cluster, Job, Node, Ways
from planner.recovery.allocation.planning import plan_allocation
from planner.recovery.allocation.throughput import tabulate
from planner.recovery.allocation.warm import WarmAnswers

HOUR_NS = 3600 * NS_PER_S


def cluster(*held: int, free: int = 1, age_s: float = 60.0) -> Cluster:
    """Return jobs on so many nodes each, with some nodes free."""
    nodes = tuple(Node(f"h{number}", failures_per_day=0.01) for number in range(sum(held) + free))
    jobs, first = list[Job](), 0
    for count in held:
        names = tuple(node.name for node in nodes[first : first + count])
        table = tabulate({size: float(size) for size in range(1, 9)})
        jobs.append(Job(f"j{len(jobs)}", table, names, may_stop=False, ways=Ways(60.0, age_s)))
        first += count
    return Cluster(nodes, tuple(jobs))


@pytest.mark.parametrize("event", [Event("node_lost", "h0"), Event("node_lost", "h5"), Event("job_ends", "j1")])
def test_looked_up_answer_is_the_solved_one(event: Event) -> None:
    before, warm = cluster(3, 2), WarmAnswers()
    warm.keep(before, 0)
    after = apply(before, event)
    found, anew = warm.answer(before, event, after, 7 * NS_PER_S), plan_allocation(after)
    assert (found.jobs, found.value) == (anew.jobs, anew.value)
    assert found.reason.endswith("(looked up: worked out 7 s before the event)")


def test_node_that_nobody_knew_is_planned_for_like_any() -> None:
    before, warm = cluster(3, 2), WarmAnswers()
    warm.keep(before, 0)
    joined = Event("node_joins", "h99")
    after = apply(before, joined)
    found = warm.answer(before, joined, after, 0)
    assert found.jobs == plan_allocation(after).jobs
    assert "looked up" in found.reason


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


def test_without_an_event_or_before_the_first_look_it_is_solved() -> None:
    now = cluster(3, 2)
    assert WarmAnswers().answer(now, None, now, 0).jobs == plan_allocation(now).jobs


def test_working_out_takes_a_tenth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 30.0, 100.0, 130.0])
    monkeypatch.setattr("planner.recovery.allocation.warm.time.perf_counter", lambda: next(moments))
    warm = WarmAnswers()
    assert warm.keep(cluster(3, 2), 0)
    assert not warm.keep(cluster(4, 2), 299 * NS_PER_S), "it took 30 s, and 300 s must pass"
    assert warm.keep(cluster(4, 2), 301 * NS_PER_S)


def test_cluster_without_jobs_or_too_large_is_not_worked_out() -> None:
    many = tuple(Node(f"n{number}") for number in range(10_001))
    assert not WarmAnswers().keep(cluster(), 0)
    assert not WarmAnswers().keep(replace(cluster(1, 1), nodes=many), 0)


def test_too_few_nodes_are_said() -> None:
    before = replace(cluster(2, 2, free=0), jobs=tuple(replace(job, least=2) for job in cluster(2, 2).jobs))
    warm, event = WarmAnswers(), Event("node_lost", "h0")
    warm.keep(before, 0)
    with pytest.raises(BadInput, match="more than the 3 nodes"):
        warm.answer(before, event, apply(before, event), 0)


def test_what_contradicts_itself_is_not_worked_out() -> None:
    twice = replace(cluster(2, 2), jobs=tuple(replace(job, nodes=("h0",)) for job in cluster(2, 2).jobs))
    assert not WarmAnswers().keep(twice, 0)


def test_event_beside_which_something_else_happened_is_solved() -> None:
    before, warm, event = cluster(3, 2), WarmAnswers(), Event("node_lost", "h5")
    warm.keep(before, 0)
    after = apply(before, event)
    heavier = replace(after, jobs=tuple(replace(job, weight=2.0) for job in after.jobs))
    assert "looked up" not in warm.answer(before, event, heavier, 0).reason
