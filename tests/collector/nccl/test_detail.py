"""What is kept of the last minutes stays below its limit, and comes back as it was."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from collector.nccl.communicators import Origin
from collector.nccl.detail import KEPT_NS, KeptDetail, KeptProcess, MinutesRequest, Target
from collector.nccl.ringfile import open_ring
from collector.nccl.snapshot import Reading, take_reading
from lockstep import wire
from tests.builders import SECOND, T0
from tests.collector.nccl.forging import Forged

EVERYTHING = MinutesRequest("w", Target("j", None), KEPT_NS, T0 + KEPT_NS)


def recorded(tmp_path: Path, count: int = 100) -> tuple[KeptProcess, Reading]:
    """Return a process of job `j` and a reading of so many operations."""
    forged = Forged()
    forged.table("comms")[1] = (1, 7, 0, 0, 0, 2, 2, 0, b"world")
    forged.append(1, count)
    records = forged.table("records", wire.ENQUEUED)
    records["operation"] = np.uint64(0xBEEF << wire.TAG_SHIFT) + np.arange(len(records), dtype=np.uint64)
    records["func"], records["epoch"] = wire.ALL_REDUCE, 1
    ring = open_ring(forged.write(tmp_path / "a.ring"))
    process = KeptProcess(ring, Origin("h0", "j"))
    return process, take_reading(ring)


def test_records_come_back_as_rows_that_were_not_sent(tmp_path: Path) -> None:
    process, reading = recorded(tmp_path)
    kept = KeptDetail(1 << 20)
    kept.keep(process, reading, T0, share=16_384)
    empty = replace(reading, records=process.ring.sort(reading.records.slots[:0]))
    kept.keep(process, empty, T0 + 10 * SECOND, share=16_384)
    process.ring.close()
    replay = kept.replay(EVERYTHING, T0 + 10 * SECOND)
    rows = [row for tables in replay.take(1e9) for row in tables["collectives"].to_pylist()]
    assert not replay.pieces
    assert 50 < len(rows) < 95
    assert {row["bytes"] for row in rows} <= {seq * 3 for seq in range(100)}
    assert not kept.replay(EVERYTHING, T0 + 11 * SECOND).pieces  # all of it was sent


def test_oldest_goes_first_when_the_limit_is_reached_and_is_counted(tmp_path: Path) -> None:
    process, reading = recorded(tmp_path)
    kept = KeptDetail(20_000)
    for second in range(60):
        kept.keep(process, reading, T0 + second * SECOND, share=1)
        assert kept.bytes <= 20_000
    left = len(kept.replay(EVERYTHING, T0 + 60 * SECOND).pieces)
    assert 0 < left < 60
    assert kept.dropped == (60 - left) * 100


def test_what_is_too_old_goes_without_being_counted(tmp_path: Path) -> None:
    process, reading = recorded(tmp_path)
    kept = KeptDetail(1 << 20)
    kept.keep(process, reading, T0, share=1)
    kept.keep(process, reading, T0 + KEPT_NS + 1, share=1)
    assert len(kept.replay(EVERYTHING, T0 + KEPT_NS).pieces) == 1
    assert kept.dropped == 0


def test_only_what_is_meant_is_selected(tmp_path: Path) -> None:
    process, reading = recorded(tmp_path)  # of world rank 3
    kept = KeptDetail(1 << 20)
    for second in range(10):
        kept.keep(process, reading, T0 + second * SECOND, share=1)
    short = replace(EVERYTHING, duration_ns=3 * SECOND)
    assert not kept.replay(replace(short, target=Target("other", None)), T0 + 10 * SECOND).pieces
    assert not kept.replay(replace(short, target=Target("j", frozenset({4}))), T0 + 10 * SECOND).pieces
    chosen = kept.replay(replace(short, target=Target("j", frozenset({3}))), T0 + 10 * SECOND).pieces
    assert [piece.now_ns - T0 for piece in chosen] == [7 * SECOND, 8 * SECOND, 9 * SECOND]


def test_what_a_process_did_last_is_there_as_soon_as_it_has_ended(tmp_path: Path) -> None:
    for is_last in (False, True):
        process, reading = recorded(tmp_path)
        kept = KeptDetail(1 << 20)
        kept.keep(process, reading, int(reading.clock.unix_ns[-1]), share=0, is_last=is_last)
        rows = [row for tables in kept.replay(EVERYTHING, T0).take(1e9) for row in tables["collectives"].to_pylist()]
        assert len(rows) == 100 * is_last
        process.ring.close()
