"""The spool keeps what is packed over kills, in order, within its bounds, and knows how far the sources were."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.shipping import Batch
from collector.spool import Spool
from lockstep.errors import BadInput

PLENTY = 1 << 20
BOOT, LATER = "a" * 32, "0" * 32  # a later boot need not have a later name


def batch(number: int, size: int = 10, rows: int = 1, boot: str = BOOT) -> Batch:
    return Batch(boot, number, os.urandom(size), rows, {"kernel_log": str(number).encode()})


@contextmanager
def opened(directory: Path, max_bytes: int = PLENTY, memory_bytes: int = PLENTY) -> Iterator[Spool]:
    spool = Spool(directory, max_bytes, memory_bytes)
    try:
        yield spool
    finally:
        spool.close()


def drain(spool: Spool) -> list[Batch]:
    """Return what waits, acknowledging each."""
    taken = []
    while first := spool.first():
        taken.append(first)
        spool.remove(first)
    return taken


def test_what_was_packed_before_a_kill_is_sent_in_order_and_sources_go_on_behind_it_sent_or_not(
    tmp_path: Path,
) -> None:
    before, after = ([batch(number, boot=boot) for number in (1, 2, 3)] for boot in (BOOT, LATER))
    with opened(tmp_path) as spool:
        assert spool.checkpoints == {}
        for one in before:
            spool.put(one)
        spool.remove(before[0])
    with opened(tmp_path) as spool:
        assert spool.checkpoints == {"kernel_log": b"3"}
        spool.put(after[0])
        assert drain(spool) == [*before[1:], after[0]]
        assert (spool.bytes, spool.dropped_rows) == (0, 0)
    with opened(tmp_path) as spool:
        assert spool.first() is None
        assert spool.checkpoints == {"kernel_log": b"1"}, "the later start counts, whatever its boot is called"
    assert [len(list(tmp_path.glob(kind))) for kind in ("*.batch", "*.sent")] == [0, 1]


def test_dropped_and_refused_batches_are_counted_and_one_that_is_just_sent_is_not_mistaken_for_another(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "full", max_bytes=5_000) as spool:
        for number in range(1, 11):
            spool.put(batch(number, size=1_000, rows=3))
        left = [one.number for one in drain(spool)]
        assert left == list(range(11 - len(left), 11)), "the oldest go first"
        assert 0 < len(left) < 5
        assert spool.dropped_rows == 3 * (10 - len(left))
    with opened(tmp_path, max_bytes=1_500) as spool:
        slow, refused, kept = batch(1, size=1_000), batch(2, size=1_000, rows=4), batch(3)
        spool.put(slow)
        spool.put(refused)
        spool.remove(slow)
        assert spool.first() == refused
        spool.put(kept)
        spool.refuse(refused)
        assert spool.dropped_rows == 1 + 4
        assert drain(spool) == [kept]


@given(cut=st.integers(0, 400), flip=st.integers(0, 399))
def test_torn_file_is_lost_alone(tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int) -> None:
    directory = tmp_path_factory.mktemp("spool")
    whole = [batch(1, size=300), batch(2, size=300), batch(3, size=300)]
    with opened(directory) as spool:
        for one in whole:
            spool.put(one)
    torn = sorted(directory.glob("*.batch"))[1]
    content = bytearray(torn.read_bytes())
    content[flip % len(content)] ^= 0x40
    torn.write_bytes(content[: len(content) - 1 - cut % len(content)])
    with opened(directory) as spool:
        assert drain(spool) == [whole[0], whole[2]]
        assert spool.dropped_rows >= 1


def test_rows_of_a_torn_file_are_counted_and_one_that_has_its_receipt_is_no_loss(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for number in (1, 2):
            spool.put(batch(number, size=300))
        first = spool.first()
        assert first is not None
        spool.remove(first)
    for file in (*tmp_path.glob("*.batch"), *tmp_path.glob("*.sent")):
        file.write_bytes(file.read_bytes()[:-1])
    with opened(tmp_path) as spool:
        assert (spool.first(), spool.dropped_rows) == (None, first.rows)
    with opened(tmp_path) as spool:
        assert spool.dropped_rows == 0, "counted twice"


def test_unfinished_file_and_strangers_are_no_batches_and_a_spool_has_one_agent(tmp_path: Path) -> None:
    (tmp_path / f"00000001-{BOOT}-000000000001.batch.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    with opened(tmp_path) as spool:
        assert spool.first() is None
        with pytest.raises(BadInput, match="another agent uses the spool in"):
            Spool(tmp_path, PLENTY, PLENTY)
    assert {file.name for file in tmp_path.iterdir()} == {"notes.txt", "checkpoint"}
    with pytest.raises(BadInput, match=r"cannot use .*/notes.txt/spool as a spool"):
        Spool(tmp_path / "notes.txt/spool", PLENTY, PLENTY)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "lockstep-test", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.needs_root
def test_full_disk_sends_batches_to_memory_and_back_when_there_is_room(small_disk: Path) -> None:
    sizes = 200_000
    with opened(small_disk, memory_bytes=2 * PLENTY) as spool:
        packed = [batch(number, size=sizes) for number in range(1, 9)]
        for one in packed:
            spool.put(one)
        assert len(list(small_disk.glob("*.batch"))) < len(packed)
        assert drain(spool) == packed
        spool.put(batch(9, size=sizes))
        assert len(list(small_disk.glob("*.batch"))) == 1
        assert [one.number for one in drain(spool)] == [9]
    with opened(small_disk, memory_bytes=1_000) as spool:  # memory is bounded too
        fill(small_disk / "ballast")
        for number in range(1, 21):
            spool.put(batch(number, size=100))
        assert spool.dropped_rows == 10
        assert [one.number for one in drain(spool)] == list(range(11, 21))


@pytest.mark.needs_root
def test_full_disk_does_not_make_sources_read_again_what_may_be_acknowledged(small_disk: Path) -> None:
    with opened(small_disk) as spool:
        fill(small_disk / "ballast")
        for number in (1, 2, 3):
            spool.put(batch(number))
        first = spool.first()
        assert first is not None
        spool.remove(first)
        assert spool.first() is not None, "the second may be on its way"
    with opened(small_disk) as spool:
        assert spool.checkpoints == {"kernel_log": b"2"}
        assert spool.first() is None, "memory is gone with the agent"


@pytest.mark.needs_root
def test_nothing_goes_to_disk_before_what_waits_in_memory(small_disk: Path) -> None:
    """A kill must lose the end of what was packed, which is read again, and never something in the middle."""
    with opened(small_disk) as spool:
        spool.put(batch(1))
        fill(small_disk / "ballast")
        for number in (2, 3):
            spool.put(batch(number))
        (small_disk / "ballast").unlink()
        spool.put(batch(4))
    with opened(small_disk) as spool:
        assert [one.number for one in drain(spool)] == [1, 2, 3, 4]


def fill(file: Path) -> None:
    with open(file, "wb", buffering=0) as out:
        try:
            while True:
                out.write(b"\0" * 4096)
        except OSError:
            return
