"""A process that keeps the others is named with what happened to it."""

from dataclasses import replace
from signal import Signals

import pytest

from analyzer.hang.facts import HostEvent
from analyzer.windows.window import Finding
from tests.analyzer.hang.build import Job, Line, event, line, reported, standing, world
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
    finding = only(Job(lines=world(r2=ABSENT, r3=line(3, (4, 4, 4)))))
    assert (finding.component, finding.evidence[0]["ranks"]) == ("host:h1", [2, 3])


def test_gpu_that_begins_nothing_of_what_is_queued_is_named() -> None:
    finding = only(Job(lines=world(r2=line(2, (6, 4, 4)))))
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "gpu:h1/0")
    assert finding.ambiguous_with == ("host:h1",)
    finding = only(Job(lines=world(r2=line(2, (4, 3, 3)))))
    assert finding.component == "gpu:h1/0"
    events = (event("xid", "h1", "fell off the bus", component="gpu:h1/0"),)
    finding = only(Job(lines=world(r2=ABSENT), facts={"events": events}))
    assert (finding.fault_class, finding.component, finding.may_isolate) == ("crash", "gpu:h1/0", True)


@pytest.mark.parametrize("kind", ["process_exit", "process_gone", "python_exception"])
def test_process_that_ended_is_a_crash_of_its_rank(kind: str) -> None:
    finding = only(Job(lines=world(r2=ABSENT), facts={"events": (event(kind, "h1", "died", rank=2),)}))
    assert (finding.fault_class, finding.component, finding.evidence[0]["message"]) == ("crash", "rank:2", "died")


def test_event_of_another_rank_or_long_before_explains_nothing() -> None:
    others = (event("process_exit", "h1", "died", rank=3), event("process_exit", "h1", "died", rank=2, ago_s=99))
    assert only(Job(lines=world(r2=ABSENT), facts={"events": others})).fault_class == "noncomm_hang"


def test_stopped_process_is_named_even_inside_the_operation_until_it_goes_on() -> None:
    events = (event("process_stopped", "h0", "was stopped by a signal", rank=1),)
    finding = only(Job(lines=world(), facts={"events": events}))
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "host:h0")
    assert "was stopped by a signal" in finding.reason
    goes_on = event("process_continued", "h0", "goes on", rank=1, ago_s=8)
    assert Job(lines=world(), facts={"events": (*events, goes_on)}).find() == []


def test_host_that_fell_silent_is_gone_or_doubtful_or_hides_no_other_cause() -> None:
    finding = only(Job(lines=world()[:2], facts={"reports": reported(h0=0, h1=9)}))
    assert (finding.fault_class, finding.component, finding.may_isolate) == ("crash", "host:h1", True)
    assert finding.reason == "no telemetry from h1 for 9 s, and everybody else waits for its ranks"
    lost = event("link_down", "h0", component="nic:h0/eth0")
    silent = {"reports": reported(h0=0, h1=99)}
    assert only(Job(lines=world()[:2], facts={**silent, "events": (lost,)})).component == "nic:h0/eth0"
    finding = only(Job(lines=world()[:2], facts={**silent}))
    assert (finding.fault_class, finding.likelihood < 0.5, finding.may_isolate) == ("noncomm_hang", True, False)


def test_host_that_fell_silent_is_gone_though_others_are_still_inside_the_operation_before() -> None:
    lines = [line(0, (6, 6, 5)), line(1, (5, 5, 4))]
    finding = only(Job(lines=lines, facts={"reports": reported(h0=0, h1=9)}))
    assert (finding.fault_class, finding.component) == ("crash", "host:h1")


def test_host_that_said_why_nothing_comes_is_not_gone() -> None:
    gone, (speaks,) = reported(h0=0, h1=9), reported(h1=0).values()
    said = [replace(gone["h1"], has_ended=True), replace(speaks, stalled={"nccl_rings": gone["h1"].watermark_ns})]
    for report in said:
        found = Job(lines=world()[:2], facts={"reports": gone | {"h1": report}}).find()
        assert not [finding for finding in found if finding.component == "host:h1"]


def ended(rank: int, ago_s: float, signal: Signals | None = None) -> HostEvent:
    """Return that a rank ended; the message tells nothing, as that of an agent of another language would."""
    return event("process_exit", f"h{rank // 2}", "...", ago_s=ago_s, rank=rank, signal=signal)


def named(*events: HostEvent, lines: list[Line] | None = None) -> list[tuple[str, str]]:
    job = Job(lines=lines or world(), facts={"events": events, "reports": reported(h0=0, h1=0)})
    return [(finding.fault_class, finding.component) for finding in job.find()]


def test_first_of_several_that_ended_is_named_and_not_those_that_followed() -> None:
    followers = (ended(rank, ago_s=9.7 - rank / 10) for rank in (0, 1, 3))
    assert named(*followers, ended(2, ago_s=10)) == [("crash", "rank:2")]
    behind = world(r3=line(3, (4, 4, 4)))
    assert named(ended(2, ago_s=10), ended(3, ago_s=9.5), lines=behind) == [("crash", "rank:2")]
    assert named(ended(1, ago_s=10), ended(2, ago_s=9.99, signal=Signals.SIGKILL)) == [("crash", "rank:2")]
    job = Job(lines=world(), facts={"events": (ended(1, ago_s=9.99), ended(2, ago_s=10), ended(3, ago_s=9.5))})
    (finding,) = job.find()
    assert (finding.component, finding.ambiguous_with) == ("rank:2", ("rank:1",))
    assert finding.likelihood < 0.9
    stale = {"seen_ns": T0 - 2 * SECOND, "since_ns": T0 - 3 * SECOND}
    lines = [line(0, (5, 5, 4)), *(line(rank, (5, 5, 4), **stale) for rank in (1, 2, 3))]
    assert named(*(ended(rank, ago_s=11 - rank) for rank in (1, 2, 3)), lines=lines) == [("crash", "rank:1")]


def test_job_whose_processes_are_all_gone_within_a_second_has_ended_unless_something_tells_how() -> None:
    gone = [event("process_gone", f"h{rank // 2}", "gone", ago_s=10 - rank / 5, rank=rank) for rank in range(4)]
    assert named(*gone) == []
    assert named(*gone[:3]) == [("crash", "rank:0")]
    late = event("process_gone", "h1", "gone", ago_s=8, rank=3)
    assert named(*gone[:3], late) == [("crash", "rank:0")]
    assert named(*gone[:3], event("python_exception", "h1", "...", ago_s=9.9, rank=3)) == [("crash", "rank:0")]


def test_standstill_of_which_nothing_tells_the_part_is_told_without_one_when_it_lasts() -> None:
    """As on real GPUs: operations are begun ahead, and the steps of those that are not sampled are unknown."""

    def find_after(seconds: float) -> list[Finding]:
        begun = {"state": "unknown", "enqueued": 9, "started": 9}
        lines = [row | begun for func in ("AllReduce", "AllGather") for row in standing(seconds, func=func)]
        return Job(lines=lines, facts={"reports": reported(h0=0, h1=0)}).find()

    assert find_after(19) == []
    (finding,) = find_after(21)
    assert (finding.fault_class, finding.component, finding.stands_still) == ("comm_hang", "job:j1", True)
    assert finding.reason.startswith("4 ranks are inside"), "each once, in however many operations it stands"


def test_process_that_is_stopped_or_asked_to_end_after_the_job_stood_is_no_reason() -> None:
    behind = [ended(rank, ago_s=1) for rank in range(4)]
    assert named(*behind) == []
    down = event("link_down", "h1", component="nic:h1/eth0")
    assert named(down, *behind) == [("comm_hang", "nic:h1/eth0")]
    waits = world(r1=line(1, (4, 4, 4)))
    looked_at = event("process_stopped", "h1", "was stopped by a debugger", rank=2, ago_s=2)
    assert named(looked_at, lines=waits) == [("noncomm_hang", "host:h0")]
    assert named(event("process_stopped", "h1", "was stopped by a debugger", rank=2, ago_s=9)) == [
        ("noncomm_hang", "host:h1")
    ]
    assert named(looked_at) == []
    assert named(lines=world()[:2]) == []
    killed = ended(1, ago_s=1, signal=Signals.SIGKILL)
    assert named(killed, lines=waits) == [("noncomm_hang", "host:h0")], "its owner ended what did not move"


@pytest.mark.parametrize("signal", [Signals.SIGTERM, Signals.SIGINT])
def test_job_that_was_asked_to_end_broke_nothing(signal: Signals) -> None:
    asked = [ended(rank, ago_s=9 - rank / 10, signal=signal) for rank in range(4)]
    assert named(*asked) == []
    assert named(asked[2]) == [("crash", "rank:2")], "of one alone nobody knows why"
    fresh = standing(2)
    first = ended(2, ago_s=1.5, signal=signal)
    assert named(first, lines=fresh) == [], "the first of all to end, perhaps: the others are given their time"
    assert named(ended(2, ago_s=1.5, signal=Signals.SIGSEGV), lines=fresh) == [("crash", "rank:2")]


@pytest.mark.parametrize(
    ("happened", "named_for_it"),
    [
        (ended(2, ago_s=1), ("crash", "rank:2")),
        (event("process_stopped", "h1", "was stopped", rank=2, ago_s=1), ("noncomm_hang", "host:h1")),
        (event("link_down", "h1", component="nic:h1/eth0", ago_s=1), ("comm_hang", "nic:h1/eth0")),
    ],
)
def test_standstill_that_an_event_explains_is_told_sooner(happened: HostEvent, named_for_it: tuple[str, str]) -> None:
    def find_after(stood_s: float, *events: HostEvent) -> list[tuple[str, str]]:
        return named(*events, lines=standing(stood_s))

    assert find_after(1, happened) == [named_for_it]
    assert find_after(0.9, happened) == []
    assert find_after(3.9) == []


@pytest.mark.parametrize(
    ("happened", "named_for_it"),
    [
        (ended(3, ago_s=1.8), [("crash", "rank:3")]),
        (event("process_stopped", "h1", rank=3, ago_s=1.8), [("noncomm_hang", "host:h1")]),
        (ended(3, ago_s=8), []),
    ],
)
def test_ended_process_stands_since_its_newest_row(happened: HostEvent, named_for_it: list[tuple[str, str]]) -> None:
    """Nobody reads the counts of a process that is gone; an event from long before its last row is of another one."""
    last = line(3, (4, 4, 4), since_ns=T0 - 2 * SECOND, seen_ns=T0 - 2 * SECOND)
    assert named(happened, lines=[*standing(1.5)[:3], last]) == named_for_it
