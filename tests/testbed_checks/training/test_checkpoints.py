"""Only a checkpoint that is complete is resumed from."""

from pathlib import Path

import pytest

from lockstep.errors import BadInput
from tests.testbed.training.checkpointed import LoggedStep, parse_layout, read_log
from tests.testbed.training.checkpoints import RESUME_FROM, find_checkpoint


def make(folder: Path, name: str, *files: str) -> Path:
    (folder / name).mkdir()
    for file in files:
        (folder / name / file).touch()
    return folder / name


def test_newest_complete_checkpoint_is_taken(tmp_path: Path) -> None:
    make(tmp_path, "step-9", ".metadata")
    expected = make(tmp_path, "step-10", ".metadata", "__0_0.distcp")
    make(tmp_path, "step-11", "__0_0.distcp")
    make(tmp_path, "step-12.part", ".metadata")

    assert find_checkpoint(tmp_path, {}) == expected


def test_job_without_checkpoints_begins_anew(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path, {}) is None
    assert find_checkpoint(tmp_path / "nowhere", {RESUME_FROM: ""}) is None


def test_named_checkpoint_wins_over_a_newer_one(tmp_path: Path) -> None:
    older = make(tmp_path, "step-5", ".metadata")
    make(tmp_path, "step-10", ".metadata")

    assert find_checkpoint(tmp_path, {RESUME_FROM: str(older)}) == older


def test_named_checkpoint_that_is_not_complete_is_refused_though_there_is_another(tmp_path: Path) -> None:
    make(tmp_path, "step-5", ".metadata")
    broken = make(tmp_path, "step-10", "__0_0.distcp")

    with pytest.raises(BadInput, match=r"names .*step-10, which is not a complete checkpoint"):
        find_checkpoint(tmp_path, {RESUME_FROM: str(broken)})


def test_last_line_of_a_step_counts_and_a_torn_one_does_not(tmp_path: Path) -> None:
    first = LoggedStep(step=1, loss=2.0, ranks=3, layout="3x1", resumed_from=0, time_ns=1)
    again = first.model_copy(update={"loss": 1.5, "ranks": 2})
    (tmp_path / "log").write_text(f"{first.model_dump_json()}\n{again.model_dump_json()}\n" + '{"step":2,"lo')

    assert read_log(tmp_path / "log") == {1: again}
    assert read_log(tmp_path / "none") == {}


@pytest.mark.parametrize("text", ["", "4", "x2", "0x2", "2x-1", "2x2x2"])
def test_layout_is_two_numbers(text: str) -> None:
    assert parse_layout("4x2") == (4, 2)
    with pytest.raises(BadInput, match="such as 4x2"):
        parse_layout(text)
