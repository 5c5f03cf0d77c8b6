"""A command ends within its time, with all its children, and its environment holds nothing of ours."""

import os
import signal
import sys
from pathlib import Path

import pytest

from lockstep.clock import ManualClock
from lockstep.errors import ControllerDown
from planner.controllers.running import Deadline, Notes, make_environment, run_within
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
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_command_says_how_it_ended() -> None:
    assert run_shell("cat; echo no >&2; exit 3", stdin="yes") == (3, "yes", "no\n")


def test_a_complaint_is_one_line_in_the_commands_own_words() -> None:
    done = run_within(["sh", "-c", "echo 'not\n  today' >&2; exit 2"], Deadline(LONG_S), os.environ)
    assert done.complaint == "sh ended with 2: not today"


def test_a_silent_failure_is_said_to_be_silent() -> None:
    assert run_within(["false"], Deadline(LONG_S), os.environ).complaint == "false ended with 1: it said nothing"


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
    stray = f"import os, time; os.setsid(); open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code, out, _ = run_shell(f'{sys.executable} -c "{stray}" & until [ -s {note} ]; do sleep 0.01; done; echo on')
    os.kill(int(note.read_text()), signal.SIGKILL)
    assert (code, out) == (0, "on\n")


def test_a_command_that_is_not_there_is_a_controller_that_is_down() -> None:
    with pytest.raises(ControllerDown, match="/no/such/scontrol cannot be started: No such file or directory"):
        run_within(["/no/such/scontrol"], Deadline(LONG_S), os.environ)


def test_no_setting_of_ours_and_no_surrounding_job_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_CONTROL_URL", "postgresql://ada:hunter2@db/lockstep")
    monkeypatch.setenv("SBATCH_EXCLUDE", "n7")
    monkeypatch.setenv("EDITOR", "ed")
    environment = make_environment({"LOCKSTEP_RESUME_FROM": "/ckpt/7"})
    assert "hunter2" not in str(environment)
    assert "SBATCH_EXCLUDE" not in environment
    assert environment["EDITOR"] == "ed"
    assert environment["LOCKSTEP_RESUME_FROM"] == "/ckpt/7"


def test_all_commands_of_a_call_share_its_time() -> None:
    clock = ManualClock()
    deadline = Deadline(10, clock)
    clock.advance(7)
    assert deadline.left_s == 3
    clock.advance(7)
    assert deadline.left_s == 0


def test_waiting_ends_when_it_is_so() -> None:
    clock, asked = ManualClock(), iter([False, False, True])
    assert Deadline(10, clock).wait_until(lambda: next(asked), reserve_s=5)
    assert next(asked, None) is None


def test_waiting_leaves_the_reserve() -> None:
    clock = ManualClock()
    deadline = Deadline(10, clock)
    assert not deadline.wait_until(lambda: False, reserve_s=4)
    assert 3.8 < deadline.left_s <= 4


def wait_for_death(pid: int) -> None:
    """Return when a killed process is gone: its new parent may take a moment to notice."""
    eventually(lambda: not is_alive(pid))


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "not" / "yet")
    notes.write("d-17", {"script": "#!/bin/sh\necho ä"})
    assert Notes(tmp_path / "not" / "yet").read("d-17") == {"script": "#!/bin/sh\necho ä"}


def test_nobody_else_may_read_a_note(tmp_path: Path) -> None:
    Notes(tmp_path / "spool").write("d-17", {"script": "export TOKEN=hunter2"})
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0
    assert (tmp_path / "spool" / "d-17.json").stat().st_mode & 0o077 == 0


def test_a_draft_of_a_planner_that_died_is_no_note(tmp_path: Path) -> None:
    (tmp_path / "d-17.draft").write_text('{"scr')
    assert Notes(tmp_path).read("d-17") is None


def test_a_removed_note_is_gone_and_may_be_removed_again(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    notes.write("d-17", {})
    notes.remove("d-17")
    notes.remove("d-17")
    assert notes.read("d-17") is None


@pytest.mark.parametrize("text", ["", "[]", '{"job": '])
def test_a_damaged_note_stops_us(tmp_path: Path, text: str) -> None:
    (tmp_path / "d-17.json").write_text(text)
    with pytest.raises(ControllerDown, match=r"d-17\.json is damaged: look at it, then remove it"):
        Notes(tmp_path).read("d-17")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ControllerDown, match=r"file/d-17\.json cannot be written"):
        Notes(tmp_path / "file").write("d-17", {})
