"""A transfer's row says what was recorded of it, and how much it moved only where that is known."""

from typing import Any

import numpy as np
import pytest

from collector.nccl.communicators import Origins
from collector.nccl.transfers import (
    expected_bytes,
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


def row_of(closed: Array, of: Array | None = None) -> dict[str, Any]:
    (row,) = rows_of(closed, operation() if of is None else of)
    return row


def rows_of(closed: Array, of: Array) -> list[dict[str, Any]]:
    moved = join_operations(time_transfers(closed, CLOCKS, [len(closed)], NUMBER), of, np.arange(len(of)))
    return list(transfer_rows(moved[settle_bytes(moved)], Origins(ORIGIN)).to_pylist())


def test_send_row_has_all_waits_but_a_flush() -> None:
    row = row_of(transfer(channel=1))
    assert (row["gpu_wait_ns"], row["peer_wait_ns"], row["wire_ns"], row["flush_ns"]) == (10, 20, 30, None)
    assert (row["channel"], row["steps"], row["direction"], row["detail"]) == (1, 12, "send", "steps")
    assert (row["first_ns"], row["last_ns"], row["bytes"]) == (T0 + 2 * MS, T0 + 5 * MS, 786_432)


def test_receive_row_has_a_flush_and_no_wire() -> None:
    row = row_of(transfer(flags=RECV))
    assert (row["gpu_wait_ns"], row["peer_wait_ns"], row["wire_ns"], row["flush_ns"]) == (10, 20, None, 40)
    assert row["direction"] == "recv"


def test_without_steps_no_wait_is_known_and_bytes_are_what_the_algorithm_sends() -> None:
    row = row_of(transfer(flags=wire.FLAG_SEND, bytes=0))
    assert [row[f"{wait}_ns"] for wait in ("gpu_wait", "peer_wait", "wire", "flush")] == [None] * 4
    assert (row["detail"], row["bytes"]) == ("ops", 786_432)


def test_steps_whose_sizes_nccl_did_not_report_are_no_sizes() -> None:
    assert row_of(transfer(bytes=0))["bytes"] == 786_432


def test_operation_that_moves_nothing_moved_nothing() -> None:
    row = row_of(transfer(bytes=0), operation(bytes=0, algo=wire.NVLS))
    assert row["bytes"] == 0


def test_transfer_of_unknown_size_has_no_row() -> None:
    closed, of = transfer(bytes=0, flags=wire.FLAG_SEND), operation(algo=wire.NVLS_TREE)
    assert rows_of(closed, of) == []


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
    ],
)
def test_algorithm_says_what_a_transfer_moves(fields: dict[str, int], nranks: int, expected: int) -> None:
    of = operation(nranks, **fields)
    moved, known = expected_bytes(of, of["bytes"])
    assert (moved.tolist(), known.tolist()) == ([expected], [True])


@pytest.mark.parametrize(
    ("fields", "nranks"),
    [
        ({"algo": wire.PAT, "func": wire.ALL_GATHER}, 4),
        ({"algo": wire.COLLNET_CHAIN}, 4),
        ({"channels": 0}, 4),
        ({}, 0),  # before v4 nobody tells the size of a communicator
    ],
)
def test_what_nobody_can_say_is_not_said(fields: dict[str, int], nranks: int) -> None:
    of = operation(nranks, **fields)
    assert expected_bytes(of, of["bytes"])[1].tolist() == [False]


def test_step_reports_when_it_reached_the_network() -> None:
    closed = np.concatenate([step(), step(flags=RECV)])
    stepped = join_operations(time_steps(closed, CLOCKS, [2], NUMBER), operation(), np.zeros(2, np.intp))
    sent, received = step_rows(stepped, Origins(ORIGIN)).to_pylist()
    moments = [
        tuple(row[name] - T0 - 2 * MS for name in ("posted_ns", "wire_ns", "done_ns")) for row in (sent, received)
    ]
    assert moments == [(0, 200, 300), (0, 100, 300)]
    assert (sent["direction"], received["direction"], sent["step"], sent["bytes"]) == ("send", "recv", 3, 65_536)


@pytest.mark.parametrize(("marks", "reached"), [((100, wire.BUSY, 300), False), ((wire.BUSY, 200, 300), True)])
def test_step_says_whether_it_reached_the_network(marks: tuple[int, ...], reached: bool) -> None:
    assert time_steps(step(marks=marks), CLOCKS, [1], NUMBER)["reached"].tolist() == [reached]
