"""A command ends within its time, with all its children, and its environment holds nothing of ours."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from lockstep.clock import ManualClock
from lockstep.errors import ControllerDown
from planner.controllers.running import Background, Deadline, Ended, Notes, make_environment, run_within
from tests.waiting import eventually

SOON_S = 0.3
LONG_S = 60.0  # never reached unless a test fails


class SinceWritten(Deadline):
    """Time that begins when a line is in a file, however long a busy machine takes to get there."""

    def __init__(self, timeout_s: float, note: Path) -> None:
        super().__init__(timeout_s)
        self._note = note

    @property
    def left_s(self) -> float:
        eventually(lambda: self._note.exists() and self._note.read_text().endswith("\n"))
        return self.timeout_s


def run_shell(script: str, stdin: str = "") -> tuple[int, str, str]:
    done = run_within(["sh", "-c", script], Deadline(LONG_S), os.environ, stdin)
    return done.code, done.out, done.err


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_command_says_how_it_ended_in_one_line() -> None:
    assert run_shell("cat; echo no >&2; exit 3", stdin="yes") == (3, "yes", "no\n")
    done = run_within(["sh", "-c", "echo 'not\n  today' >&2; exit 2"], Deadline(LONG_S), os.environ)
    assert done.complaint == "sh ended with 2: not today"
    assert run_within(["false"], Deadline(LONG_S), os.environ).complaint == "false ended with 1: it said nothing"
    with pytest.raises(ControllerDown, match="/no/such/scontrol cannot be started: No such file or directory"):
        run_within(["/no/such/scontrol"], Deadline(LONG_S), os.environ)


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    script = f"sleep 600 & echo $! $$ > {note}; wait"
    with pytest.raises(ControllerDown, match=r"sh -c .* did not end within 0\.3 s and was killed"):
        run_within(["sh", "-c", script], SinceWritten(SOON_S, note), os.environ)
    child, shell = (int(word) for word in note.read_text().split())
    wait_for_death(shell)
    wait_for_death(child)


def test_a_child_that_left_the_group_and_holds_the_output_does_not_keep_us(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    stray = f"setsid sh -c 'echo $$ > {note}; exec sleep 600'"
    code, out, _ = run_shell(f"{stray} & until [ -s {note} ]; do sleep 0.01; done; echo on")
    os.kill(int(note.read_text()), signal.SIGKILL)
    assert (code, out) == (0, "on\n")


def test_process_that_the_kernel_does_not_let_go_of_is_said_and_not_waited_for() -> None:
    # One without a group of its own is not reached by the kill, as one that waits for a dead file server is not.
    with tempfile.TemporaryFile() as output, subprocess.Popen(["sleep", "1000"]) as process:
        ended = Background(process, output, 0, timeout_s=60, kill_s=0.01).finish()
        process.kill()
    message = f"no output; process {process.pid} is still there 0.01 s after SIGKILL"
    assert ended == Ended(None, message)


def test_no_setting_of_ours_and_no_surrounding_job_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_CONTROL_URL", "postgresql://ada:hunter2@db/lockstep")
    monkeypatch.setenv("SBATCH_EXCLUDE", "n7")
    monkeypatch.setenv("EDITOR", "ed")
    environment = make_environment({"LOCKSTEP_RESUME_FROM": "/ckpt/7"})
    assert "hunter2" not in str(environment)
    assert "SBATCH_EXCLUDE" not in environment
    assert environment["EDITOR"] == "ed"
    assert environment["LOCKSTEP_RESUME_FROM"] == "/ckpt/7"


def test_all_commands_of_a_call_share_its_time_and_waiting_leaves_the_reserve() -> None:
    clock = ManualClock()
    deadline = Deadline(10, clock)
    clock.advance(7)
    assert deadline.left_s == 3
    clock.advance(7)
    assert deadline.left_s == 0
    asked = iter([False, False, True])
    assert Deadline(10, ManualClock()).wait_until(lambda: next(asked), reserve_s=5)
    assert next(asked, None) is None
    deadline = Deadline(10, ManualClock())
    assert not deadline.wait_until(lambda: False, reserve_s=4)
    assert 3.8 < deadline.left_s <= 4


def wait_for_death(pid: int) -> None:
    """Return when a killed process is gone: its new parent may take a moment to notice."""
    eventually(lambda: not is_alive(pid))


def test_a_note_is_read_as_it_was_written_by_nobody_else_and_may_be_removed_twice(tmp_path: Path) -> None:
    spool, text = tmp_path / "not" / "yet", {"script": "#!/bin/sh\necho ä"}
    Notes(spool).write("d-17", text)
    assert Notes(spool).read("d-17") == text
    assert spool.stat().st_mode & 0o077 == 0
    assert (spool / "d-17.json").stat().st_mode & 0o077 == 0
    for _ in range(2):
        Notes(spool).remove("d-17")
    (spool / "d-17.draft").write_text('{"scr')  # of a planner that died
    assert Notes(spool).read("d-17") is None


def test_a_damaged_note_or_directory_stops_us(tmp_path: Path) -> None:
    for text in ("", "[]", '{"job": '):
        (tmp_path / "d-17.json").write_text(text)
        with pytest.raises(ControllerDown, match=r"d-17\.json is damaged: look at it, then remove it"):
            Notes(tmp_path).read("d-17")
    (tmp_path / "file").touch()
    with pytest.raises(ControllerDown, match=r"file/d-17\.json cannot be written"):
        Notes(tmp_path / "file").write("d-17", {})
