"""A transfer's row says what was recorded of it, and how much it moved only where that is known."""

from typing import Any

import numpy as np
import pytest

from collector.nccl.communicators import Origins
from collector.nccl.transfers import (
    join_operations,
    settle_bytes,
    step_rows,
    time_steps,
    time_transfers,
    transfer_rows,
)
from lockstep import wire
from tests.builders import T0
from tests.collector.nccl.readings import CLOCKS, MS, NUMBER, ORIGIN, Array, enqueued, known, step, transfer

RECV = wire.FLAG_STEPS
MIB = 1 << 20


def operation(nranks: int = 4, **fields: Any) -> Array:
    return known(enqueued(**fields), nranks=nranks)


def rows_of(closed: Array, of: Array) -> list[dict[str, Any]]:
    moved = join_operations(time_transfers(closed, CLOCKS, [len(closed)], NUMBER), of, np.arange(len(of)))
    return list(transfer_rows(moved[settle_bytes(moved)], Origins(ORIGIN)).to_pylist())


@pytest.mark.parametrize(
    ("closed", "waits", "about"),
    [
        (transfer(), [10, 20, 30, None], ("send", "steps")),
        (transfer(flags=RECV), [10, 20, None, 40], ("recv", "steps")),
        (transfer(flags=wire.FLAG_SEND, bytes=0), [None] * 4, ("send", "ops")),
    ],
    ids=["a send has no flush", "a receive has no wire", "without steps no wait is known"],
)
def test_row_has_the_waits_of_its_direction(closed: Array, waits: list[int | None], about: tuple[str, str]) -> None:
    (row,) = rows_of(closed, operation())
    assert [row[f"{wait}_ns"] for wait in ("gpu_wait", "peer_wait", "wire", "flush")] == waits
    assert (row["direction"], row["detail"]) == about
    assert (row["steps"], row["bytes"]) == (12, 786_432), "or what the algorithm sends"
    assert (row["first_ns"], row["last_ns"]) == (T0 + 2 * MS, T0 + 5 * MS)


@pytest.mark.parametrize(
    ("closed", "of", "sizes"),
    [
        (transfer(bytes=0), operation(), [786_432]),  # sizes that NCCL did not report are none
        (transfer(bytes=0), operation(bytes=0, algo=wire.NVLS), [0]),
        (transfer(bytes=0, flags=wire.FLAG_SEND), operation(algo=wire.NVLS_TREE), []),
    ],
)
def test_transfer_of_unknown_size_has_no_row(closed: Array, of: Array, sizes: list[int]) -> None:
    assert [row["bytes"] for row in rows_of(closed, of)] == sizes


@pytest.mark.parametrize(
    ("fields", "nranks", "expected"),
    [
        ({"func": wire.ALL_REDUCE}, 8, MIB * 2 * 7 // 8 // 2),
        ({"func": wire.ALL_GATHER}, 4, MIB * 3 // 2),
        ({"func": wire.REDUCE_SCATTER}, 4, MIB * 3 // 2),
        ({"func": wire.BROADCAST}, 4, MIB // 2),
        ({"func": wire.ALL_REDUCE, "algo": wire.TREE}, 8, MIB // 2),
        ({"func": wire.SEND, "algo": 0, "proto": 0, "peer": 1}, 0, MIB // 2),
        ({"func": wire.ALL_REDUCE, "proto": wire.LL}, 2, MIB),
        ({"func": wire.ALL_REDUCE, "proto": wire.LL128}, 2, round(MIB / 2 * 128 / 120)),
        ({"algo": wire.PAT, "func": wire.ALL_GATHER}, 4, None),
        ({"algo": wire.COLLNET_CHAIN}, 4, None),
        ({"channels": 0}, 4, None),
        ({}, 0, None),  # before v4 nobody tells the size of a communicator
    ],
)
def test_algorithm_says_what_a_transfer_moves(fields: dict[str, int], nranks: int, expected: int | None) -> None:
    of = operation(nranks, **fields)
    assert of["has_part_bytes"].tolist() == [expected is not None]
    assert of["part_bytes"].tolist() == [expected] or expected is None


def test_step_reports_whether_and_when_it_reached_the_network() -> None:
    closed = np.concatenate([step(), step(flags=RECV)])
    stepped = join_operations(time_steps(closed, CLOCKS, [2], NUMBER), operation(), np.zeros(2, np.intp))
    sent, received = step_rows(stepped, Origins(ORIGIN)).to_pylist()
    names = ("posted_ns", "wire_ns", "done_ns")
    times = [tuple(row[name] - T0 - 2 * MS for name in names) for row in (sent, received)]
    assert times == [(0, 200, 300), (0, 100, 300)]
    assert (sent["direction"], received["direction"], sent["step"], sent["bytes"]) == ("send", "recv", 3, 65_536)
    for marks, reached in (((100, wire.BUSY, 300), False), ((wire.BUSY, 200, 300), True)):
        assert time_steps(step(marks=marks), CLOCKS, [1], NUMBER)["reached"].tolist() == [reached]
