"""A window closes when everybody has spoken about it, or is known to say nothing."""

from analyzer.windows.jobs import HostReport
from analyzer.windows.window import Closing, Window, judge_window

WINDOW = Window(0, 10)
HOSTS = frozenset({"h0", "h1"})
NOW, SILENCE = 100, 50
COMPLETE = HostReport(watermark_ns=10, last_seen_ns=NOW)
LAGGING = HostReport(watermark_ns=9, last_seen_ns=NOW - SILENCE)
SILENT = HostReport(watermark_ns=9, last_seen_ns=NOW - SILENCE - 1)


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
    long_ago = HostReport(watermark_ns=10, last_seen_ns=0)
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


def test_length_of_a_window_is_told_in_seconds() -> None:
    assert Window(1_000_000_000, 6_000_000_000).seconds == 5.0
