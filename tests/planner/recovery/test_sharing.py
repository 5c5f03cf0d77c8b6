"""Where throughput by nodes is known, a decision says how all jobs would best share what is left."""

from lockstep.decision import AllJobs
from planner.recovery.facts import JobFacts, Resume
from planner.recovery.sharing import share_nodes
from tests.planner.recovery.build import cluster, crash, job, situation

LINEAR = {count: 10.0 * count for count in range(1, 11)}
SAVED = Resume("/ckpt/chat", "dcp", 60.0, 5.0)


def shared(of: JobFacts, *others: JobFacts, spares: int = 2) -> AllJobs | None:
    hosts = frozenset(f"h{number}" for number in range(8 + spares))
    return share_nodes(situation(crash(), of, cluster(hosts=hosts, spares=())), others)


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
