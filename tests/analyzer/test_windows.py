"""A window closes when everybody has spoken about it, or is known to say nothing."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.windows import Closing, HostReport, Window, judge_window, split_windows

WINDOW = Window(0, 10)
HOSTS = frozenset({"h0", "h1"})
NOW, SILENCE = 100, 50
COMPLETE = HostReport(watermark_ns=10, heard_ns=NOW)
LAGGING = HostReport(watermark_ns=9, heard_ns=NOW - SILENCE)
SILENT = HostReport(watermark_ns=9, heard_ns=NOW - SILENCE - 1)


def judge(**reports: HostReport) -> Closing:
    return judge_window(WINDOW, HOSTS, reports, NOW, SILENCE)


def test_window_closes_when_every_host_has_sent_up_to_its_end() -> None:
    assert judge(h0=COMPLETE, h1=COMPLETE) == Closing(closed=True, silent=frozenset())


def test_lagging_host_that_still_speaks_holds_the_window_open() -> None:
    assert judge(h0=COMPLETE, h1=LAGGING) == Closing(closed=False, silent=frozenset())


def test_nobody_waits_for_a_silent_host() -> None:
    assert judge(h0=COMPLETE, h1=SILENT) == Closing(closed=True, silent=frozenset({"h1"}))


def test_host_without_a_report_is_silent() -> None:
    assert judge(h0=COMPLETE) == Closing(closed=True, silent=frozenset({"h1"}))


def test_silent_host_that_had_sent_everything_before_is_complete() -> None:
    long_ago = HostReport(watermark_ns=10, heard_ns=0)
    assert judge(h0=COMPLETE, h1=long_ago) == Closing(closed=True, silent=frozenset())


def test_window_that_nobody_speaks_about_is_not_closed() -> None:
    assert judge(h0=SILENT, h1=SILENT) == Closing(closed=False, silent=HOSTS)
    assert not judge().closed


def test_silent_host_does_not_close_a_window_that_a_lagging_one_holds_open() -> None:
    assert judge(h0=SILENT, h1=LAGGING) == Closing(closed=False, silent=frozenset({"h0"}))


def test_hosts_of_other_jobs_do_not_matter() -> None:
    assert judge(h0=COMPLETE, h1=COMPLETE, h2=LAGGING) == Closing(closed=True, silent=frozenset())


def test_job_without_hosts_has_no_closed_window() -> None:
    assert not judge_window(WINDOW, frozenset(), {"h0": COMPLETE}, NOW, SILENCE).closed


QUICK = settings(max_examples=100, deadline=None)  # no deadline: machines that run tests differ
moments = st.integers(0, 2**62)
lengths = st.integers(1, 10**12)


@QUICK
@given(start_ns=moments, length_ns=lengths, count=st.integers(0, 20), rest_ns=st.integers(0, 10**12))
def test_windows_are_whole_aligned_to_the_epoch_and_leave_no_gap(
    start_ns: int, length_ns: int, count: int, rest_ns: int
) -> None:
    end_ns = start_ns + count * length_ns + rest_ns % length_ns
    windows = split_windows(start_ns, end_ns, length_ns)
    assert all(window.end_ns - window.start_ns == length_ns for window in windows)
    assert all(window.start_ns % length_ns == 0 for window in windows)
    assert all(before.end_ns == after.start_ns for before, after in pairwise(windows))
    if windows:
        assert start_ns <= windows[0].start_ns < start_ns + length_ns
        assert end_ns - length_ns < windows[-1].end_ns <= end_ns
    else:
        assert -(-start_ns // length_ns) * length_ns + length_ns > end_ns


@QUICK
@given(start_ns=moments, length_ns=lengths, first=st.integers(0, 10), second=st.integers(0, 10))
def test_going_on_where_one_stopped_gives_the_same_windows(
    start_ns: int, length_ns: int, first: int, second: int
) -> None:
    middle_ns = start_ns + first * length_ns
    end_ns = middle_ns + second * length_ns
    before = split_windows(start_ns, middle_ns, length_ns)
    done_until_ns = before[-1].end_ns if before else start_ns
    assert before + split_windows(done_until_ns, end_ns, length_ns) == split_windows(start_ns, end_ns, length_ns)


def test_length_of_a_window_is_told_in_seconds() -> None:
    assert Window(1_000_000_000, 6_000_000_000).seconds == 5.0
