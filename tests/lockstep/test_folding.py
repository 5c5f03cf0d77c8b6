"""What is folded per second adds up to what was folded, nothing is lost between seconds, and nobody is mixed up."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.arrow import conform, find_duplicate, schema_of
from lockstep.folding import fold_operations, fold_transfers
from lockstep.records import Collective, Transfer
from lockstep.tables import TABLE_BY_NAME
from tests.builders import SECOND, T0, make, rows

QUICK = settings(max_examples=15)
FOREVER = 2**62
NO_COLLECTIVES = schema_of(TABLE_BY_NAME["collectives"]).empty_table()
NO_TRANSFERS = schema_of(TABLE_BY_NAME["transfers"]).empty_table()


def operation(start_ns: int | None, end_ns: int | None, **fields: Any) -> Collective:
    timestamps = {"start_ns": start_ns, "end_ns": end_ns}
    return make(Collective, **{name: None if at is None else T0 + at for name, at in timestamps.items()}, **fields)


def fold(*operations: Collective, since_ns: int = 0, until_ns: int = FOREVER) -> list[dict[str, Any]]:
    folded = fold_operations(rows(*operations), since_ns, until_ns)
    assert folded.schema == schema_of(TABLE_BY_NAME["op_stats"])
    return sorted(folded.to_pylist(), key=lambda row: (row["ts_ns"], row["job"], row["comm"], row["rank"]))


def fold_edges(transfers: list[Transfer], operations: list[Collective], **span: int) -> list[dict[str, Any]]:
    span = {"since_ns": 0, "until_ns": FOREVER} | span
    folded = fold_transfers(rows(*transfers), rows(*operations), **span)
    return sorted(folded.to_pylist(), key=lambda row: (row["ts_ns"], row["rank"], row["peer"], row["size_class"]))


OPERATIONS = st.lists(
    st.builds(
        operation,
        st.none() | st.integers(0, 2 * SECOND),
        st.none() | st.integers(0, 4 * SECOND),
        job=st.sampled_from(["j1", "j2"]),
        comm=st.integers(1, 2),
        rank=st.integers(0, 1),
        func=st.sampled_from(["AllReduce", "AllGather"]),
        bytes=st.integers(0, 5),
        seq=st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=12,
)


def counted(operations: list[Collective]) -> dict[tuple[Any, ...], list[int]]:
    """Return n, bytes, durations together and the longest of them, by what op_stats has a row for: the long way."""
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for op in operations:
        if op.start_ns is None or op.end_ns is None:
            continue
        lasted = max(op.end_ns - op.start_ns, 0)
        size_class = max(op.bytes, 1).bit_length() - 1
        second = op.end_ns // SECOND * SECOND
        total = sums[op.job, op.comm, op.func, size_class, op.rank, second]
        total[:] = [total[0] + 1, total[1] + op.bytes, total[2] + lasted, max(total[3], lasted)]
    return dict(sums)


@QUICK
@given(OPERATIONS)
def test_statistics_add_up_to_the_operations(operations: list[Collective]) -> None:
    keys = ("job", "comm", "func", "size_class", "rank", "ts_ns")
    sums = ("n", "bytes", "dur_sum_ns", "dur_max_ns")
    found = {tuple(row[key] for key in keys): [row[name] for name in sums] for row in fold(*operations)}
    assert found == counted(operations)
    table, folded = TABLE_BY_NAME["op_stats"], fold_operations(rows(*operations), 0, FOREVER)
    assert conform(table, folded).equals(folded)
    assert find_duplicate(table, folded) is None


@QUICK
@given(OPERATIONS, st.integers(0, 4))
def test_two_stretches_give_what_one_gives(operations: list[Collective], seconds: int) -> None:
    cut_ns = T0 + seconds * SECOND
    parts = fold(*operations, until_ns=cut_ns) + fold(*operations, since_ns=cut_ns)
    assert sorted(parts, key=repr) == sorted(fold(*operations), key=repr)


def test_stretch_begins_with_since_ends_before_until_and_its_first_gap_reaches_back() -> None:
    operations = [operation(0, end_ns, seq=end_ns) for end_ns in (SECOND - 1, SECOND, 2 * SECOND - 1, 2 * SECOND)]
    (row,) = fold(*operations, since_ns=T0 + SECOND, until_ns=T0 + 2 * SECOND)
    assert (row["ts_ns"], row["n"], row["late_n"]) == (T0 + SECOND, 2, 0)
    context = operation(0, SECOND - 100)
    (row,) = fold(context, operation(SECOND + 50, SECOND + 60, seq=1), since_ns=T0 + SECOND)
    assert (row["n"], row["gap_sum_ns"]) == (1, 150)


def test_nothing_folds_into_nothing() -> None:
    folded = fold_operations(NO_COLLECTIVES, 0, FOREVER)
    assert (folded.num_rows, folded.schema) == (0, schema_of(TABLE_BY_NAME["op_stats"]))
    for operations in (NO_COLLECTIVES, rows(operation(0, 1))):
        edges = fold_transfers(NO_TRANSFERS, operations, 0, FOREVER)
        assert (edges.num_rows, edges.schema) == (0, schema_of(TABLE_BY_NAME["transfer_stats"]))


def gap(*operations: Collective, since_ns: int = 0) -> int:
    return sum(row["gap_sum_ns"] for row in fold(*operations, since_ns=since_ns))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(0, 10), (25, 30), (37, 40)], 15 + 7),
        ([(37, 40), (0, 10), (25, 30)], 15 + 7),
        ([(500, 510)], 0),  # the first has none
        ([(0, 100), (50, 120), (120, 130)], 0),
    ],
)
def test_gap_is_from_the_end_of_one_to_the_start_of_the_next(times: list[tuple[int, int]], expected: int) -> None:
    assert gap(*(operation(start_ns, end_ns, seq=start_ns) for start_ns, end_ns in times)) == expected


@pytest.mark.parametrize(
    "other", [{"rank": 1}, {"comm": 8}, {"job": "j2"}, {"attempt": 1}], ids=lambda other: next(iter(other))
)
def test_gap_is_of_one_rank_of_one_communicator_and_attempt(other: dict[str, Any]) -> None:
    assert gap(operation(0, 10), operation(25, 30, **other)) == 0
    assert gap(operation(0, 10), operation(12, 20, **other), operation(25, 30, seq=1)) == 15


def test_size_class_changes_exactly_at_a_power_of_two() -> None:
    expected = {size: power for power in (1, 2, 10, 31, 48, 52, 53, 63) for size in (2**power, 2 ** (power + 1) - 1)}
    assert {size: fold(operation(0, 1, bytes=size))[0]["size_class"] for size in expected} == expected


WAITS = st.none() | st.integers(0, 2**40)
TRANSFERS = st.lists(
    st.builds(
        lambda last_ns, **fields: make(Transfer, last_ns=T0 + last_ns, **fields),
        st.integers(0, 3 * SECOND),
        seq=st.integers(0, 2),
        channel=st.integers(0, 1),
        rank=st.integers(0, 1),
        direction=st.sampled_from(["send", "recv"]),
        nic=st.sampled_from([None, "eth0", "eth1"]),
        bytes=st.integers(0, 2**40),
        gpu_wait_ns=WAITS,
        peer_wait_ns=WAITS,
        wire_ns=WAITS,
    ),
    min_size=1,
    max_size=12,
)
THREE_OPERATIONS = [operation(0, 1, seq=seq, bytes=2**seq) for seq in range(3)]


def total(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@QUICK
@given(TRANSFERS)
def test_statistics_add_up_to_the_transfers(transfers: list[Transfer]) -> None:
    groups: dict[tuple[Any, ...], list[Transfer]] = defaultdict(list)
    for moved in transfers:
        second = moved.last_ns // SECOND * SECOND
        groups[moved.seq, moved.rank, moved.channel, moved.direction, moved.nic, second].append(moved)
    waits = ("bytes", "gpu_wait_ns", "peer_wait_ns", "wire_ns")
    expected = {
        key: (
            len(members),
            *(total([getattr(moved, name) for moved in members]) for name in waits),
            max((moved.wire_ns for moved in members if moved.wire_ns is not None), default=None),
        )
        for key, members in groups.items()
    }
    keys = ("size_class", "rank", "channel", "direction", "nic", "ts_ns")
    sums = ("n", "bytes", "gpu_wait_ns", "peer_wait_ns", "wire_ns", "wire_max_ns")
    found = fold_edges(transfers, THREE_OPERATIONS)
    assert {tuple(row[key] for key in keys): tuple(row[name] for name in sums) for row in found} == expected
    table = TABLE_BY_NAME["transfer_stats"]
    folded = fold_transfers(rows(*transfers), rows(*THREE_OPERATIONS), 0, FOREVER)
    assert conform(table, folded).equals(folded)
    assert find_duplicate(table, folded) is None


def test_same_rows_fold_into_the_same_order() -> None:
    moved, operations = (
        [make(Transfer, rank=rank, channel=rank % 7, seq=rank % 3) for rank in range(200)],
        rows(*THREE_OPERATIONS),
    )
    once, again = (fold_transfers(rows(*given), operations, 0, FOREVER) for given in (moved, moved[::-1]))
    assert once.num_rows == 200
    assert once.equals(again)


def test_send_is_classed_by_its_own_size_and_not_by_that_to_another_peer() -> None:
    """Sends are counted for each peer, so those of two peers have the same numbers."""
    sends = [operation(0, 1, func="Send", rank=0, peer=peer, bytes=2 ** (10 * peer)) for peer in (1, 2)]
    sends.append(operation(0, 1, func="Send", rank=3, peer=1, bytes=2**30))
    moved = [make(Transfer, func="Send", rank=0, peer=peer) for peer in (1, 2)]
    found = fold_edges(moved, sends)
    assert [(row["peer"], row["size_class"], row["n"]) for row in found] == [(1, 10, 1), (2, 20, 1)]


@pytest.mark.parametrize(
    "other", [{"seq": 9}, {"comm": 9}, {"job": "j9"}, {"attempt": 9}, {"replay": 9}, {"epoch": 9}], ids=str
)
def test_transfer_of_an_unknown_operation_counts_nowhere(other: dict[str, Any]) -> None:
    assert fold_edges([make(Transfer, **other)], [operation(0, 1)]) == []


def test_transfer_belongs_to_the_second_of_its_last_mark() -> None:
    moved = [make(Transfer, last_ns=T0 + last_ns, seq=seq) for seq, last_ns in enumerate((SECOND - 1, SECOND))]
    (row,) = fold_edges(moved, [operation(0, 1, seq=1)], since_ns=T0 + SECOND, until_ns=T0 + 2 * SECOND)
    assert row["ts_ns"] == T0 + SECOND
