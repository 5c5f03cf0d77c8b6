"""The last good checkpoint of a job is named, with what going back to it loses."""

from pathlib import Path

import pytest

from api.views.checkpoints import open_folders, read_checkpoints, sort_key
from lockstep.errors import NotPresent
from lockstep.sections import PlannerSettings
from tests.planner.checkpoints.build import NOW_NS, OLD_NS, copy_real


def test_checkpoints_are_listed_with_the_one_to_go_back_to(tmp_path: Path) -> None:
    saved = copy_real("dcp", tmp_path / "train")
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    found = read_checkpoints(folders, "train", NOW_NS, 10, None, step=230)
    assert found.back_to is not None
    assert (found.back_to.path, found.back_to.steps_lost) == (f"{saved}/step-200", 30)
    assert found.back_to.repeats_s == (NOW_NS - OLD_NS) / 1e9
    steps = [shown.checkpoint.step for shown in found.items]
    assert steps == sorted((step for step in steps if step is not None), reverse=True)
    assert found.next is None


def test_checkpoints_come_page_by_page(tmp_path: Path) -> None:
    for step in (100, 200):
        copy_real("dcp/step-200", tmp_path / "train" / f"step-{step}")
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    every = read_checkpoints(folders, "train", NOW_NS, 10, None)
    first = read_checkpoints(folders, "train", NOW_NS, 1, None)
    assert first.next is not None
    rest = read_checkpoints(folders, "train", NOW_NS, 10, sort_key(first.items[0].checkpoint))
    assert first.items + rest.items == every.items


def test_job_without_a_folder_says_so(tmp_path: Path) -> None:
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    found = read_checkpoints(folders, "nobody", NOW_NS, 10, None)
    assert (found.items, found.back_to) == ((), None)
    assert found.remarks


def test_nobody_knows_of_checkpoints_where_the_setting_is_empty() -> None:
    assert open_folders(PlannerSettings()) is None
    with pytest.raises(NotPresent, match=r"planner\.checkpoints is not set"):
        read_checkpoints(None, "train", NOW_NS, 10, None)
