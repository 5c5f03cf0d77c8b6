"""The share of operations with complete rows follows the budget, and every share holds the smaller ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collector.nccl.budget import WHOLE_SHARE, Allowance, Budget, grant, largest_share, lot_of, spend
from collector.nccl.operations import KNOWN
from lockstep import wire
from lockstep.clock import NS_PER_S

BUDGET = Budget(rows=1_000, bytes=1 << 30)


def run(seconds: int, rows_per_s: int, allowance: Allowance, begin: int = 0) -> Allowance:
    for second in range(begin, begin + seconds):
        allowance = grant(allowance, second * NS_PER_S, rows_per_s)
        allowance = spend(allowance, rows_per_s * allowance.share // WHOLE_SHARE)
    return allowance


def test_small_job_keeps_everything() -> None:
    assert run(60, 900, Allowance(BUDGET)).share == WHOLE_SHARE


def test_job_that_is_too_large_keeps_a_share_that_fits() -> None:
    assert run(20, 7_000, Allowance(BUDGET)).share == WHOLE_SHARE // 8


def test_share_grows_back_by_steps_and_only_after_a_while() -> None:
    busy = run(20, 7_000, Allowance(BUDGET))
    assert run(8, 100, busy, 20).share == busy.share
    assert run(15, 100, busy, 20).share == 2 * busy.share
    assert run(120, 100, busy, 20).share == WHOLE_SHARE


def test_bytes_count_too() -> None:
    assert Budget(rows=1_000, bytes=2_500).rows_per_s == 100


def test_what_was_sent_too_much_is_saved_later() -> None:
    overdrawn = spend(grant(Allowance(BUDGET), 0, 0), 6_000)
    assert grant(overdrawn, NS_PER_S, 100).share == 1
    assert grant(overdrawn, 5 * NS_PER_S, 100).share == WHOLE_SHARE


def test_clock_that_was_set_back_gives_nothing_for_nothing() -> None:
    before = grant(Allowance(BUDGET), 100 * NS_PER_S, 0)
    assert grant(before, 0, 0).rows == before.rows


@given(st.integers(0, 1 << 40), st.floats(0, 1e9))
def test_share_is_a_power_of_two_that_fits_unless_it_is_the_smallest(rows: int, affordable: float) -> None:
    share = largest_share(rows, affordable)
    assert share & (share - 1) == 0
    assert share == 1 or rows * share / WHOLE_SHARE <= affordable


def operations(**columns: object) -> "np.ndarray":
    made = np.zeros(4_096, KNOWN)
    made["seq"] = np.arange(4_096)
    for name, value in columns.items():
        made[name] = value
    return made


def test_all_ranks_draw_the_same_lot_and_both_ends_of_a_send_too() -> None:
    one, other = (lot_of(operations(comm=7, func=wire.ALL_REDUCE, peer=-1, rank=rank)) for rank in (0, 5))
    assert np.array_equal(one, other)
    sent = lot_of(operations(comm=7, func=wire.SEND, rank=2, peer=6))
    received = lot_of(operations(comm=7, func=wire.RECV, rank=6, peer=2))
    assert np.array_equal(sent, received)
    assert not np.array_equal(sent, lot_of(operations(comm=7, func=wire.SEND, rank=6, peer=2)))


def test_lots_are_spread_evenly() -> None:
    lots = lot_of(operations(comm=0xA72E744E3E8DDA49, func=1, peer=-1))
    for share in (WHOLE_SHARE // 2, WHOLE_SHARE // 4, WHOLE_SHARE // 16):
        assert abs(np.count_nonzero(lots < share) / 4_096 - share / WHOLE_SHARE) < 0.04
