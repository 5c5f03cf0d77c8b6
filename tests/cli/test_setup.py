"""Settings are read when a command needs them, and everything wrong about them is said at once."""

import getpass
import os
from pathlib import Path

import pytest

from cli.setup import who_asks
from tests.cli.commands import Run, check_failure


def test_bad_settings_stop_the_command_with_all_complaints(lockstep: Run) -> None:
    outcome = lockstep("token", "list", LOCKSTEP_NO_SUCH="1", LOCKSTEP_API_LISTEN="nowhere", LOCKSTEP_LEASE_S="-1")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.splitlines() == [
        "lockstep: these settings cannot be used:",
        "  - LOCKSTEP_NO_SUCH: there is no such setting",
        "  - lease_s: input should be greater than 0",
        "  - api.listen: value error, 'nowhere' is not host:port",
    ]


def test_settings_file_of_the_option_wins_over_that_of_the_variable(lockstep: Run, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.toml"
    chosen.write_text("colour = 1\n")
    outcome = lockstep("--config", chosen, "token", "list", LOCKSTEP_CONFIG=str(tmp_path / "absent.toml"))
    assert outcome.code == 1
    assert "colour: there is no such setting" in outcome.err
    assert "absent" not in outcome.err


def test_settings_file_that_is_not_there_is_named(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("--config", tmp_path / "absent.toml", "token", "list")
    assert outcome.code == 1
    assert f"{tmp_path}/absent.toml" in outcome.err


def test_state_directory_that_cannot_be_made_is_named(lockstep: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = lockstep("token", "create", "x", LOCKSTEP_STATE_DIR=str(tmp_path / "file" / "below"))
    check_failure(outcome, f"cannot make the state directory {tmp_path}/file/below (Not a directory)")
    assert "set LOCKSTEP_STATE_DIR" in outcome.err


def test_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", fail)
    assert who_asks() == f"uid {os.getuid()}"
