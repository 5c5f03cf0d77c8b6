"""Every record comes once, in order and whole, or is counted as lost, also when we race a real writer."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from collector.kernel.foreign_file import ForeignFile
from collector.nccl import draining
from collector.nccl.draining import Records
from collector.nccl.ringfile import RingFile, open_ring
from lockstep import wire
from lockstep.errors import BadRing
from tests.collector.nccl.forging import RECORDS, Forged, Sizes
from tests.conftest import REPO
from tests.tiers import long_except

KEPT = RECORDS - draining.SLACK - 1  # of a ring that is full
BYTES_AT = 24  # in an enqueued record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ring"


def numbers(records: Records) -> list[int]:
    seen: list[int] = records.sorted.enqueued["seq"].tolist()
    return seen


def seen_by(ring: RingFile) -> tuple[list[int], int]:
    """Return the numbers of the next records, and how many were lost."""
    records = ring.read_records()
    return numbers(records), records.lost


def test_records_come_once_and_in_order_ring_by_ring_also_over_the_edge(path: Path) -> None:
    forged = Forged()
    forged.append(1, 3)
    forged.append(0, 2)
    with open_ring(forged.write(path)) as ring:
        assert numbers(ring.read_records()) == [0, 1, 0, 1, 2]
        assert numbers(ring.read_records()) == []
        for begin, count in ((3, RECORDS - 100), (RECORDS - 97, 103)):
            forged.append(1, count)
            forged.write(path)
            assert seen_by(ring) == (list(range(begin, begin + count)), 0)


def test_too_many_records_are_read_part_by_part_and_rings_end_at_the_same_time(path: Path) -> None:
    forged = Forged()
    forged.append(0, 40)
    forged.append(1, 120)
    ticks = forged.table("records", wire.ENQUEUED)["ticks"]
    ticks[:40], ticks[RECORDS : RECORDS + 120] = np.arange(40) * 50, np.arange(120) * 10
    with open_ring(forged.write(path)) as ring:
        parts = [ring.read_records(most=80) for _ in range(2)]
        assert numbers(parts[0]) == [*range(12), *range(60)]  # half of each, up to when the busier one tells all
        assert parts[0].until_ticks == 590
        assert parts[1].until_ticks is not None
        parts += [ring.read_records(most=80), ring.read_records()]
        assert parts[2].until_ticks is None
    enqueued = np.concatenate([part.sorted.enqueued for part in parts])
    assert sorted(enqueued["seq"].tolist()) == sorted([*range(40), *range(120)])
    assert sum(part.lost for part in parts) == 0


def test_records_are_distinguished_by_kind_and_unknown_kinds_are_lost_and_unknown_codes_and_places_unknown(
    path: Path,
) -> None:
    forged = Forged()
    kinds = [wire.KIND_STEP_CLOSED, wire.KIND_ENQUEUED, wire.KIND_CALLBACK, wire.KIND_KERNEL_CLOSED]
    for kind in [*kinds, wire.KIND_TRANSFER_CLOSED, wire.KIND_STEP_CLOSED, 99, 99]:
        forged.append(1, 1, kind)
    slot = forged.table("records", wire.ENQUEUED)[RECORDS + 1 : RECORDS + 2]
    slot["func"], slot["dtype"], slot["algo"], slot["proto"], slot["comm"] = 255, 13, 8, 4, 8
    slot["bytes"], slot["seq"] = (1 << 64) - 1, 1 << 63
    with open_ring(forged.write(path)) as ring:
        records = ring.read_records()
    tables = [getattr(records.sorted, name) for name in ("enqueued", "transfers", "kernels", "steps", "callbacks")]
    types = [wire.ENQUEUED, wire.TRANSFER_CLOSED, wire.KERNEL_CLOSED, wire.STEP_CLOSED, wire.CALLBACK]
    assert [table.dtype for table in tables] == types
    assert [table["kind"].tolist() for table in tables] == [[1], [2], [3], [4, 4], [5]]
    assert records.lost == 2
    (record,) = records.sorted.enqueued
    assert [int(record[name]) for name in ("func", "dtype", "algo", "proto")] == [0, 0, 0, 0]
    assert int(record["comm"]) == wire.NO_COMM
    assert (int(record["bytes"]), int(record["seq"])) == ((1 << 63) - 1, (1 << 63) - 1)


def test_record_that_is_being_written_is_waited_for_till_the_second_look_and_a_replaced_one_not(path: Path) -> None:
    for number, stamp in ((0, wire.BUSY), (1, 0)):
        forged = Forged()
        forged.append(number, 5)
        forged.put(number, 2, stamp=stamp)
        with open_ring(forged.write(path)) as ring:
            assert numbers(ring.read_records()) == [0, 1]
            forged.put(number, 2)
            forged.write(path)
            assert seen_by(ring) == ([2, 3, 4], 0)
    forged = Forged()
    forged.append(0, 9)
    for number in (2, 4, 5):
        forged.put(0, number, stamp=wire.BUSY)
    with open_ring(forged.write(path)) as ring:
        assert numbers(ring.read_records()) == [0, 1]
        forged.append(0, 3)
        forged.put(0, 10, stamp=wire.BUSY)  # begun since: it has its turn to be waited for
        forged.write(path)
        assert seen_by(ring) == ([3, 6, 7, 8, 9], 3)
        assert seen_by(ring) == ([11], 1)
        forged.append(1, 5)
        forged.put(1, 2, stamp=7)  # by a later one
        forged.write(path)
        assert seen_by(ring) == ([0, 1, 3, 4], 1)


def test_overwritten_records_and_a_head_that_goes_back_are_counted_and_one_that_nobody_can_reach_is_refused(
    path: Path,
) -> None:
    for written in (RECORDS, 2 * RECORDS - 1):
        forged = Forged()
        forged.append(1, written)
        with open_ring(forged.write(path)) as ring:
            assert seen_by(ring) == (list(range(written - KEPT, written)), written - KEPT)
            assert ring.read_records().lost == 0
    forged = Forged()
    forged.append(1, 9)
    with open_ring(forged.write(path)) as ring:
        ring.read_records()
        forged.table("rings")["head"][1] = 4
        forged.write(path)
        assert seen_by(ring) == ([], 1)
        forged.table("rings")["head"][1] = 9
        forged.append(1, 1)
        forged.write(path)
        assert numbers(ring.read_records()) == [9], "none comes twice"
    for head in ((1 << 64) - 1, 0xFFFFFFFE * RECORDS):
        forged.table("rings")["head"][1] = head
        with open_ring(forged.write(path)) as ring, pytest.raises(BadRing, match="ring 1 has seen"):
            ring.read_records()
    forged.table("rings")["head"][1] = 0xFFFFFFFE * RECORDS - 1
    with open_ring(forged.write(path)) as ring:
        assert sum(ring.read_records().lost for _ in range(3)) == 0xFFFFFFFE * RECORDS - 1


def test_failed_read_loses_nothing(path: Path) -> None:
    forged = Forged()
    forged.append(0, 3)
    forged.append(1, 3)
    with open_ring(forged.write(path)) as ring:
        content = path.read_bytes()
        path.write_bytes(content[: int(forged.header["records"]["offset"]) + RECORDS * 64 + 100])
        with pytest.raises(BadRing, match="was cut"):
            ring.read_records()
        path.write_bytes(content)
        assert numbers(ring.read_records()) == [0, 1, 2, 0, 1, 2]


class InterruptedFile(ForeignFile):
    """A file in which the writer goes on while a copy of the records is half done."""

    def __init__(self, path: Path, at: int, go_on: Callable[[], object]) -> None:
        super().__init__(path)
        self.at, self.go_on = at, go_on

    def read_at(self, offset: int, size: int) -> NDArray[np.uint8]:
        if not offset < self.at < offset + size:
            return super().read_at(offset, size)
        before = super().read_at(offset, self.at - offset)
        self.go_on()
        return np.concatenate([before, super().read_at(self.at, offset + size - self.at)])


def read_while_written(path: Path, more: int) -> Records:
    """Read a full ring while the writer overtakes the copy in the middle of record 100, between seq and bytes."""
    forged = Forged()
    forged.append(1, RECORDS)
    forged.write(path)

    def go_on() -> None:
        forged.append(1, more)
        forged.write(path)

    at = int(forged.header["records"]["offset"]) + (RECORDS + 100) * 64 + BYTES_AT
    with RingFile(InterruptedFile(path, at, go_on)) as ring:
        return ring.read_records()


def torn(records: Records) -> list[int]:
    read = records.sorted.enqueued
    found: list[int] = read["seq"][read["bytes"] != read["seq"] * 3].tolist()
    return found


def test_record_that_changes_while_it_is_copied_or_is_announced_late_is_dropped(path: Path) -> None:
    for more in (1, 101, 165, RECORDS + 101):
        path.unlink(missing_ok=True)
        records = read_while_written(path, more)
        first = min(more + draining.SLACK + 1, RECORDS)
        assert torn(records) == []
        assert (numbers(records), records.lost) == (list(range(first, RECORDS)), first)
    # A weakly ordered processor: the writer is ahead of the head that we see, by less than the slack.
    forged = Forged()
    forged.append(1, RECORDS)
    forged.put(1, *range(RECORDS, RECORDS + draining.SLACK))
    with open_ring(forged.write(path)) as ring:
        records = ring.read_records()
    assert (torn(records), numbers(records)) == ([], list(range(draining.SLACK + 1, RECORDS)))


WRITER = Path(__file__).with_name("writer.c")
WRITTEN = 3_000_000


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("racing a writer needs a C compiler")
    program = tmp_path_factory.mktemp("writer") / "writer"
    include = f"-I{REPO / 'nccl_plugin'}"
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", include, str(WRITER), "-pthread"]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def race(writer: Path, path: Path, threads: int, ring_records: int) -> tuple[list[Records], int]:
    """Read from when the writer has overtaken us once, which waits for that, until it has ended, and twice more.

    What it had begun is waited for once. Returned are what was read, and how many records were begun.
    """
    Forged(Sizes(records=ring_records)).write(path)
    command = [str(writer), str(path), str(WRITTEN), str(threads), str(3 * ring_records)]
    pipe = subprocess.PIPE
    with open_ring(path) as ring, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "lapped\n"
        read = [ring.read_records()]
        process.stdin.close()
        while process.poll() is None:
            read.append(ring.read_records())
        read += [ring.read_records(), ring.read_records()]
        return read, int(process.stdout.read())


@pytest.mark.slow
@pytest.mark.parametrize("ring_records", [256, wire.RING_RECORDS])
@pytest.mark.parametrize("threads", long_except([4], [1, 4]))
def test_no_record_is_torn_or_twice_or_uncounted(
    writer: Path, tmp_path: Path, threads: int, ring_records: int
) -> None:
    read, begun = race(writer, tmp_path / "a.ring", threads, ring_records)
    steps, lost = np.concatenate([one.sorted.steps for one in read]), sum(one.lost for one in read)
    words = steps.view("<u8").reshape(-1, 8)[:, 1:]
    number = words[:, 0]
    assert (words == number[:, None] * np.arange(1, 14, 2, dtype=np.uint64)).all(), "a torn record"
    assert (steps["stamp"] == number // np.uint64(ring_records) + np.uint64(1)).all()
    assert (np.diff(number.astype(np.int64)) > 0).all(), "twice, or out of order"
    assert len(number) + lost == begun == WRITTEN
    assert sum(len(one.sorted.steps) > 0 for one in read) > 1, "the reader was not there while the writer wrote"
    assert lost >= ring_records, "what was overwritten before it was read is not counted"
