"""A directory of checkpoints is read whatever lies in it, and only what is verified is called complete."""

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.clock import ManualClock
from lockstep.errors import BadInput
from planner.checkpoints.catalogue import Budget, Contents, find_step
from planner.checkpoints.choose import choose_checkpoint
from tests.planner.checkpoints.build import DATA, NOW_NS, OLD_NS, copy_real, fake_zero, make_old, read, read_one
from tests.planner.checkpoints.test_torch_file import safetensors

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


def test_every_real_format_below_one_folder_is_found(tmp_path: Path) -> None:
    found = read(copy_real("", tmp_path / "all"))
    assert {each.format for each in found.checkpoints} == {"dcp", "torch_dist", "ds_zero", "universal"}
    assert (len(found.complete), len(found.checkpoints), found.remarks) == (6, 6, ())


def test_checkpoint_that_changed_a_moment_ago_or_of_a_clock_ahead_is_being_written(job: Path) -> None:
    for ago_s, told in ((4, "changed 4 s ago"), (-90, "is of 90 s ahead of this host's clock")):
        os.utime(job / "step-200" / "__3_0.distcp", ns=(NOW_NS - ago_s * S, NOW_NS - ago_s * S))
        found = read(job).checkpoints
        assert [each.state for each in found] == ["incomplete", "writing", "complete"]
        assert found[1].reason == f"its newest file {told}"
    assert read(job, NOW_NS + 100 * S).checkpoints[1].state == "complete"


def test_checkpoint_that_grew_or_was_finished_between_two_readings_is_being_written(job: Path) -> None:
    before = read(job)
    with (job / "step-200" / "__3_0.distcp").open("ab") as shard:
        shard.write(b"more")
    shutil.copy(job / "step-200" / ".metadata", job / "step-300" / ".metadata")
    make_old(job, OLD_NS + S)
    now = read(job, before=before)
    assert [each.state for each in now.checkpoints] == ["writing", "writing", "complete"]
    assert now.checkpoints[1].reason == "has grown by 4 bytes since it was looked at before"
    assert [each.state for each in read(job, before=now).checkpoints] == ["complete"] * 3


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


def test_folder_that_may_not_be_read_is_a_sentence(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who may read everything: the refusal is put in by hand."""
    scan, closed = os.scandir, job / "step-100"

    def refuse(path: Path) -> object:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = read(job)
    assert [each.step for each in found.checkpoints] == [300, 200]
    assert found.remarks[0] == f"{job}/step-100 cannot be read: Permission denied"
    closed = job
    with pytest.raises(BadInput, match=f"^{job} cannot be read: Permission denied$"):
        read(job)


def test_folder_that_is_not_there_is_one_sentence_and_an_empty_one_has_no_checkpoints(tmp_path: Path) -> None:
    assert read(tmp_path).checkpoints == ()
    (tmp_path / "file").write_text("x")
    for name, why in (("gone", "No such file or directory"), ("file", "Not a directory")):
        with pytest.raises(BadInput, match=f"^{tmp_path}/{name} cannot be read: {why}$"):
            read(tmp_path / name)


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
    (job / "step-400").mkdir()
    for data in (b"\xff\xfe", b"a" * 5000, b"", b"../../etc", b"a\x1b[31m"):
        (job / "latest").write_bytes(data)
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


REAL = {
    "dcp/step-200": "__1_0.distcp",
    "megatron_like/iter_0000100": "__1_0.distcp",
    "zero_1/global_step3": "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "zero_1/global_step3_universal": "zero/0.weight/fp32.pt",
}


def flip(data: bytes) -> bytes:
    """Change one bit of the first tensor, which may be a single number."""
    header = data.rindex(b"PK\x03\x04", 0, data.index(b"data/0"))
    at = header + 30 + sum(struct.unpack_from("<2H", data, header + 26)) + 1
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


def zeros(data: bytes) -> bytes:
    return bytes(len(data))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zero-filled": zeros,
    "garbage": lambda data: random.Random(7).randbytes(len(data)),
    "half zeros": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "cut": lambda data: data[:-100],
    "flipped": flip,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", REAL)
def test_damaged_shard_is_never_complete_and_the_one_before_is_chosen(tmp_path: Path, name: str, damage: str) -> None:
    older, newest = copy_real(name, tmp_path / "step-1"), copy_real(name, tmp_path / "step-200")
    shard = newest / REAL[name]
    shard.write_bytes(DAMAGES[damage](shard.read_bytes()))
    make_old(newest, OLD_NS + 1)
    found = read(tmp_path)
    by_path = {each.path: each for each in found.checkpoints}
    assert by_path[str(older)].state == "complete"
    assert by_path[str(newest)].state in ("incomplete", "unreadable")
    assert shard.name in by_path[str(newest)].reason
    choice = choose_checkpoint(found, next(each.layout for each in found.complete))
    assert choice.checkpoint is not None
    assert choice.checkpoint.path == str(older)
    assert [each.path for each in choice.passed_over] == [str(newest)]


def test_reason_says_that_records_were_read_back_or_what_is_wrong(tmp_path: Path) -> None:
    folder = copy_real(DCP, tmp_path / "step-200")
    assert read_one(folder).reason.endswith("are there with all their bytes; its records were read back")
    shard, other = (
        folder / "__0_0.distcp",
        "has other bytes in archive/data/0 than were written: its checksum does not hold",
    )
    for damage, message in (
        (flip, other),
        (zeros, "has the bytes that .metadata says, and they are no records of torch"),
    ):
        shard.write_bytes(damage(shard.read_bytes()))
        make_old(folder)
        assert (read_one(folder).state, read_one(folder).reason) == ("unreadable", f"{shard.name} {message}")


def test_safetensors_beside_are_read_back_too(tmp_path: Path) -> None:
    folder = copy_real("zero_1/global_step3", tmp_path / "global_step3")
    (folder / "model.safetensors").write_bytes(safetensors({}, b""))
    make_old(folder)
    assert read_one(folder).state == "complete"
    (folder / "model.safetensors").write_bytes(safetensors({}, b"more"))
    make_old(folder)
    message = "model.safetensors says 0 bytes of tensors and holds 4"
    assert (read_one(folder).state, read_one(folder).reason) == ("unreadable", message)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    usual = Path.open

    def count(path: Path, *args: Any, **options: Any) -> Any:  # Any: as Path.open
        names.append(path.name)
        return usual(path, *args, **options)

    monkeypatch.setattr(Path, "open", count)
    return names


def test_file_that_has_not_changed_is_not_read_again(tmp_path: Path, opened: list[str]) -> None:
    copy_real(DCP, tmp_path / "step-200")
    copy_real("zero_1/global_step3", tmp_path / "global_step3")
    contents = Contents()
    first = read(tmp_path, contents=contents)
    assert "__0_0.distcp" in opened
    opened.clear()
    again = read(tmp_path, contents=contents)
    assert (again.checkpoints, opened) == (first.checkpoints, [])
    other = tmp_path / "other"  # of the same length and time, and another file
    other.write_bytes(bytes((tmp_path / "step-200" / "__0_0.distcp").stat().st_size))
    other.replace(tmp_path / "step-200" / "__0_0.distcp")
    make_old(tmp_path)
    found = {each.step: each.state for each in read(tmp_path, contents=contents).checkpoints}
    assert found == {200: "unreadable", 3: "complete"}
    assert not [name for name in opened if name.endswith(".pt")], "those have not changed"


def test_budget_goes_to_the_newest_first_and_what_it_did_not_reach_is_said_and_read_later(tmp_path: Path) -> None:
    for step in (1, 2):
        copy_real(DCP, tmp_path / f"step-{step}")
    size = sum(file.stat().st_size for file in (DATA / "dcp" / "step-200").glob("*.distcp"))
    contents = Contents(Budget(size // 6, 60.0))
    looks = [read(tmp_path, contents=contents).checkpoints for _ in range(12)]
    unread = [["not read back yet" in each.reason for each in look] for look in looks]
    assert unread[0] == [True, True]
    assert [False, True] in unread, "the newest is read to its end before the other is begun"
    assert unread[-1] == [False, False]
    assert {each.state for look in looks for each in look} == {"complete"}
    late = read(tmp_path, contents=Contents(Budget(most_s=0.0))).checkpoints
    assert late[0].reason.endswith("; 9.16e-05 GB of it are not read back yet")


def test_file_that_is_written_or_goes_away_meanwhile_is_not_called_unreadable(tmp_path: Path) -> None:
    shard = copy_real(DCP, tmp_path / "step-200") / "__3_0.distcp"

    def change_it(change: Callable[[], object]) -> tuple[str, str]:
        contents = Contents(Budget(most_s=0.0))
        listed = read(tmp_path, contents=contents).checkpoints
        change()
        contents.budget = Budget()
        (found,) = contents.read_back(listed)
        return found.state, found.reason

    written = change_it(lambda: shard.write_bytes(flip(shard.read_bytes())))
    assert written == ("writing", "__3_0.distcp has changed while it was read back")
    make_old(shard.parent)
    gone = change_it(shard.unlink)
    assert gone == ("unverified", "__3_0.distcp cannot be read: No such file or directory")


def test_directories_that_share_a_budget_do_not_get_it_each(tmp_path: Path) -> None:
    folders = [copy_real(DCP, tmp_path / job / "step-200").parent for job in ("a", "b")]
    clock = ManualClock()
    budget = Budget(9_000, every_s=5.0, clock=clock)
    readers = [(folder, Contents(budget)) for folder in folders]

    def look(wait_s: float) -> list[bool]:
        clock.advance(wait_s)
        found = [read(folder, contents=contents).checkpoints[0] for folder, contents in readers]
        return ["not read back yet" in each.reason for each in found]

    assert [look(0) for _ in range(9)] == [[True, True]] * 9, "no time has passed"
    seen = [look(5) for _ in range(9)]
    assert seen.index([False, True]) < seen.index([False, False])
