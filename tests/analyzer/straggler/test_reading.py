"""What a rank did between its operations, as both kinds of store reduce it."""

from typing import Any

import numpy as np
import pytest

from analyzer.straggler.reading import StragglerFacts, read_straggler_facts
from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Context, Window
from lockstep.records import Collective, Comm, GpuHealth, HostRecord, OpStat, Transfer
from lockstep.store.store import Store
from tests.analyzer.build import insert
from tests.builders import SECOND, T0, make

WINDOW = Window(T0 + 10 * SECOND, T0 + 15 * SECOND)
TENSOR, DATA = 5, 9
MS = SECOND // 1000


def read(store: Store, *records: HostRecord, period_ns: int | None = None) -> StragglerFacts:
    """Return the facts of a job of two ranks, both in two communicators, and these records."""
    members = [
        make(Comm, host=f"h{rank}", comm=comm, rank=rank, nranks=2, world_rank=rank)
        for comm in (TENSOR, DATA)
        for rank in (0, 1)
    ]
    insert(store, *members, *records)
    roster = read_roster(store, "j1", 0)
    where = Context("j1", 0, WINDOW, WINDOW.start_ns, roster, None, period_ns=period_ns)
    return read_straggler_facts(store, where)


def op(start_ms: int, end_ms: int | None, enqueue_ms: int | None = None, **fields: Any) -> Collective:
    """Return an operation of rank 0, in milliseconds of the window."""
    begin = WINDOW.start_ns + start_ms * MS
    end = None if end_ms is None else WINDOW.start_ns + end_ms * MS
    enqueued = begin if enqueue_ms is None else WINDOW.start_ns + enqueue_ms * MS
    usual = {"host": "h0", "rank": 0, "comm": DATA, "start_ns": begin, "end_ns": end, "enqueue_ns": enqueued}
    return make(Collective, **{**usual, **fields})


def gaps(facts: StragglerFacts) -> dict[tuple[int, int], tuple[int, int]]:
    """Return gap and the GPU's part of it in milliseconds, by communicator and number."""
    found = facts.operations
    keys = zip(found.comm.tolist(), found.seq.tolist(), strict=True)
    values = zip(
        (found.gap_ns / MS).round().astype(int).tolist(),
        (found.gpu_ns / MS).round().astype(int).tolist(),
        strict=True,
    )
    return dict(zip(keys, values, strict=True))


TWO = [op(0, 100, seq=1), op(180, 200, seq=2)]
GAPS: dict[str, tuple[list[Collective], dict[tuple[int, int], tuple[int, int]]]] = {
    "from the end of the last operation of any communicator": (
        [op(-50, 100, seq=1), op(110, 150, comm=TENSOR, seq=1), op(180, 200, seq=2)],
        {(TENSOR, 1): (10, 0), (DATA, 2): (30, 0)},
    ),
    "not over operations that are lost, of which the last one before ended nobody knows when": (
        [op(0, 100, seq=1), op(180, 200, seq=4), op(250, 260, seq=5), op(250, 300, comm=TENSOR, seq=7)],
        {(DATA, 5): (50, 0), (TENSOR, 7): (50, 0)},
    ),
    "the GPU's part is the time in which the operation was enqueued": (
        [TWO[0], op(180, 200, enqueue_ms=120, seq=2), op(300, 320, enqueue_ms=10, seq=3)],
        {(DATA, 2): (80, 60), (DATA, 3): (100, 100)},
    ),
    "none where operations overlap, and the same where they begin together": (
        [TWO[0], op(50, 120, comm=TENSOR, seq=1), op(150, 160, seq=2), op(150, 170, comm=TENSOR, seq=2)],
        {(TENSOR, 1): (0, 0), (DATA, 2): (30, 0), (TENSOR, 2): (30, 0)},
    ),
    "rows that came twice count once": ([*TWO, TWO[1]], {(DATA, 2): (80, 0)}),
    "what never ran counts not at all": (
        [*TWO, op(210, None, seq=3), op(230, 220, seq=4), op(240, 250, seq=5, seq_valid=False)],
        {(DATA, 2): (80, 0)},
    ),
    "a row that says 1970 does not disturb the others": (
        [*TWO, op(120, 130, seq=7, rank=1, host="h1", start_ns=1), op(300, 310, seq=8, rank=1, host="h1")],
        {(DATA, 2): (80, 0), (DATA, 8): (170, 0)},
    ),
    "other jobs, attempts and times are left out": (
        [*TWO, op(50, 60, seq=7, job="j2"), op(50, 60, seq=8, attempt=1), op(5_100, 5_200, seq=9)],
        {(DATA, 2): (80, 0)},
    ),
}


@pytest.mark.parametrize("case", GAPS)
def test_gap_is_the_time_between_operations_of_a_rank(store: Store, case: str) -> None:
    records, expected = GAPS[case]
    facts = read(store, *records)
    assert (gaps(facts), facts.are_sums) == (expected, False)


def second(number: int, **fields: Any) -> OpStat:
    return make(
        OpStat, **{"ts_ns": WINDOW.start_ns + number * SECOND, "host": "h0", "rank": 0, "comm": DATA, **fields}
    )


@pytest.mark.parametrize("sampled", [(DATA, TENSOR), (DATA,)], ids=["of all communicators", "of one of two"])
def test_where_operations_are_sampled_own_time_is_what_seconds_leave(store: Store, sampled: tuple[int, ...]) -> None:
    sums = [
        second(0, n=3, dur_sum_ns=300 * MS),
        second(0, n=2, dur_sum_ns=200 * MS, comm=TENSOR),
        second(0, n=5, dur_sum_ns=900 * MS, rank=1, host="h1"),
    ]
    facts = read(store, *sums, *(op(180, 200, enqueue_ms=130, seq=2, comm=comm) for comm in sampled))
    found = facts.operations
    assert facts.are_sums
    assert (found.process.tolist(), found.size.tolist()) == ([0, 1], [5, 5])
    assert found.gap_ns.tolist() == [500 * MS, 100 * MS]
    unknown = np.nan  # also where what it was late for may be the operations of which none was sampled
    np.testing.assert_array_equal(found.gpu_ns, [5 * 50 * MS if TENSOR in sampled else unknown, unknown])


def test_seconds_are_joined_until_a_step_fits_in_because_all_do_the_same_in_it(store: Store) -> None:
    """Three times in five seconds, for which one before them is needed: of fewer nobody can say what lasts."""
    late = {"rank": 1, "host": "h1"}
    sums = [second(number, dur_sum_ns=900 * MS) for number in (-1, 1, 3)]
    sums += [second(number, dur_sum_ns=100 * MS, **late) for number in (0, 2, 4)]
    found = read(store, *sums, op(0, 900), period_ns=3 * SECOND // 2).operations
    assert found.process.tolist() == [0] * 3 + [1] * 3
    assert (found.seq - WINDOW.start_ns).tolist() == [-SECOND, SECOND, 3 * SECOND] * 2
    assert (found.gap_ns / MS).tolist() == [1_100.0] * 3 + [1_900.0] * 3


def test_seconds_with_sends_are_left_out_as_they_do_not_add_up(store: Store) -> None:
    facts = read(store, second(0, n=3), second(1, n=3, func="Send"))
    assert (facts.are_sums, len(facts.operations)) == (True, 0)


def test_exchange_is_between_its_longest_send_or_receive_and_the_mean(store: Store) -> None:
    """Rank 1 came late: the others waited for it, in two of their four sends and receives; rank 2 is unknown."""
    sums = [
        second(0, rank=rank, host=f"h{rank}", n=4, func="Send", dur_sum_ns=took * MS, dur_max_ns=longest * MS)
        for rank, took, longest in ((0, 840, 400), (1, 80, 20), (2, 840, 400))
    ]
    facts = read(store, *sums)
    assert facts.are_sums
    assert facts.operations.gap_ns.tolist() == [695 * MS, 980 * MS]


def test_flushes_are_summed_by_host(store: Store) -> None:
    usual = {"direction": "recv", "steps": 4, "first_ns": WINDOW.start_ns, "last_ns": WINDOW.start_ns + 100}
    before = {"first_ns": WINDOW.start_ns - SECOND - 5, "last_ns": WINDOW.start_ns - SECOND}
    facts = read(
        store,
        make(Transfer, **{**usual, "host": "h0", "flush_ns": 10}),
        make(Transfer, **{**usual, "host": "h0", "flush_ns": 20, "channel": 1}),
        make(Transfer, **{**usual, "host": "h1", "flush_ns": None}),
        make(Transfer, **{**usual, **before, "host": "h0", "flush_ns": 7, "seq": 9}),
    )
    flushes = facts.flushes
    assert (flushes.hosts, flushes.is_now.tolist()) == (("h0", "h0"), [False, True])
    assert [each.tolist() for each in (flushes.steps, flushes.flush_ns, flushes.busy_ns)] == [
        [4, 8],
        [7, 30],
        [5, 200],
    ]
    assert flushes.newest_ns.tolist() == [WINDOW.start_ns - SECOND, WINDOW.start_ns + 100]


def test_reasons_for_low_clocks_are_known_by_gpu_and_idling_is_none(store: Store) -> None:
    said = enumerate(("", "gpu_idle", "hw_thermal_slowdown"))
    told = {"host": "h1", "ts_ns": WINDOW.start_ns, "sm_mhz": 900}
    facts = read(store, *(make(GpuHealth, gpu=gpu, throttle=throttle, **told) for gpu, throttle in said))
    assert facts.throttled == {("h1", 2): "hw_thermal_slowdown"}


def test_an_empty_store_is_silent(store: Store) -> None:
    facts = read(store)
    assert (len(facts.operations), facts.flushes.hosts, facts.throttled) == (0, (), {})
