"""A checkpoint is complete when its records can be read back: each file once, as far as the budget goes."""

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.clock import ManualClock
from planner.checkpoints.choose import choose_checkpoint
from planner.checkpoints.contents import Budget, Contents
from tests.planner.checkpoints.build import DATA, OLD_NS, copy_real, make_old, read, read_one
from tests.planner.checkpoints.test_torch_file import safetensors

pytestmark = pytest.mark.usefixtures("tried_here")

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


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zero-filled": lambda data: bytes(len(data)),
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
    folder = copy_real("dcp/step-200", tmp_path / "step-200")
    assert read_one(folder).reason.endswith("are there with all their bytes; its records were read back")
    shard = folder / "__0_0.distcp"
    shard.write_bytes(flip(shard.read_bytes()))
    make_old(folder)
    message = "__0_0.distcp has other bytes in archive/data/0 than were written: its checksum does not hold"
    assert (read_one(folder).state, read_one(folder).reason) == ("unreadable", message)
    shard.write_bytes(bytes(shard.stat().st_size))
    make_old(folder)
    found = read_one(folder)
    message = "__0_0.distcp has the bytes that .metadata says, and they are no records of torch"
    assert (found.state, found.reason) == ("unreadable", message)


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
    """The names of files in the order in which they are opened."""
    names: list[str] = []
    usual = Path.open

    def count(path: Path, *args: Any, **options: Any) -> Any:  # Any: as Path.open
        names.append(path.name)
        return usual(path, *args, **options)

    monkeypatch.setattr(Path, "open", count)
    return names


def test_file_that_has_not_changed_is_not_read_again(tmp_path: Path, opened: list[str]) -> None:
    copy_real("dcp/step-200", tmp_path / "step-200")
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
        copy_real("dcp/step-200", tmp_path / f"step-{step}")
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
    shard = copy_real("dcp/step-200", tmp_path / "step-200") / "__3_0.distcp"

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
    for job in ("a", "b"):
        copy_real("dcp/step-200", tmp_path / job / "step-200")
    clock = ManualClock()
    budget = Budget(9_000, every_s=5.0, clock=clock)
    readers = {job: Contents(budget) for job in ("a", "b")}

    def look() -> list[bool]:
        found = {job: read(tmp_path / job, contents=contents).checkpoints[0] for job, contents in readers.items()}
        return ["not read back yet" in each.reason for each in found.values()]

    assert [look() for _ in range(9)] == [[True, True]] * 9, "no time has passed"
    seen = []
    for _ in range(9):
        clock.advance(5)
        seen.append(look())
    assert seen.index([False, True]) < seen.index([False, False])
