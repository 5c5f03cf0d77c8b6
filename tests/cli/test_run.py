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
    """Start `lockstep run -- COMMAND`, with the ring directory of the test."""
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
    """Return exit code, standard output and standard error of a command that was run to its end."""
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


@pytest.mark.parametrize("script", ["exit 255", "kill -15 $$"])
def test_exit_code_is_the_command_s_own_or_128_and_the_signal_that_killed_it(tmp_path: Path, script: str) -> None:
    is_killed, number = script.startswith("kill"), int(script.split()[1].lstrip("-"))
    assert run("sh", "-c", script, folder=tmp_path)[0] == (128 + number if is_killed else number)
    said = report_in(tmp_path)
    expected = (None, number, "sh") if is_killed else (number, None, "sh")
    assert (said["exit_code"], said["signal"], said["program"]) == expected


def test_output_and_input_pass_through_byte_for_byte(tmp_path: Path) -> None:
    every_byte = bytes(range(256)) * 1_000
    code, out, err = run("sh", "-c", "tee /dev/stderr", folder=tmp_path, given=every_byte)
    assert (code, out, err) == (0, every_byte, every_byte)


def test_standard_error_is_handed_on_before_the_line_ends(tmp_path: Path) -> None:
    with running("sh", "-c", "printf half >&2; read line", folder=tmp_path) as process:
        assert process.stderr is not None
        assert process.stderr.read(4) == b"half"  # the command goes on only when it has been seen
        say(process)
        assert process.wait(LIMIT_S) == 0


def test_signals_are_passed_on_once(tmp_path: Path) -> None:
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN)
    numbers = [int(number) for number in signals]
    count = f"""
import signal, sys
seen = []
for number in {numbers}:
    signal.signal(number, lambda number, _: (seen.append(number), print(int(number), flush=True)))
print("ready", flush=True)
sys.stdin.readline()
sys.exit(40 + len(seen))
"""
    with running(*python(count), folder=tmp_path) as process:
        assert line_of(process) == b"ready"
        for number in numbers:
            process.send_signal(number)
            assert int(line_of(process)) == number
        say(process)
        assert process.wait(LIMIT_S) == 40 + len(numbers)


def test_command_stops_and_goes_on_with_us(tmp_path: Path) -> None:
    with running("sh", "-c", "echo $$; read line; exit 5", folder=tmp_path) as process:
        pid = int(line_of(process))
        process.send_signal(signal.SIGTSTP)
        eventually(lambda: (state_of(pid), state_of(process.pid)) == ("T", "T"))
        process.send_signal(signal.SIGCONT)
        eventually(lambda: state_of(pid) == "S")
        say(process)
        assert process.wait(LIMIT_S) == 5


def test_nothing_stops_where_nobody_could_continue_it(tmp_path: Path) -> None:
    script = "echo $$; read line; exit 5"
    with running("sh", "-c", script, folder=tmp_path, alone=True) as process:
        pid = int(line_of(process))
        process.send_signal(signal.SIGTSTP)
        say(process)
        assert process.wait(LIMIT_S) == 5
        assert state_of(pid) in ("gone", "Z")


def test_command_does_not_outlive_us(tmp_path: Path) -> None:
    with running("sh", "-c", "echo $$; read line", folder=tmp_path) as process:
        pid = int(line_of(process))
        process.kill()
        eventually(lambda: state_of(pid) in ("gone", "Z"))


def test_command_starts_with_the_signal_mask_we_were_given(tmp_path: Path) -> None:
    tell = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))"
    ours = sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))

    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert run(*python(tell), folder=tmp_path)[1] == f"{ours}\n".encode()
    assert run("sh", "-c", "exit 3", folder=tmp_path, before=ignore)[0] == 3, (
        "also where our parent ignores its children"
    )


def test_grandchild_that_keeps_standard_error_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with running("sh", "-c", "sleep 1000 >/dev/null & echo $!; exit 4", folder=tmp_path) as process:
        sleeper = int(line_of(process))
        try:
            assert process.wait(LIMIT_S) == 4
            assert report_in(tmp_path)["exit_code"] == 4
        finally:
            os.kill(sleeper, signal.SIGKILL)


def test_command_ends_as_it_would_when_nobody_reads_its_errors(tmp_path: Path) -> None:
    with running("sh", "-c", "read line; head -c 1000000 /dev/zero >&2 && exit 6", folder=tmp_path) as process:
        assert process.stderr is not None
        process.stderr.close()
        say(process)
        assert process.wait(LIMIT_S) == 6


def test_uncaught_exception_is_named_with_rank_and_job(tmp_path: Path) -> None:
    fail = "import sys; print('step 7', file=sys.stderr); raise RuntimeError('CUDA error: out of memory')"
    assert run(*python(fail), folder=tmp_path, RANK="3", SLURM_JOB_ID="4711")[0] == 1
    said = report_in(tmp_path)
    assert said["exception"] == {"name": "RuntimeError", "message": "CUDA error: out of memory"}
    assert said["member"] == {"rank": 3, "job": "4711"}
    assert said["stderr_tail"][0] == "step 7"
    assert said["started_ns"] < said["ended_ns"]


def test_report_goes_where_it_is_asked_to_and_one_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    file, nowhere = tmp_path / "here.json", str(tmp_path / "missing/report.json")
    asked: dict[str, Any] = {"options": ("--report", str(file)), "LOCKSTEP_RUN_REPORT": nowhere}
    with running("sh", "-c", "echo out; exit 9", folder=tmp_path, **asked) as process:
        assert process.communicate(timeout=LIMIT_S) == (b"out\n", b"")
    assert (process.returncode, json.loads(file.read_text())["exit_code"]) == (9, 9)
    code, out, err = run("sh", "-c", "echo out; exit 9", folder=tmp_path, LOCKSTEP_RUN_REPORT=nowhere)
    assert (code, out) == (9, b"out\n")
    assert f"no report in {nowhere}".encode() in err


def ending(code: int = 0, stderr: bytes = b"") -> Ending:
    return Ending(pid=7, started_ns=1, ended_ns=2, exit_code=code, signal=None, stderr=stderr)


def test_report_is_one_line_for_its_owner_only_and_named_after_the_process(
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


def test_exception_that_was_caught_is_none() -> None:
    traceback = b'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: division\n'
    caught, uncaught = (_describe("python", ending(code, traceback)) for code in (0, 1))
    assert (caught.exception, caught.stderr_tail[-1]) == (None, "ValueError: division")
    assert uncaught.exception is not None


def test_report_is_never_put_over_something_that_is_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link, pipe, victim = tmp_path / "link", tmp_path / "pipe", tmp_path / "victim"
    victim.write_text("precious")
    link.symlink_to(victim)
    os.mkfifo(pipe)
    for target in (link, pipe):
        _report("true", ending(), target)
        assert "is no regular file" in capsys.readouterr().err
    assert (victim.read_text(), link.is_symlink(), pipe.is_fifo()) == ("precious", True, True)


def test_command_that_cannot_be_started_is_told_as_shells_do(lockstep: Run, tmp_path: Path) -> None:
    for program, code, why in (("no-such-program", 127, "No such file"), ("/", 126, "denied")):
        outcome = lockstep("run", "--", program, LOCKSTEP_RING_DIR=str(tmp_path))
        assert (outcome.code, list(tmp_path.iterdir())) == (code, [])
        assert why in outcome.err
