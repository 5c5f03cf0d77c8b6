"""Waiting is over when it has cost what acting costs, and never costs more than twice what was best."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.clock import NS_PER_S
from planner.recovery.rental import weigh_waiting


def test_time_comes_when_the_loss_reaches_the_price() -> None:
    wait = weigh_waiting(0, 1800 * NS_PER_S, lost_per_hour=4.0, price_gpu_hours=10.0)
    assert not wait.is_over
    assert wait.lost_gpu_hours == pytest.approx(2.0)
    assert wait.due_ns == 9000 * NS_PER_S
    assert weigh_waiting(0, 9000 * NS_PER_S, 4.0, 10.0).is_over


def test_what_costs_nothing_is_done_at_once() -> None:
    assert weigh_waiting(0, 0, lost_per_hour=4.0, price_gpu_hours=0.0).is_over


def test_what_loses_nothing_is_never_due() -> None:
    wait = weigh_waiting(0, 10**18, lost_per_hour=0.0, price_gpu_hours=1.0)
    assert (wait.is_over, wait.due_ns) == (False, None)


@given(st.floats(0.1, 1000), st.floats(0.1, 1000), st.floats(0.0, 1e5))
def test_it_never_costs_more_than_twice_what_somebody_who_knew_would_pay(
    per_hour: float, price: float, lasts_h: float
) -> None:
    due_ns = weigh_waiting(0, 0, per_hour, price).due_ns
    assert due_ns is not None
    acts_after_h = due_ns / NS_PER_S / 3600
    paid = per_hour * lasts_h if lasts_h < acts_after_h else per_hour * acts_after_h + price
    assert paid <= 2 * min(per_hour * lasts_h, price) * (1 + 1e-9)
