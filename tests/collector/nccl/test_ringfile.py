"""The control page, what is open, and what no forged file can do: raise anything but BadRing, or read without end."""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.nccl.ringfile import Live, RingFile, open_ring
from lockstep import wire
from lockstep.errors import BadRing
from tests.collector.nccl.forging import ChangingFile, Forged, forge


def request_in(path: Path, forged: Forged) -> tuple[int, ...]:
    offset = int(forged.header["requests"]["offset"])
    content = path.read_bytes()[offset : offset + wire.REQUEST.itemsize]
    return tuple(np.frombuffer(content, wire.REQUEST)[0].tolist())


def test_status_is_as_the_plugin_wrote_it_and_one_that_cannot_be_is_refused(tmp_path: Path) -> None:
    forged = Forged()
    status = forged.table("status")
    status["level"], status["paid_ppm"], status["stale"] = wire.STEPS, -12, 5
    path = forged.write(tmp_path / "a.ring")
    with open_ring(path) as ring:
        found = ring.status()
        assert (int(found["level"]), int(found["paid_ppm"]), int(found["stale"])) == (wire.STEPS, -12, 5)
        for level, lowered in ((5, 0), (wire.STEPS, 3)):
            status["level"], status["lowered"] = level, lowered
            forged.write(path)
            with pytest.raises(BadRing, match="has level"):
                ring.status()


def test_request_has_a_new_stamp_written_last_that_is_never_zero_and_nonsense_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = Forged()
    path = forged.write(tmp_path / "a.ring")
    with open_ring(path) as ring:
        for wrong in ((5, 0, 0), (-1, 0, 0), (1, 65_537, 0), (1, -1, 0), (1, 0, -1), (1, 0, 1_000_001)):
            with pytest.raises(ValueError, match="no level, share or budget"):
                ring.request(*wrong)
        assert request_in(path, forged) == (0, 0, 0, 0)
        ring.request(wire.STEPS, 655, 5_000)
        assert request_in(path, forged) == (1, wire.STEPS, 655, 5_000)
        ring.request(wire.OFF, 0, 0)
        assert request_in(path, forged) == (2, wire.OFF, 0, 0)
        forged.table("requests")["stamp"] = 0xFFFFFFFF
        forged.write(path)
        ring.request(wire.TRACE, 65_536, 1)
        assert request_in(path, forged) == (1, wire.TRACE, 65_536, 1)
        offset, written = int(forged.header["requests"]["offset"]), list[int]()
        monkeypatch.setattr(os, "pwrite", lambda _, content, at: written.extend(range(at, at + len(content))))
        ring.request(wire.OFF, 0, 0)
    assert written == [*range(offset + 4, offset + 16), *range(offset, offset + 4)]


def test_request_never_goes_into_a_file_that_took_the_place_of_ours_nor_makes_one_grow_again_that_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = forge(tmp_path / "a.ring")
    with open_ring(path) as ring:
        other = forge(tmp_path / "other")
        before = other.read_bytes()
        other.rename(path)
        with pytest.raises(BadRing, match="was replaced"):
            ring.request(wire.OFF, 0, 0)
        assert path.read_bytes() == before
        path.unlink()
        path.symlink_to(forge(tmp_path / "third"))
        with pytest.raises(BadRing, match="symbolic links"):
            ring.request(wire.OFF, 0, 0)
    shrinking, pwrite = forge(tmp_path / "b.ring"), os.pwrite

    def write_and_cut(descriptor: int, content: bytes, at: int) -> int:
        pwrite(descriptor, content, at)
        os.truncate(shrinking, 100)
        return len(content)

    monkeypatch.setattr(os, "pwrite", write_and_cut)
    with open_ring(shrinking) as ring, pytest.raises(BadRing, match="was cut"):
        ring.request(wire.OFF, 0, 0)
    assert shrinking.stat().st_size == 100


def read_everything(ring: RingFile) -> int:
    """Use all that a reader offers; return how many of the calls gave an answer."""
    answers = 0
    parts = (ring.clock, ring.communicators, ring.live, ring.status, ring.owner)
    for ask in (ring.read_records, *parts, ring.read_records):
        with suppress(BadRing):
            ask()
            answers += 1
    return answers


@pytest.mark.parametrize("kept", [0, 100, 4096, 5000, 30_000])
def test_file_that_is_removed_can_still_be_read_and_one_that_is_cut_is_a_bad_ring(tmp_path: Path, kept: int) -> None:
    forged = Forged()
    forged.append(0, 20)
    path = forged.write(tmp_path / "a.ring")
    with open_ring(path) as ring, path.open("r+b") as other:
        path.unlink()
        assert len(ring.read_records().sorted.enqueued) == 20
        assert read_everything(ring) == 7
        other.truncate(kept)
        assert read_everything(ring) < 7


@cache
def well_filled() -> bytes:
    forged = Forged()
    forged.header["clock_kind"] = wire.CLOCK_TSC
    forged.set_clock([(number * 2_000, 10**18 + number * 1_000) for number in range(70)])
    for kind in range(1, 6):
        forged.append(0, 60, kind)
        forged.append(1, 30, kind)
    forged.table("transfers")["handle"] = 7
    forged.table("operations")["handle"] = 9
    forged.table("comms")["incarnation"] = 1
    forged.table("rows")["key"] = 2 << 40 | 1 << 32
    return bytes(forged.content)


NUMBERS = [0, 1, 2, 7, 0x7F, 0x80, 0xFF]


@given(
    changes=st.lists(st.tuples(st.integers(0, wire.HEADER.itemsize - 1), st.sampled_from(NUMBERS)), max_size=6),
    seed=st.integers(0, 2**32 - 1),
    share=st.sampled_from([0, 1e-4, 1e-2, 0.5, 1.0]),
    keep_header=st.booleans(),
    other=st.none() | st.binary(max_size=2 * wire.PAGE),
)
def test_no_forged_corrupted_or_other_file_does_harm(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[int, int]],
    seed: int,
    share: float,
    keep_header: bool,
    other: bytes | None,
) -> None:
    content = np.frombuffer(well_filled(), np.uint8).copy()
    random = np.random.default_rng(seed)
    is_hit = random.random(len(content)) < share
    is_hit[: wire.PAGE] &= not keep_header
    content[is_hit] = random.integers(0, 256, int(is_hit.sum()))
    for index, value in changes:
        content[index] = value
    path = tmp_path_factory.getbasetemp() / "hostile.ring"
    path.touch(0o600)
    path.write_bytes(content.tobytes() if other is None else well_filled()[: 16 * keep_header] + other)
    with suppress(BadRing), open_ring(path) as ring:
        read_everything(ring)


NO_PEER = 0xFFFFFFFF


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ring"


def key(comm: int, func: int = wire.ALL_REDUCE, peer: int = NO_PEER) -> int:
    return (comm + 1) << 40 | func << 32 | peer


def live_in(forged: Forged, path: Path) -> Live:
    with open_ring(forged.write(path)) as ring:
        return ring.live()


def operation(forged: Forged, slot: int, **fields: int) -> None:
    usual = {"handle": 1000 + slot, "row": wire.BUSY, "epoch": 1, "comm": 1, "flags": wire.FLAG_SEQ_VALID}
    for name, value in (usual | fields).items():
        forged.table("operations")[name][slot] = value


def row(forged: Forged, index: int, **fields: int) -> None:
    for name, value in ({"key": key(1), "epoch": 1} | fields).items():
        forged.table("rows")[name][index] = value


def test_rows_and_communicators_in_use_come_with_their_index_and_those_that_cannot_be_are_left_out(
    path: Path,
) -> None:
    forged = Forged()
    live = live_in(forged, path)
    assert [len(live.rows), len(live.operations), len(live.transfers)] == [0, 0, 0]
    row(forged, 3, key=key(2, wire.SEND, 7), enqueued=9, started=8, done=7, done_ticks=55)
    for index, wrong in enumerate((key(8), key(1, len(wire.FUNCS)), (1 << 64) - 1, 5), 4):
        row(forged, index, key=wrong)
    live = live_in(forged, path)
    names = ["index", "enqueued", "started", "done", "done_ticks"]
    assert live.rows[names].tolist() == [(3, 9, 8, 7, 55)]
    assert [part.tolist() for part in wire.split_key(live.rows["key"])] == [[2], [wire.SEND], [7]]
    comms = forged.table("comms")
    comms[6] = (1, 0xABC, 10, 0, 3, 8, 2, 0, b"dp\x1b[2J")
    comms[1] = (5, 0xDEF, 20, 30, 1, 2, 1, 1, b"tp")
    comms["id"][2] = 77  # without a number: being changed
    with open_ring(forged.write(path)) as ring:
        found = ring.communicators()
    names = ["index", "incarnation", "id", "rank", "nranks"]
    assert found[names].tolist() == [(1, 5, 0xDEF, 1, 2), (6, 1, 0xABC, 3, 8)]
    assert [wire.text_of(name) for name in found["name"].tolist()] == ["tp", "dp[2J"]


def test_operation_is_open_while_a_part_is_or_while_its_row_is_not_that_far_in_a_ring_that_was_taken(
    path: Path,
) -> None:
    forged = Forged()
    row(forged, 4, enqueued=8, started=6, done=6)
    operation(forged, 0, seq=2, row=4, open=1)  # its row is further, but a part of it is still under way
    operation(forged, 1, seq=5, row=4)  # over: `done` is the number after it
    operation(forged, 2, seq=6, row=4)  # enqueued, and nothing of it has begun
    operation(forged, 3, seq=7, row=4, epoch=0)  # before recording was off: nobody knows
    operation(forged, 4, seq=7)  # without a row and without a part
    operation(forged, 5, seq=7, row=4, handle=0)  # being changed
    operation(forged, 6, seq=7, row=16)  # a row that the file does not have
    operation(forged, 7, seq=7, row=4, flags=wire.FLAG_CAPTURED)  # a replay, which the row does not count
    second_ring = forged.sizes.operations
    operation(forged, second_ring, open=1)  # no thread was ever there: whatever stands there is nothing
    assert live_in(forged, path).operations["handle"].tolist() == [1000, 1002]
    forged.table("rings")["taken_ticks"][1] = 5  # one that hangs in its first transfer has written no record yet
    assert live_in(forged, path).operations["handle"].tolist() == [1000, 1002, 1000 + second_ring]


def test_transfer_is_open_until_it_has_an_end_where_an_operation_is_under_way(path: Path) -> None:
    forged = Forged()
    table = forged.table("transfers")
    table["handle"][:3] = [11, 0, 33]
    table["last_ticks"][0] = 5
    table["wait"][2] = wire.WAIT_PEER << 56 | 1234
    assert len(live_in(forged, path).transfers) == 0
    operation(forged, 0, open=1)
    live = live_in(forged, path)
    assert live.transfers[["handle", "wait"]].tolist() == [(33, wire.WAIT_PEER << 56 | 1234)]


def test_operation_with_forged_codes_is_unknown_and_so_is_a_forged_wait_which_keeps_its_time(path: Path) -> None:
    forged = Forged()
    operation(forged, 0, open=1, row=99, comm=77, func=99, dtype=99, algo=99, proto=99)
    (found,) = live_in(forged, path).operations
    assert [int(found[name]) for name in ("func", "dtype", "algo", "proto")] == [0, 0, 0, 0]
    assert (int(found["row"]), int(found["comm"])) == (wire.BUSY, wire.NO_COMM)
    one = forged.table("transfers")[:1]
    one["handle"], one["wait"], one["comm"] = 11, len(wire.WAITS) << 56 | 1234, 99
    one["ahead"]["wait"], one["ahead"]["state"] = 200, 3
    (found,) = live_in(forged, path).transfers
    assert (int(found["wait"]), int(found["comm"])) == (1234, wire.NO_COMM)
    assert found["ahead"][["wait", "state"]].tolist() == [(0, 0)] * wire.STEPS_AHEAD


def test_transfer_counts_only_when_it_was_the_same_before_during_and_after_the_copy_and_did_not_close(
    path: Path,
) -> None:
    forged = Forged()
    operation(forged, 0, open=1)
    table, offset = forged.table("transfers"), int(forged.header["transfers"]["offset"])
    for handles in ((7, 7, 7), (7, 7, 8), (7, 7, 0), (0, 7, 7), (6, 7, 7), (7, 8, 7)):
        contents = []
        for handle in handles:
            table["handle"][1] = handle
            contents.append(table.copy())
        with RingFile(ChangingFile(forged.write(path), offset, contents)) as ring:
            assert ring.live().transfers["handle"].tolist() == [7] * (handles == (7, 7, 7))
    table["handle"][1:3] = 7, 8
    before = table.copy()
    table["last_ticks"][1] = 99
    with RingFile(ChangingFile(forged.write(path), offset, [before])) as ring:
        assert ring.live().transfers["handle"].tolist() == [8]
