"""A command under `lockstep run` behaves as if it stood alone, and how it ended can be read afterwards."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.run import _describe, _report
from collector.supervision import Ending
from tests.cli.commands import LOCKSTEP, Run, environment_for
from tests.waiting import eventually

REPO = Path(__file__).resolve().parents[2]
LIMIT_S = 60


@contextmanager
def running(
    *command: str,
    folder: Path,
    options: tuple[str, ...] = (),
    before: Callable[[], object] | None = None,
    alone: bool = False,
    **more: str,
) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(
        [LOCKSTEP, "run", *options, "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPO,
        env=environment_for(folder, LOCKSTEP_RING_DIR=str(folder), **more),
        preexec_fn=before,
        # A job of its own may be stopped: somebody in its session can continue it. A session of its own may not.
        process_group=None if alone else 0,
        start_new_session=alone,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(*command: str, folder: Path, given: bytes = b"", **more: Any) -> tuple[int, bytes, bytes]:
    with running(*command, folder=folder, **more) as process:
        out, err = process.communicate(given, timeout=LIMIT_S)
        return process.returncode, out, err


def python(source: str) -> tuple[str, ...]:
    return sys.executable, "-c", source


def report_in(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("run-*.json")
    said: dict[str, Any] = json.loads(file.read_text())
    return said


def line_of(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def test_command_is_as_if_alone_and_its_uncaught_exception_is_named_with_rank_and_job(tmp_path: Path) -> None:
    fail = """
import signal, sys
print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))), flush=True)
given = sys.stdin.buffer.read()
sys.stdout.buffer.write(given)
sys.stdout.flush()
sys.stderr.buffer.write(given + b"\\nstep 7\\n")
raise RuntimeError("CUDA error: out of memory")
"""
    every_byte = bytes(range(256)) * 1_000
    mask = f"{sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))}\n".encode()
    code, out, err = run(*python(fail), folder=tmp_path, given=every_byte, RANK="3", SLURM_JOB_ID="4711")
    assert (code, out) == (1, mask + every_byte)
    assert err.startswith(every_byte + b"\nstep 7\nTraceback")
    said = report_in(tmp_path)
    assert said["exception"] == {"name": "RuntimeError", "message": "CUDA error: out of memory"}
    assert said["member"] == {"rank": 3, "job": "4711"}
    assert "step 7" in said["stderr_tail"]
    assert said["started_ns"] < said["ended_ns"]


def test_report_of_a_killed_command_goes_where_it_is_asked_to_also_where_our_parent_ignores_its_children(
    tmp_path: Path,
) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    file, nowhere = tmp_path / "here.json", str(tmp_path / "missing/report.json")
    asked: dict[str, Any] = {"options": ("--report", str(file)), "LOCKSTEP_RUN_REPORT": nowhere}
    assert run("sh", "-c", "echo out; kill -15 $$", folder=tmp_path, before=ignore, **asked) == (143, b"out\n", b"")
    said = json.loads(file.read_text())
    assert (said["exit_code"], said["signal"], said["program"]) == (None, 15, "sh")


def test_grandchild_that_keeps_standard_error_does_not_hold_up_the_end_nor_a_report_that_cannot_be_written(
    tmp_path: Path,
) -> None:
    nowhere = str(tmp_path / "missing/report.json")
    script = "sleep 1000 >/dev/null & echo $!; exit 255"
    with running("sh", "-c", script, folder=tmp_path, LOCKSTEP_RUN_REPORT=nowhere) as process:
        sleeper = int(line_of(process))
        try:
            assert process.wait(LIMIT_S) == 255
        finally:
            os.kill(sleeper, signal.SIGKILL)
        assert process.stderr is not None
        assert f"no report in {nowhere}".encode() in process.stderr.read()


def test_standard_error_is_handed_on_before_the_line_ends_and_may_be_closed(tmp_path: Path) -> None:
    script = "printf half >&2; read line; head -c 1000000 /dev/zero >&2 && exit 6"
    with running("sh", "-c", script, folder=tmp_path) as process:
        assert process.stderr is not None
        assert process.stderr.read(4) == b"half"  # the command goes on only when it has been seen
        process.stderr.close()
        say(process)
        assert process.wait(LIMIT_S) == 6, "as it would when nobody reads its errors"
    assert report_in(tmp_path)["exit_code"] == 6


def test_signals_are_passed_on_once_and_the_command_stops_and_goes_on_with_us(tmp_path: Path) -> None:
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN)
    numbers = [int(number) for number in signals]
    count = f"""
import os, signal, sys
seen = []
for number in {numbers}:
    signal.signal(number, lambda number, _: (seen.append(number), print(int(number), flush=True)))
print(os.getpid(), flush=True)
sys.stdin.readline()
sys.exit(40 + len(seen))
"""
    with running(*python(count), folder=tmp_path) as process:
        pid = int(line_of(process))
        for number in numbers:
            process.send_signal(number)
            assert int(line_of(process)) == number
        process.send_signal(signal.SIGTSTP)
        eventually(lambda: (state_of(pid), state_of(process.pid)) == ("T", "T"))
        process.send_signal(signal.SIGCONT)
        eventually(lambda: state_of(pid) == "S")
        say(process)
        assert process.wait(LIMIT_S) == 40 + len(numbers)


def test_nothing_stops_where_nobody_could_continue_it_and_the_command_does_not_outlive_us(tmp_path: Path) -> None:
    script = "echo $$; read line; echo on; read line"
    with running("sh", "-c", script, folder=tmp_path, alone=True) as process:
        pid = int(line_of(process))
        process.send_signal(signal.SIGTSTP)
        say(process)
        assert line_of(process) == b"on"
        process.kill()
        eventually(lambda: state_of(pid) in ("gone", "Z"))


def ending(code: int = 0, stderr: bytes = b"") -> Ending:
    return Ending(pid=7, started_ns=1, ended_ns=2, exit_code=code, signal=None, stderr=stderr)


def test_report_is_one_line_for_its_owner_only_and_never_put_over_what_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCKSTEP_RING_DIR", str(tmp_path))
    _report("/usr/bin/true", ending(), None)
    (file,) = tmp_path.iterdir()
    assert file.name == f"run-{os.getpid()}.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().count("\n") == 1
    assert report_in(tmp_path)["program"] == "true"
    monkeypatch.setenv("LOCKSTEP_RING_DIR", str(tmp_path / "missing"))
    _report("true", ending(9), None)
    assert capsys.readouterr().err == "", "a host without rings says nothing"
    link, pipe, victim = tmp_path / "link", tmp_path / "pipe", tmp_path / "victim"
    victim.write_text("precious")
    link.symlink_to(victim)
    os.mkfifo(pipe)
    for target in (link, pipe):
        _report("true", ending(), target)
        assert "is no regular file" in capsys.readouterr().err
    assert (victim.read_text(), link.is_symlink(), pipe.is_fifo()) == ("precious", True, True)


def test_exception_that_was_caught_is_none() -> None:
    traceback = b'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: division\n'
    caught, uncaught = (_describe("python", ending(code, traceback)) for code in (0, 1))
    assert (caught.exception, caught.stderr_tail[-1]) == (None, "ValueError: division")
    assert uncaught.exception is not None


def test_command_that_cannot_be_started_is_told_as_shells_do(lockstep: Run, tmp_path: Path) -> None:
    for program, code, why in (("no-such-program", 127, "No such file"), ("/", 126, "denied")):
        outcome = lockstep("run", "--", program, LOCKSTEP_RING_DIR=str(tmp_path))
        assert (outcome.code, list(tmp_path.iterdir())) == (code, [])
        assert why in outcome.err
