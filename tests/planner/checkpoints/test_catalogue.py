"""A directory of checkpoints is read whatever lies in it, and only what is verified is called complete."""

import os
import shutil
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from planner.checkpoints.catalogue import find_step
from planner.checkpoints.contents import Contents
from tests.planner.checkpoints.build import NOW_NS, OLD_NS, copy_real, fake_zero, make_old, read, read_one

pytestmark = pytest.mark.usefixtures("tried_here")

S = 1_000_000_000
DCP = "dcp/step-200"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Three steps of one job: the newest without its metadata, the middle complete, the oldest complete."""
    for step in (100, 200, 300):
        copy_real(DCP, tmp_path / "job" / f"step-{step}")
    (tmp_path / "job" / "step-300" / ".metadata").unlink()
    return tmp_path / "job"


def test_all_checkpoints_are_listed_newest_first(job: Path) -> None:
    found = read(job)
    assert [(each.step, each.state) for each in found.checkpoints] == [
        (300, "incomplete"),
        (200, "complete"),
        (100, "complete"),
    ]
    assert [each.step for each in found.complete] == [200, 100]
    assert found.remarks == ()
    assert read_one(job / "step-200").step == 200


def test_every_real_format_below_one_folder_is_found(tmp_path: Path) -> None:
    copy_real("", tmp_path / "all")
    found = read(tmp_path / "all")
    assert {each.format for each in found.checkpoints} == {"dcp", "torch_dist", "ds_zero", "universal"}
    assert {each.state for each in found.checkpoints} == {"complete"}
    assert len(found.checkpoints) == 6
    assert found.remarks == ()


def test_checkpoint_that_changed_a_moment_ago_or_of_a_clock_ahead_is_being_written(job: Path) -> None:
    os.utime(job / "step-200" / "__3_0.distcp", ns=(NOW_NS - 4 * S, NOW_NS - 4 * S))
    found = {each.step: each for each in read(job).checkpoints}
    assert (found[200].state, found[200].reason) == ("writing", "its newest file changed 4 s ago")
    assert found[100].state == "complete"
    assert {each.step: each.state for each in read(job, NOW_NS + 7 * S).checkpoints}[200] == "complete"
    os.utime(job / "step-200" / "__3_0.distcp", ns=(NOW_NS + 90 * S, NOW_NS + 90 * S))
    ahead = read(job).checkpoints[1]
    assert (ahead.state, ahead.reason) == ("writing", "its newest file is of 90 s ahead of this host's clock")


def test_checkpoint_that_grew_between_two_readings_is_being_written(job: Path) -> None:
    before = read(job)
    with (job / "step-200" / "__3_0.distcp").open("ab") as shard:
        shard.write(b"more")
    make_old(job, OLD_NS + S)
    found = read(job, before=before).checkpoints[1]
    assert (found.state, found.reason) == ("writing", "has grown by 4 bytes since it was looked at before")
    again = read(job, before=read(job, before=before)).checkpoints[1]
    assert again.state == "complete"
    shutil.copy(job / "step-200" / ".metadata", job / "step-300" / ".metadata")
    make_old(job)
    assert read(job, before=before).checkpoints[0].state == "writing", "it was incomplete, and is finished now"
    assert read(job, before=read(job, before=before)).checkpoints[0].state == "complete"


def test_what_was_verified_is_opened_again_only_when_it_has_changed(job: Path) -> None:
    contents = Contents()
    before = read(job, contents=contents)
    metadata = job / "step-200" / ".metadata"
    metadata.write_bytes(bytes(metadata.stat().st_size))
    make_old(job)
    assert read(job, contents=contents).checkpoints[1] == before.checkpoints[1]
    assert read(job).checkpoints[1].state == "incomplete"
    (job / "step-200" / "__0_0.distcp").unlink()
    assert read(job, contents=contents).checkpoints[1].state == "incomplete"


def test_file_or_folder_with_a_temporary_name_means_that_the_writer_has_not_ended(job: Path) -> None:
    (job / "step-300" / "__3_0.distcp.part").write_bytes(b"x")
    for name in ("step-400.part", "step-401.tmp", "step-402-tmp"):
        shutil.copytree(job / "step-200", job / name)
    make_old(job)
    begun = {402: "step-402-tmp", 401: "step-401.tmp", 400: "step-400.part", 300: "__3_0.distcp.part"}
    assert [(each.step, each.state, each.reason) for each in read(job).checkpoints[:4]] == [
        (step, "incomplete", f"its writer has not ended: {name} has not got its last name yet")
        for step, name in begun.items()
    ]


def test_links_in_a_circle_and_to_nowhere_end_and_a_pipe_is_not_opened(job: Path) -> None:
    (job / "step-200" / "__3_0.distcp").unlink()
    os.mkfifo(job / "step-200" / "__3_0.distcp")
    make_old(job)
    (job / "again").symlink_to(job)
    (job / "newest").symlink_to(job / "step-200")
    (job / "nowhere").symlink_to(job / "nowhere")
    found = read(job)
    assert [each.path for each in found.checkpoints] == [str(job / f"step-{step}") for step in (300, 200, 100)]
    assert found.checkpoints[1].reason == "__3_0.distcp named in .metadata is not there"
    assert found.remarks == (f"{job}/nowhere cannot be read: Too many levels of symbolic links",)


@pytest.mark.parametrize("shown", [True, False])
def test_folder_that_may_not_be_read_is_a_sentence(job: Path, shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who may read everything: the refusal is put in by hand."""
    scan = os.scandir

    def refuse(path: Path) -> object:
        if path == (job / "step-100" if shown else job):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    if shown:
        found = read(job)
        assert [each.step for each in found.checkpoints] == [300, 200]
        assert found.remarks[0] == f"{job}/step-100 cannot be read: Permission denied"
    else:
        with pytest.raises(BadInput, match=f"^{job} cannot be read: Permission denied$"):
            read(job)


def test_folder_that_is_not_there_is_one_sentence_and_an_empty_one_has_no_checkpoints(tmp_path: Path) -> None:
    assert read(tmp_path).checkpoints == ()
    with pytest.raises(BadInput, match=f"^{tmp_path}/gone cannot be read: No such file or directory$"):
        read(tmp_path / "gone")
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match=f"^{tmp_path}/file cannot be read: Not a directory$"):
        read(tmp_path / "file")


def test_no_more_folders_are_looked_at_than_may_be_and_none_below_the_depth(tmp_path: Path) -> None:
    copy_real(DCP, tmp_path / "a" / "b" / "step-200")
    assert len(read(tmp_path, most_depth=3).checkpoints) == 1
    assert read(tmp_path, most_depth=2).checkpoints == ()
    for number in range(20):
        (tmp_path / f"run{number}").mkdir()
    assert read(tmp_path, most_folders=10).remarks == (f"only 10 folders below {tmp_path} were looked at",)


def test_pointer_to_what_is_not_complete_is_remarked(tmp_path: Path) -> None:
    """DeepSpeed's rank 0 writes `latest` when its own files are written, whatever the others do."""
    fake_zero(tmp_path / "global_step7")
    (tmp_path / "global_step7" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    (tmp_path / "latest").write_text("global_step7")
    (tmp_path / "latest_universal").write_text("global_step5_universal")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("12")
    lacks = "2 ranks saved, and zero_pp_rank_1_mp_rank_00_optim_states.pt is not there"
    assert read(tmp_path).remarks == (
        f"latest names global_step7, which is incomplete: {lacks}",
        "latest_universal names global_step5_universal, of which there is no checkpoint here",
        "latest_checkpointed_iteration.txt names iter_0000012, of which there is no checkpoint here",
    )


def test_pointer_with_nonsense_names_nothing_and_a_folder_that_was_begun_is_remarked(job: Path) -> None:
    for data in (b"\xff\xfe", b"a" * 5000, b"", b"../../etc", b"a\x1b[31m"):
        (job / "latest").write_bytes(data)
        assert read(job).remarks == ()
    (job / "step-400").mkdir()
    assert read(job).remarks == ("step-400 holds no file of a format that is known here",)


def test_step_stands_in_the_name() -> None:
    steps = {
        "run/step-1000": 1000,
        "run/iter_0000123": 123,
        "run/global_step10": 10,
        "run/model--val=1.2-step=500-last/weights": 500,
        "run/checkpoint-42": 42,
        "run/0000900": 900,
        "run12/weights": None,
        "run/step-99999999999999999999": None,
    }
    assert {path: find_step(Path("/top") / path, Path("/top")) for path in steps} == steps
