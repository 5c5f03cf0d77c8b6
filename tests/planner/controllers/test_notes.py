"""Notes are whole or absent, and private."""

from pathlib import Path

import pytest

from lockstep.errors import ControllerDown
from planner.controllers.notes import Notes


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
