"""A standstill is one in which somebody waits for longer than the job's pace allows; a pause is none."""

from analyzer.hang.facts import HangOptions, drop_unknown, find_standstill
from tests.analyzer.hang.build import Job, line, lines_of, world
from tests.builders import SECOND, T0

OPTIONS = HangOptions()


def is_hang(job: Job, silent: frozenset[str] = frozenset()) -> bool:
    return find_standstill(job.progress, silent, OPTIONS).is_hang


def test_ranks_inside_an_operation_for_long_stand_still() -> None:
    standstill = find_standstill(Job(lines=world()).progress, frozenset(), OPTIONS)
    assert standstill.is_hang
    assert standstill.since_ns == T0 - 10 * SECOND


def test_pause_in_which_nobody_is_inside_anything_is_no_hang() -> None:
    assert not is_hang(Job(lines=[line(rank, (9, 4, 4)) for rank in range(4)]))


def test_waiting_is_no_hang_before_two_periods_and_a_pause_are_over() -> None:
    patience_ns = OPTIONS.patience_ns(SECOND, SECOND)
    assert patience_ns == 4 * SECOND
    assert not is_hang(Job(lines=world(r0=line(0, (5, 5, 4), since_ns=T0 - patience_ns + 1))[:1]))
    assert is_hang(Job(lines=world(r0=line(0, (5, 5, 4), since_ns=T0 - patience_ns))[:1]))


def test_nothing_is_said_early_while_no_period_is_known() -> None:
    assert not is_hang(Job(lines=world(), facts={"period_ns": None}))
    old = [line(rank, (5, 5, 4), since_ns=T0 - 61 * SECOND) for rank in range(4)]
    assert is_hang(Job(lines=old, facts={"period_ns": None}))


def test_process_that_moves_in_another_line_does_not_stand() -> None:
    moved = line(0, (9, 9, 9), func="AllGather", since_ns=T0)
    assert not is_hang(Job(lines=[line(0, (5, 5, 4)), moved]))


def test_capture_that_ends_in_the_middle_of_an_operation_is_no_hang() -> None:
    ends = [line(rank, (5, 5, 4), since_ns=T0 - SECOND) for rank in range(4)]
    assert not is_hang(Job(lines=ends, facts={"interval_ns": 0}))


def test_clock_of_a_host_that_is_off_changes_nothing() -> None:
    off = [line(rank, (5, 5, 4), seen_ns=T0 - SECOND, since_ns=T0 - 11 * SECOND) for rank in range(2)]
    standstill = find_standstill(Job(lines=off).progress, frozenset(), OPTIONS)
    assert standstill.since_ns == T0 - 10 * SECOND


def test_silent_host_is_not_heard() -> None:
    assert not is_hang(Job(lines=world()[:2]), frozenset({"h0"}))
    stale = [line(0, (5, 5, 4), seen_ns=T0 - 5 * SECOND, since_ns=T0 - 30 * SECOND), line(2, (5, 4, 4))]
    assert not is_hang(Job(lines=stale))
    assert is_hang(Job(lines=stale, facts={"last_seen_ns": {"h0": T0}})), "its collector had nothing new to tell"


def test_dump_needs_no_time_and_no_starts() -> None:
    now = [line(rank, (5, 4, 4), since_ns=T0) for rank in range(4)]
    assert is_hang(Job(lines=now, facts={"is_dump": True}))


def test_lines_whose_starts_nobody_hears_are_left_out() -> None:
    lines = lines_of([line(0, (7, 0, 0), state="unknown"), line(1, (7, 1, 0), state="unknown"), line(2, (0, 0, 0))])
    assert drop_unknown(lines).rank.tolist() == [1, 2]
