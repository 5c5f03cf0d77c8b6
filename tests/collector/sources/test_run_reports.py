"""What `lockstep run` leaves behind becomes one event each; what others leave there harms nobody."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from cli.run import _report
from collector.sources.processes import ProcessesSource, RunReports
from collector.supervision import Ending
from lockstep.errors import NotPresent
from tests.builders import SECOND, T0

SAID: dict[str, Any] = {"version": 1, "pid": 42, "program": "python3", "member": {"rank": 3, "job": "4711"}}
SAID |= {"started_ns": T0 - 60 * SECOND, "ended_ns": T0 - SECOND // 2, "exit_code": 1, "signal": None}
SAID |= {"exception": {"name": "ValueError", "message": "no loss"}, "stderr_tail": ["step 7", "ValueError: no loss"]}


def leave(folder: Path, name: str = "run-42.json", **changes: object) -> Path:
    return leave_text(folder, name, json.dumps(SAID | changes))


def leave_text(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    file.chmod(0o600)
    return file


def source_of(folder: Path) -> ProcessesSource:
    no_exits = Mock(side_effect=NotPresent("not here"))
    return ProcessesSource("h0", Path("/"), lambda: (), no_exits, RunReports(Path("/"), (folder,)))


def read(source: ProcessesSource, now_ns: int = T0) -> list[dict[str, Any]]:
    tables = source.read(now_ns, ()).tables
    rows: list[dict[str, Any]] = tables["events"].to_pylist() if tables else []
    return rows


def test_report_becomes_one_event_and_is_taken_away(tmp_path: Path) -> None:
    file, source = leave(tmp_path), source_of(tmp_path)
    (row,) = read(source)
    message = f"rank 3 of job 4711 (python3, pid 42 in its namespace, uid {os.getuid()}) exited with code 1 "
    message += "by ValueError: no loss; last lines: step 7 | ValueError: no loss"
    expected = {"host": "h0", "ts_ns": T0 - SECOND // 2, "source": "processes", "kind": "python_exception"}
    expected |= {"component": "host:h0", "severity": "error", "message": message, "rank": 3, "pid": 42}
    assert row == expected | {"signal": None, "exit_code": 1, "detail": None}
    assert not file.exists()
    assert read(source) == []


def test_end_without_an_exception_is_reported_by_code_or_signal(tmp_path: Path) -> None:
    tail, killed = "; last lines: step 7 | ValueError: no loss", "was killed by SIG"
    ends: list[tuple[dict[str, Any], str, str]] = [
        ({"exit_code": 0}, "info", "exited with code 0"),
        ({"exit_code": 2}, "error", f"exited with code 2{tail}"),
        ({"exit_code": None, "signal": 15}, "warning", f"{killed}TERM{tail}"),
        ({"exit_code": None, "signal": 9, "stderr_tail": []}, "error", f"{killed}KILL"),
    ]
    for changes, severity, words in ends:
        leave(tmp_path, exception=None, **changes)
        (row,) = read(source_of(tmp_path))
        assert (row["kind"], row["severity"]) == ("run_exit", severity)
        assert row["message"].endswith(f") {words}")
        assert (row["exit_code"], row["signal"]) == (changes["exit_code"], changes.get("signal"))


def test_what_lockstep_run_writes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOCKSTEP_RING_DIR": str(tmp_path), "RANK": "5", "LOCKSTEP_JOB": "j1"}.items():
        monkeypatch.setenv(name, value)
    stderr = b"Traceback (most recent call last):\n  File ...\nLookupError: no rank answers\n"
    _report("/usr/bin/python3", Ending(42, T0 - SECOND, T0, exit_code=1, signal=None, stderr=stderr), None)
    (row,) = read(source_of(tmp_path))
    assert row["message"].startswith("rank 5 of job j1 (python")
    assert "exited with code 1 by LookupError: no rank answers; last lines: Traceback" in row["message"]
    assert list(tmp_path.iterdir()) == []


def test_time_of_a_report_stays_between_the_reads(tmp_path: Path) -> None:
    for ended_ns, first_ns, later_ns in (
        (T0 - 60 * SECOND, T0 - 60 * SECOND, T0),  # ended while no collector ran
        (0, T0 - 3_600 * SECOND, T0),
        (1 << 62, T0, T0 + SECOND),
    ):
        source = source_of(tmp_path)
        for now_ns, reported_ns in ((T0, first_ns), (T0 + SECOND, later_ns)):
            leave(tmp_path, ended_ns=ended_ns)
            assert [row["ts_ns"] for row in read(source, now_ns)] == [reported_ns]


WRONG: list[dict[str, Any]] = [
    {"version": 2},
    *({"pid": pid} for pid in ("42", True)),
    *({"ended_ns": ended_ns} for ended_ns in (-1, 1 << 70)),
    *({"exit_code": None, "signal": 65}, {"exit_code": None}, {"signal": 9}),
    *({"member": [3]}, {"exception": "boom"}, {"program": "x" * 70_000}),
    *({"stderr_tail": tail} for tail in ([1], "lines")),
]
NO_REPORTS = ["", "garbage", "[]", "null", '{"version": 1}', "[" * 60_000]


def test_file_that_is_no_report_is_reported_once_and_stays_and_a_large_one_is_not_read(tmp_path: Path) -> None:
    texts = dict(enumerate(NO_REPORTS + [json.dumps(SAID | changes) for changes in WRONG]))
    files = {leave_text(tmp_path, f"run-{number}.json", text): text for number, text in texts.items()}
    (line,) = warnings_of(source_of(tmp_path))
    assert (line["event"], line["files"]) == ("files are no run reports and stay", 19)
    assert {file: file.read_text() for file in files} == files
    (tmp_path / "large").mkdir()
    large = leave(tmp_path / "large")
    os.truncate(large, 1 << 29)  # a hole, which costs nothing to make and much memory to read
    (line,) = warnings_of(source_of(tmp_path / "large"))
    assert line["first"] == f"{large}: has {1 << 29} bytes, and a report 65536 at most"


def warnings_of(source: ProcessesSource) -> list[Any]:
    """Read twice, without an event; return the warnings."""
    with capture_logs() as lines:
        assert [read(source), read(source)] == [[], []]
    return [line for line in lines if line["log_level"] == "warning"]


def test_only_plain_files_of_their_owner_with_the_name_of_a_report_are_read_where_others_cannot_replace_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rings"
    folder.mkdir()
    true = leave(tmp_path)
    (folder / "run-1.json").symlink_to(true)
    os.link(true, folder / "run-2.json")
    os.mkfifo(folder / "run-3.json", 0o600)
    (folder / "run-4.json").mkdir()
    leave(folder, "run-5.json").chmod(0o666)
    for name in ("7-100.ring", "run-1.txt", ".run-1.json.42", "report.json"):
        leave(folder, name)
    before = sorted(folder.iterdir())
    assert read(source_of(folder)) == []
    assert (sorted(folder.iterdir()), true.exists()) == (before, True)
    (folder / "run-2.json").unlink()
    tmp_path.chmod(0o777)
    source = source_of(tmp_path)
    assert [line["event"] for line in warnings_of(source)] == ["directory of run reports is not read"]
    tmp_path.chmod(0o1777)
    # Root may remove everything, so the refusal is a fake.
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    assert [len(read(source)), len(read(source))] == [1, 0], "what cannot be taken away is reported once"
    leave(tmp_path, "run-43.json")
    assert len(read(source)) == 1


def test_flood_of_reports_is_spread_over_reads_and_their_texts_are_cut_and_cleaned(tmp_path: Path) -> None:
    for number in range(100):
        leave(tmp_path, f"run-{number}.json", pid=number + 1)
    source = source_of(tmp_path)
    assert [len(read(source)) for _ in range(3)] == [64, 36, 0]
    hostile = "\x1b[2J\n" + "x" * 5_000
    raised, member = {"name": hostile, "message": hostile}, {"rank": 3, "job": hostile}
    leave(tmp_path, program=hostile, member=member, stderr_tail=[hostile] * 4, exception=raised)
    (row,) = read(source)
    assert row["message"].isprintable()
    assert len(row["message"]) < 3_000
