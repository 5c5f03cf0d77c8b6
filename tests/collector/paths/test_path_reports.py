"""Reports of the shim are counted once and for good, and go when their processes have; nothing else is touched."""

import os
from pathlib import Path

import pytest

from collector.path_follower import PathReports
from lockstep.host_paths import PathCount
from tests.builders import SECOND

DAY_S = 86_400


def line(outcome: str = "enforced", generation: int = 1) -> str:
    return f"5 77 10.0.0.1 4000 10.0.0.2 80 {generation} {outcome}\n"


class Host:
    """A folder of reports, and the processes that live."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.proc = folder / "reports", folder / "proc"
        self.folder.mkdir()
        self.proc.mkdir()
        self.reports = PathReports(self.folder, self.proc)

    def tell(self, pid: int, *lines: str) -> Path:
        with open(self.folder / str(pid), "a") as file:
            file.writelines(lines)
        return self.folder / str(pid)

    def live(self, pid: int) -> None:
        (self.proc / str(pid)).mkdir()

    def tidy(self, after_s: float, of: Path) -> int:
        """Tidy up so many seconds after a file was last written."""
        return self.reports.tidy(os.lstat(of).st_ctime_ns + int(after_s * SECOND))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def counts(enforced: int, generation: int = 1, **reasons: int) -> PathCount:
    planned = enforced + sum(reasons.values())
    return PathCount(generation=generation, planned=planned, enforced=enforced, reasons=reasons)


def test_a_file_goes_when_its_process_has_and_counts_all_the_same(host: Host) -> None:
    file = host.tell(77, line(), line("busy"))
    assert host.reports.count(1) == counts(1, busy=1)
    assert host.tidy(61, file) == 1
    assert not file.exists()
    assert host.reports.count(1) == counts(1, busy=1)
    host.tell(77, line())
    assert host.reports.count(1) == counts(2, busy=1)
    assert host.reports.count(1) == counts(2, busy=1), "counted once"


def test_the_file_of_a_process_that_lives_stays_for_a_day(host: Host) -> None:
    host.live(77)
    file = host.tell(77, line())
    host.reports.count(1)
    assert host.tidy(DAY_S - 1, file) == 0
    assert host.tidy(DAY_S, file) == 1


def test_a_file_that_was_written_just_now_stays(host: Host) -> None:
    file = host.tell(77, line())
    host.reports.count(1)
    assert host.tidy(59, file) == 0


def test_what_was_reported_after_the_count_is_counted_before_the_file_goes(host: Host) -> None:
    file = host.tell(77, line())
    host.reports.count(1)
    host.tell(77, line())
    assert host.tidy(61, file) == 0
    assert host.reports.count(1) == counts(2)
    assert host.tidy(61, file) == 1


def test_connections_of_a_plan_to_come_are_counted_when_it_has_come(host: Host) -> None:
    host.tell(77, *(line(generation=generation) for generation in (1, 2, 3)))
    assert host.reports.count(2) == counts(2, generation=2)
    assert host.reports.count(3) == counts(3, generation=3)


def test_words_that_the_shim_does_not_know_are_no_outcomes(host: Host) -> None:
    host.tell(77, line("curious"), "² 77 a 1 b 2 3 enforced\n", f"{'9' * 5000} 77 a 1 b 2 3 enforced\n", line())
    assert host.reports.count(1) == counts(1)


def test_what_is_no_plain_file_of_a_process_is_neither_read_nor_removed(host: Host, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(line())
    (host.folder / "1").symlink_to(secret)
    os.link(secret, host.folder / "2")
    os.mkfifo(host.folder / "3")
    (host.folder / "4").mkdir()
    (host.folder / "notes").write_text(line())
    open_to_all = host.tell(5, line())
    open_to_all.chmod(0o666)
    assert host.reports.count(1) == counts(0)
    assert host.tidy(2 * DAY_S, open_to_all) == 0
    assert len(list(host.folder.iterdir())) == 6


def test_a_directory_that_others_may_change_is_not_read(host: Host) -> None:
    file = host.tell(77, line())
    host.folder.chmod(0o777)
    assert host.reports.count(1) == counts(0)
    assert host.tidy(61, file) == 0
    host.folder.chmod(0o1777)
    assert host.reports.count(1) == counts(1)


def test_a_file_that_is_too_large_for_a_report_is_not_read(host: Host) -> None:
    host.tell(77, line() * 50_000)
    assert host.reports.count(1) == counts(0)


def test_no_directory_is_no_report(tmp_path: Path) -> None:
    reports = PathReports(tmp_path / "none")
    assert reports.count(1) == counts(0)
    assert reports.tidy(10**18) == 0
