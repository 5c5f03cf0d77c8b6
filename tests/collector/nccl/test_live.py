"""What is open in a ring file: whole, within its bounds, and nothing that is over."""

from pathlib import Path

import pytest

from collector.nccl.ringfile import Live, RingFile, open_ring
from lockstep import wire
from tests.collector.nccl.forging import ChangingFile, Forged

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


def test_rows_in_use_come_with_their_index_and_those_that_cannot_be_are_left_out(path: Path) -> None:
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


def test_operation_is_open_while_a_part_is_or_while_its_row_is_not_that_far(path: Path) -> None:
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
    assert live_in(forged, path).operations["handle"].tolist() == [1000, 1002]


def test_rings_count_from_the_first_thread_that_took_them(path: Path) -> None:
    forged = Forged()
    second_ring = forged.sizes.operations
    operation(forged, second_ring, open=1)
    assert len(live_in(forged, path).operations) == 0  # no thread was ever there: whatever stands there is nothing
    forged.table("rings")["taken_ticks"][1] = 5  # one that hangs in its first transfer has written no record yet
    assert live_in(forged, path).operations["handle"].tolist() == [1000 + second_ring]


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


def test_communicators_in_use_come_with_their_place(path: Path) -> None:
    forged = Forged()
    comms = forged.table("comms")
    comms[6] = (1, 0xABC, 10, 0, 3, 8, 2, 0, b"dp\x1b[2J")
    comms[1] = (5, 0xDEF, 20, 30, 1, 2, 1, 1, b"tp")
    comms["id"][2] = 77  # without a number: being changed
    with open_ring(forged.write(path)) as ring:
        found = ring.communicators()
    names = ["index", "incarnation", "id", "rank", "nranks"]
    assert found[names].tolist() == [(1, 5, 0xDEF, 1, 2), (6, 1, 0xABC, 3, 8)]
    assert [wire.text_of(name) for name in found["name"].tolist()] == ["tp", "dp[2J"]


@pytest.mark.parametrize("handles", [(7, 7, 7), (7, 7, 8), (7, 7, 0), (0, 7, 7), (6, 7, 7), (7, 8, 7)])
def test_transfer_counts_only_when_it_was_the_same_before_during_and_after_the_copy_and_did_not_close(
    path: Path, handles: tuple[int, ...]
) -> None:
    forged = Forged()
    operation(forged, 0, open=1)
    table, contents = forged.table("transfers"), []
    for handle in handles:
        table["handle"][1] = handle
        contents.append(table.copy())
    with RingFile(ChangingFile(forged.write(path), int(forged.header["transfers"]["offset"]), contents)) as ring:
        assert ring.live().transfers["handle"].tolist() == [7] * (handles == (7, 7, 7))
    table["handle"][1:3] = 7, 8
    before = table.copy()
    table["last_ticks"][1] = 99
    with RingFile(ChangingFile(forged.write(path), int(forged.header["transfers"]["offset"]), [before])) as ring:
        assert ring.live().transfers["handle"].tolist() == [8]
