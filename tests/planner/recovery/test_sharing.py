"""Where throughput by nodes is known, a decision says how all jobs would best share what is left."""

from lockstep.decision import AllJobs
from planner.recovery.allocation.warm import WarmAnswers
from planner.recovery.facts import Durations, JobFacts, Resume
from planner.recovery.sharing import build_cluster, describe, share_nodes
from tests.planner.recovery.build import cluster, crash, job, situation

LINEAR = {count: 10.0 * count for count in range(1, 11)}
SAVED = Resume("/ckpt/chat", "dcp", 60.0, 5.0)


def shared(of: JobFacts, *others: JobFacts, spares: int = 2) -> AllJobs | None:
    free = tuple(f"h{number}" for number in range(8, 8 + spares))
    plan = share_nodes(situation(crash(), of, cluster(spares=free[:1], free=free[1:])), others, WarmAnswers(), 0)
    return describe(plan) if plan else None


def other(**changes: object) -> JobFacts:
    fields = {"job": "chat", "nodes": ("h8", "h9"), "gpus": 16, "resume": SAVED, "throughput": LINEAR}
    return JobFacts(**(fields | changes))  # type: ignore[arg-type]  # whatever a test replaces


def test_without_tables_there_is_no_advice() -> None:
    assert shared(job()) is None


def test_lost_node_is_replaced_by_an_idle_one() -> None:
    found = shared(job(throughput=LINEAR, min_nodes=2))
    assert found is not None
    (shift,) = found.shifts
    assert (shift.job, shift.nodes_before, shift.nodes_after) == ("train", 8, 9)
    assert found.waf_after == 90.0


def test_job_that_is_worth_more_gets_nodes_of_one_that_is_worth_less() -> None:
    light = other(weight=0.1, min_nodes=1)
    found = shared(job(throughput=LINEAR), light)
    assert found is not None
    assert {shift.job: shift.nodes_after for shift in found.shifts} == {"train": 8, "chat": 1}
    assert found.reason


def test_job_without_a_table_or_a_checkpoint_keeps_its_nodes() -> None:
    for pinned in (other(throughput={}, weight=0.1), other(resume=None, weight=0.1)):
        found = shared(job(throughput=LINEAR), pinned)
        assert found is not None
        assert [shift.job for shift in found.shifts] == ["train"]


def test_contradictions_give_no_advice() -> None:
    assert shared(job(throughput=LINEAR), other(nodes=("h7", "h8"))) is None, "h7 is held twice"


def test_host_that_nobody_is_known_to_have_freed_is_left_alone() -> None:
    found = shared(job(throughput=LINEAR, min_nodes=2), spares=0)
    assert found is not None
    assert [(shift.nodes_before, shift.nodes_after) for shift in found.shifts] == [(8, 7)]


def test_tables_of_two_units_are_brought_to_one() -> None:
    measured = other(throughput={1: 8.0, 2: 16.0}, is_in_gpus=True, measured=frozenset({2}))
    planned = build_cluster([job(throughput=LINEAR), measured], cluster(), Durations())
    chat, train = planned.jobs
    assert (chat.id, chat.throughput.at(2), chat.throughput.measured) == ("chat", 16.0, frozenset({2}))
    assert train.throughput.at(8) == 64.0, "80 of the site's units are what its 64 GPUs do"


def test_job_that_is_pinned_keeps_its_nodes() -> None:
    (train,) = build_cluster([job(throughput=LINEAR)], cluster(), Durations(), pinned=["train"]).jobs
    assert train.throughput.counts == (8,)


def test_planned_move_costs_the_work_since_the_checkpoint_unless_the_next_is_near() -> None:
    blind, told = (
        build_cluster([job(throughput=LINEAR, next_save_s=wait)], cluster(), Durations()).jobs[0].ways
        for wait in (None, 60.0)
    )
    assert (blind.save_s, told.save_s, told.restart_s) == (600.0, 0.0, 150.0)


def test_answer_that_was_worked_out_before_is_looked_up_and_says_so() -> None:
    of, around = job(throughput=LINEAR), cluster(spares=("h8",))
    warm = WarmAnswers()
    assert warm.keep(build_cluster([of], around, Durations()), now_ns=0)
    found, anew = (share_nodes(situation(crash(), of, around), [], each, 5 * 10**9) for each in (warm, WarmAnswers()))
    assert found is not None
    assert anew is not None
    assert found.jobs == anew.jobs
    assert found.reason == f"{anew.reason} (looked up: worked out 5 s before the event)"


def test_job_of_unknown_work_is_not_compared_with_what_a_site_counts() -> None:
    hit = job(nodes=("h0", "h1", "h3"), gpus=24, min_nodes=1)  # without a table it counts as its GPUs
    told = other(nodes=("h5", "h6"), throughput={1: 0.9, 2: 1.8}, weight=5.0)  # steps a second
    plan = share_nodes(situation(crash(), hit, cluster(spares=())), [told], WarmAnswers(), 0)
    assert plan is not None
    assert {each.job: (each.before, each.after) for each in plan.jobs} == {"chat": (2, 2), "train": (3, 2)}
    assert "the 1 healthy jobs stay as they are" in plan.reason
