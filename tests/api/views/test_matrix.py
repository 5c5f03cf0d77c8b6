"""The delay matrix says what a MiB takes between ranks in the last closed window, and is built once for all."""

import pytest

from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Window
from api.views.matrix import MatrixCache, read_lags, read_matrix
from api.views.ranks import find_closed
from lockstep.clock import ManualClock
from lockstep.errors import NotPresent
from lockstep.records import Comm, Transfer, TransferStat
from lockstep.store.store import Store
from tests.api.views.build import COMM, NOW, heartbeat, host_of, load_job, put
from tests.builders import SECOND, T0, make


@pytest.fixture(scope="module")
def store(shared_store: Store) -> Store:
    load_job(shared_store, "a")
    return shared_store


def test_slow_link_stands_out_in_its_window_also_in_the_roll_up(store: Store) -> None:
    roster = read_roster(store, "a", 0)
    matrix = read_matrix(store, "a", 0, roster, Window(T0, NOW))
    cells = dict(zip(zip(matrix.cells.src, matrix.cells.dst, strict=True), matrix.cells.ms, strict=True))
    assert cells == {(0, 1): 1.0, (1, 2): 1.0, (2, 3): 3.0, (3, 0): 1.0}
    assert (matrix.usual_ms, matrix.unit, matrix.comm) == (1.0, "ms/MiB", None)
    assert [(seat.rank, seat.host, seat.gpu) for seat in matrix.ranks][2:] == [(2, "a-h1", 0), (3, "a-h1", 1)]
    before = read_matrix(store, "a", 0, roster, Window(T0 - 60 * SECOND, T0))
    assert (before.cells.ms, before.usual_ms) == ((), None)
    assert max(read_matrix(store, "a", 0, roster, Window(T0 - 3600 * SECOND, NOW)).cells.ms) == 3.0


def test_complete_transfers_answer_where_there_are_no_statistics(store: Store) -> None:
    put(store, (make(Comm, job="t", comm=1, rank=rank, nranks=2, host=f"t{rank}") for rank in (0, 1)))
    put(store, [make(Transfer, job="t", comm=1, rank=0, peer=1, bytes=1 << 20, wire_ns=2_000_000)])
    matrix = read_matrix(store, "t", 0, read_roster(store, "t", 0), Window(T0, NOW))
    assert (matrix.cells.src, matrix.cells.dst, matrix.cells.ms) == ((0,), (1,), (2.0,))


def test_matrix_of_one_communicator_holds_its_ranks_alone(store: Store) -> None:
    put(store, (make(Comm, job="two", comm=1, rank=rank, nranks=3, world_rank=rank) for rank in range(3)))
    put(store, (make(Comm, job="two", comm=2, rank=rank, nranks=2, world_rank=rank + 1) for rank in range(2)))
    put(store, [make(TransferStat, job="two", comm=2, rank=0, peer=1, bytes=1 << 20, wire_ns=5_000_000)])
    matrix = read_matrix(store, "two", 0, read_roster(store, "two", 0), Window(T0, NOW), comm=2)
    assert [seat.rank for seat in matrix.ranks] == [1, 2]
    assert (matrix.cells.src, matrix.cells.dst, matrix.cells.ms) == ((0,), (1,), (5.0,))
    with pytest.raises(NotPresent, match="no communicator 99"):
        read_matrix(store, "two", 0, read_roster(store, "two", 0), Window(T0, NOW), comm=99)


def test_last_window_ends_where_the_slowest_host_has_told_everything(store: Store) -> None:
    load_job(store, "lagging")
    put(
        store,
        [heartbeat(host_of(2, "lagging"), NOW + SECOND, lag_s=1.0), heartbeat(host_of(0, "lagging"), NOW + SECOND)],
    )
    assert find_closed(store, "lagging", 0, NOW + SECOND).window == Window(T0 + 4 * SECOND, NOW)


def test_nobody_waits_for_a_host_that_is_silent_but_it_is_named(store: Store) -> None:
    assert find_closed(store, "a", 0, NOW + 86_400 * SECOND).window.end_ns == NOW, "it ended long ago"
    with pytest.raises(NotPresent, match="knows nothing of job 'x', attempt 0"):
        find_closed(store, "x", 0, NOW)
    late = NOW + 60 * SECOND
    put(store, [heartbeat(host_of(0, "a"), late)])
    closed = find_closed(store, "a", 0, late)
    assert closed.silent == {host_of(2, "a")}
    assert closed.window.end_ns == NOW


def test_matrix_is_built_once_per_window(store: Store) -> None:
    load_job(store, "shelf")
    clock = ManualClock(NOW)
    cache = MatrixCache(store, clock)
    first = cache.show("shelf")
    assert cache.show("shelf") is first
    clock.advance(2)
    assert cache.show("shelf") is first, "the window is the same, so the matrix is"
    put(store, [make(TransferStat, job="shelf", comm=COMM, rank=0, peer=1, host="shelf-h0", ts_ns=NOW, wire_ns=9)])
    put(store, (heartbeat(host_of(rank, "shelf"), NOW + 2 * SECOND) for rank in (0, 2)))
    clock.advance(2)
    newer = cache.show("shelf")
    assert newer.matrix.to_ns == NOW + SECOND > first.matrix.to_ns
    assert newer.etag != first.etag
    assert newer.matrix.model_dump_json().encode() == newer.body


def test_rank_that_leaves_first_was_last_to_come_and_silence_has_no_lag(store: Store) -> None:
    lags = read_lags(store, "a", 0, read_roster(store, "a", 0), Window(T0, NOW), columns=5)
    assert lags.times_ns == tuple(T0 + 2 * number * SECOND for number in range(5))
    assert [row[0] for row in lags.lag_ms] == [0.0, 0.0, 0.0, 0.6]
    assert all(row == (row[0],) * 5 for row in lags.lag_ms)
    lags = read_lags(store, "a", 0, read_roster(store, "a", 0), Window(T0, NOW + 10 * SECOND), columns=2)
    assert lags.lag_ms[3] == (0.6, None)
    assert lags.column_ns == 10 * SECOND
