"""A process that keeps the others is named with what happened to it."""

import pytest

from analyzer.finding import Finding
from tests.analyzer.hangs.build import Job, event, line, world
from tests.builders import SECOND, T0

ABSENT = line(2, (4, 4, 4))  # rank 2 is on host h1, with GPU 0


def only(job: Job) -> Finding:
    (finding,) = job.find()
    assert finding.is_certain
    return finding


def test_rank_that_never_came_is_named_by_its_host_with_rank_and_gpu_beside() -> None:
    finding = only(Job(lines=world(r2=ABSENT)))
    assert (finding.fault_class, finding.component, finding.ambiguous_with) == (
        "noncomm_hang",
        "host:h1",
        ("gpu:h1/0",),
    )
    assert finding.reason == "rank 2 on h1 never entered what 3 ranks wait in for 10 s: look at that process"
    (told,) = finding.evidence
    assert (told["ranks"], told["gpus"], told["waited_for"], told["enqueued"]) == ([2], ["gpu:h1/0"], 5, 4)
    assert (finding.ranks_waiting, finding.since_ns, finding.may_isolate) == (3, T0 - 10 * SECOND, False)


def test_ranks_of_one_host_are_named_together() -> None:
    finding = only(Job(lines=world(r2=ABSENT, r3=line(3, (4, 4, 4)))))
    assert finding.component == "host:h1"
    assert finding.evidence[0]["ranks"] == [2, 3]


def test_gpu_that_begins_nothing_of_what_is_queued_is_named() -> None:
    finding = only(Job(lines=world(r2=line(2, (6, 4, 4)))))
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "gpu:h1/0")
    assert finding.ambiguous_with == ("host:h1",)


def test_host_that_runs_ahead_of_a_stuck_gpu_is_not_taken_for_late() -> None:
    finding = only(Job(lines=world(r2=line(2, (4, 3, 3)))))
    assert finding.component == "gpu:h1/0"


@pytest.mark.parametrize("kind", ["process_exit", "process_gone", "python_exception"])
def test_process_that_ended_is_a_crash_of_its_rank(kind: str) -> None:
    finding = only(Job(lines=world(r2=ABSENT), facts={"happenings": (event(kind, "h1", "rank 2 (pid 7) died"),)}))
    assert (finding.fault_class, finding.component) == ("crash", "rank:2")
    assert finding.evidence[0]["message"] == "rank 2 (pid 7) died"


def test_event_of_another_rank_or_long_before_explains_nothing() -> None:
    others = (
        event("process_exit", "h1", "rank 3 (pid 8) died"),
        event("process_exit", "h1", "rank 2 died", ago_s=99),
    )
    assert only(Job(lines=world(r2=ABSENT), facts={"happenings": others})).fault_class == "noncomm_hang"


def test_stopped_process_is_named_even_inside_the_operation() -> None:
    happenings = (event("process_stopped", "h0", "rank 1 (pid 3) was stopped by a signal"),)
    finding = only(Job(lines=world(), facts={"happenings": happenings}))
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "host:h0")
    assert "was stopped by a signal" in finding.reason


def test_process_that_goes_on_is_not_stopped() -> None:
    happenings = (
        event("process_stopped", "h0", "rank 1 was stopped by a signal", ago_s=9),
        event("process_continued", "h0", "rank 1 goes on", ago_s=8),
    )
    assert Job(lines=world(), facts={"happenings": happenings}).find() == []


def test_gpu_with_an_xid_is_a_crash_of_that_gpu() -> None:
    happenings = (event("xid", "h1", "fell off the bus", component="gpu:h1/0"),)
    finding = only(Job(lines=world(r2=ABSENT), facts={"happenings": happenings}))
    assert (finding.fault_class, finding.component, finding.may_isolate) == ("crash", "gpu:h1/0", True)


def test_host_that_fell_silent_with_the_standstill_is_gone() -> None:
    facts = {"heard_ns": {"h0": T0, "h1": T0 - 9 * SECOND}}
    finding = only(Job(lines=world()[:2], facts=facts))
    assert (finding.fault_class, finding.component, finding.may_isolate) == ("crash", "host:h1", True)
    assert finding.reason == "nothing is heard of h1 for 9 s, and everybody else waits for its ranks"


def test_host_that_was_silent_long_before_does_not_hide_another_cause() -> None:
    lost = event("link_down", "h0", component="nic:h0/eth0")
    facts = {"heard_ns": {"h0": T0, "h1": T0 - 99 * SECOND}, "happenings": (lost,)}
    assert only(Job(lines=world()[:2], facts=facts)).component == "nic:h0/eth0"


def test_host_that_was_silent_long_before_is_named_with_doubt() -> None:
    finding = only(Job(lines=world()[:2], facts={"heard_ns": {"h0": T0, "h1": T0 - 99 * SECOND}}))
    assert (finding.fault_class, finding.likelihood < 0.5, finding.may_isolate) == ("noncomm_hang", True, False)
