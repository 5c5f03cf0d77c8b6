"""What is kept of the last minutes stays below its limit, and comes back as it was."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collector.nccl.communicators import Origin
from collector.nccl.detail import (
    KEPT_NS,
    Detail,
    KeptDetail,
    KeptProcess,
    MinutesRequest,
    MinutesRequests,
    Target,
    read_details,
    wanted_detail,
)
from collector.nccl.ringfile import open_ring
from collector.nccl.snapshot import Reading, take_reading
from lockstep import wire
from lockstep.batches import DetailRequest
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
    empty = replace(reading, records=replace(reading.records, slots=reading.records.slots[:0]))
    kept.keep(process, empty, T0 + 10 * SECOND, share=16_384)
    process.ring.close()
    replay = kept.replay(EVERYTHING, T0 + 10 * SECOND)
    rows = [row for tables in replay.take(1e9) for row in tables["collectives"].to_pylist()]
    assert not replay.pieces
    assert 50 < len(rows) < 95
    assert {row["bytes"] for row in rows} <= {seq * 3 for seq in range(100)}
    assert not kept.replay(EVERYTHING, T0 + 11 * SECOND).pieces  # all of it was sent


def test_oldest_goes_first_when_the_limit_is_reached_and_is_counted_unless_it_is_too_old(tmp_path: Path) -> None:
    process, reading = recorded(tmp_path)
    kept = KeptDetail(20_000)
    for second in range(60):
        kept.keep(process, reading, T0 + second * SECOND, share=1)
        assert kept.bytes <= 20_000
    left = len(kept.replay(EVERYTHING, T0 + 60 * SECOND).pieces)
    assert 0 < left < 60
    assert kept.dropped == (60 - left) * 100
    aged = KeptDetail(1 << 20)
    aged.keep(process, reading, T0, share=1)
    aged.keep(process, reading, T0 + KEPT_NS + 1, share=1)
    assert len(aged.replay(EVERYTHING, T0 + KEPT_NS).pieces) == 1
    assert aged.dropped == 0
    kept = KeptDetail(1 << 20)  # only what is meant is selected, here of world rank 3
    for second in range(10):
        kept.keep(process, reading, T0 + second * SECOND, share=1)
    short = replace(EVERYTHING, duration_ns=3 * SECOND)
    assert not kept.replay(replace(short, target=Target("other", None)), T0 + 10 * SECOND).pieces
    assert not kept.replay(replace(short, target=Target("j", frozenset({4}))), T0 + 10 * SECOND).pieces
    chosen = kept.replay(replace(short, target=Target("j", frozenset({3}))), T0 + 10 * SECOND).pieces
    assert [piece.now_ns - T0 for piece in chosen] == [7 * SECOND, 8 * SECOND, 9 * SECOND]


USUAL = Detail(wire.TRANSFERS, 655)


def request(kind: str, name: str = "w", expires_ns: int = 100, **details: Any) -> DetailRequest:
    return DetailRequest(id=name, host="h0", kind=kind, details=details, expires_ns=expires_ns)


def wanted(*requests: DetailRequest, job: str = "j", rank: int | None = 3) -> Detail:
    return wanted_detail(read_details(requests, 50), USUAL, job, rank)


WRONG: list[dict[str, Any]] = [{}, {"job": 7, "level": "steps"}, {"job": "j", "level": "trace"}]
WRONG += [{"job": "j", "level": "steps"} | wrong for wrong in ({"share": 2}, {"share": "all"}, {"ranks": "3"})]
WRONG += [{"job": "j", "level": ["steps"]}, {"expires_ns": 50, "job": "j", "level": "steps"}]


def test_detail_is_the_most_that_is_requested_and_what_makes_no_sense_or_has_expired_is_not() -> None:
    steps = request("detail", job="j", level="steps", share=0.5)
    more = request("detail", job="j", level="transfers", share=1.0, ranks=[3])
    assert wanted(steps, more) == Detail(wire.STEPS, 65_536)
    assert wanted(steps, more, rank=4) == Detail(wire.STEPS, 32_768)
    assert wanted(steps, more, job="other") == USUAL
    assert wanted(request("detail", job="j", level="operations", share=0)) == USUAL
    assert wanted(more, rank=None) == USUAL
    assert [wanted(request("detail", **details)) for details in WRONG] == [USUAL] * len(WRONG)


def test_last_minutes_are_requested_once_by_each_name_and_only_those_that_are_kept() -> None:
    requests = MinutesRequests()
    one, other = request("last_minutes", "a", job="j", minutes=2), request("last_minutes", "b", job="j")
    assert [each.duration_ns // 10**9 for each in requests.new([one, other], 50)] == [120, 600]
    assert requests.new([one, other], 60) == []
    assert requests.new([one], 100) == []  # expired
    wrong = [request("last_minutes", str(minutes), job="j", minutes=minutes) for minutes in (0, 11, "2", True, None)]
    assert requests.new(wrong, 0) == []
