"""The newest complete checkpoint of a job's own folder is found, and a job's name does not lead out of it."""

from pathlib import Path

from planner.recovery.checkpoint_folders import CheckpointFolders
from planner.recovery.facts import Layout
from tests.planner.recovery.build import seconds
from tests.planner.recovery.checkpoints.build import NOW_NS, OLD_NS, copy_real


def test_job_without_a_folder_has_no_checkpoint(tmp_path: Path) -> None:
    folders = CheckpointFolders(f"{tmp_path}/{{job}}", read_mb_per_s=100.0)
    assert folders.newest("nobody", None, seconds(0)) is None
    assert folders.next_save_s("nobody", seconds(0)) is None


def test_name_of_a_job_does_not_lead_elsewhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "jobs").mkdir()
    folders = CheckpointFolders(f"{tmp_path}/jobs/{{job}}", read_mb_per_s=100.0)
    assert folders.newest("../outside", None, seconds(0)) is None


def test_newest_complete_checkpoint_is_found_with_its_age_and_the_time_to_load_it(tmp_path: Path) -> None:
    saved = copy_real("dcp", tmp_path / "train")
    folders = CheckpointFolders(f"{tmp_path}/{{job}}", read_mb_per_s=100.0)
    found = folders.newest("train", Layout(replicas=3), NOW_NS)
    assert found is not None
    assert (found.path, found.form, found.convert) == (f"{saved}/step-200", "dcp", ())
    assert found.age_s == (NOW_NS - OLD_NS) / 1e9
    assert found.load_s > 0


def test_folder_is_looked_at_again_after_some_seconds(tmp_path: Path) -> None:
    folders = CheckpointFolders(f"{tmp_path}/{{job}}", read_mb_per_s=100.0)
    assert folders.newest("train", None, NOW_NS) is None
    copy_real("dcp", tmp_path / "train" / "step-100")
    assert folders.newest("train", None, NOW_NS + 10**9) is None
    assert folders.newest("train", None, NOW_NS + 6 * 10**9) is not None


def test_zero_is_converted_where_the_layout_changes(tmp_path: Path) -> None:
    saved = copy_real("zero_1/global_step3", tmp_path / "train" / "global_step3")
    folders = CheckpointFolders(f"{tmp_path}/{{job}}", read_mb_per_s=100.0)
    same = folders.newest("train", None, NOW_NS)
    other = folders.newest("train", Layout(replicas=3), NOW_NS)
    assert same is not None
    assert other is not None
    assert (same.path, same.form, same.convert, same.obstacle) == (str(saved), "ds_zero", (), None)
    assert (other.path, other.form, other.obstacle) == (f"{saved}_universal", "universal", None)
    assert other.convert[3:7] == ("--input_folder", str(saved), "--output_folder", f"{saved}_universal")


def test_planner_without_a_converter_says_what_a_person_has_to_do(tmp_path: Path) -> None:
    saved = copy_real("zero_1/global_step3", tmp_path / "train" / "global_step3")
    folders = CheckpointFolders(f"{tmp_path}/{{job}}", read_mb_per_s=100.0, converter=())
    found = folders.newest("train", Layout(replicas=3), NOW_NS)
    assert found is not None
    assert found.obstacle == f"{saved} must be converted for the new layout, and planner.converter is not set"


def test_older_checkpoint_that_needs_no_conversion_is_taken_where_none_can_be_done(tmp_path: Path) -> None:
    copy_real("zero_1/global_step3", tmp_path / "train" / "global_step3")
    older = copy_real("zero_3/global_step3_universal", tmp_path / "train" / "global_step2_universal")
    folders = CheckpointFolders(f"{tmp_path}/{{job}}", read_mb_per_s=100.0, converter=())
    found = folders.newest("train", Layout(replicas=3), NOW_NS)
    assert found is not None
    assert (found.path, found.convert, found.obstacle) == (str(older), (), None)
