"""A slow job waits for its next checkpoint exactly where that costs less; one that stands still never waits."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import BadInput
from planner.recovery.checkpoints.boundary import Moment, Slowness, choose_moment, expect_next_save
from tests.planner.recovery.checkpoints.build import catalogue, checkpoint

S = 1_000_000_000
NOW_NS = 10_000 * S


def moment(wait_s: float | None = 100.0, **changed: Any) -> Moment:
    usual: dict[str, Any] = {"fault_class": "comm_slow", "speed": 0.5, "lost_s": 300.0}
    next_ns = None if wait_s is None else NOW_NS + int(wait_s * S)
    return choose_moment(Slowness(**(usual | {"next_save_ns": next_ns} | changed)), NOW_NS)


def test_near_checkpoint_is_waited_for() -> None:
    decided = moment(100.0)
    assert (decided.waits, decided.until_ns) == (True, NOW_NS + 100 * S)
    assert (decided.now_cost_s, decided.wait_cost_s) == (300.0, 50.0)
    assert decided.reason == (
        "wait: the next checkpoint is 2 minutes away and waiting costs 50 s of healthy work, "
        "acting now does 5 minutes of work again"
    )


def test_far_checkpoint_is_not_waited_for() -> None:
    decided = moment(1000.0)
    assert (decided.waits, decided.until_ns, decided.wait_cost_s) == (False, NOW_NS, 500.0)
    assert decided.reason == (
        "act now: acting now does 5 minutes of work again, "
        "the next checkpoint is 17 minutes away and waiting costs 8 minutes of healthy work"
    )


@pytest.mark.parametrize("fault_class", ["comm_hang", "noncomm_hang", "crash", "software"])
def test_what_stands_still_never_waits(fault_class: str) -> None:
    decided = moment(0.001, fault_class=fault_class, lost_s=1e6)
    assert not decided.waits
    assert decided.reason.startswith(f"act now: a {fault_class} does not wait")


def test_part_that_may_die_is_waited_for_less() -> None:
    assert moment(500.0).waits
    decided = moment(500.0, failures_per_s=1 / 1000)
    assert not decided.waits
    assert decided.wait_cost_s == pytest.approx(250 + 0.5 * (300 + 125))


def test_checkpoint_that_nobody_announced_is_not_waited_for() -> None:
    assert moment(None).reason == (
        "act now: nothing says when the next checkpoint will be there, and 5 minutes of work is done again"
    )
    assert not moment(-5.0).waits


def test_job_without_any_checkpoint_waits_for_its_first() -> None:
    decided = moment(1000.0, lost_s=None)
    assert (decided.waits, decided.now_cost_s) == (True, None)
    assert decided.reason.endswith("and without it there is none to go back to")
    unknown = moment(None, lost_s=None)
    assert (unknown.waits, unknown.until_ns) == (True, None)
    assert unknown.reason.endswith("and without one all work would be lost")


def test_job_that_is_not_slower_loses_nothing_by_waiting() -> None:
    assert moment(5000.0, speed=1.1).wait_cost_s == 0.0


@pytest.mark.parametrize("speed", [-1.0, float("nan")])
def test_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(BadInput, match="expected a share of 0 or more"):
        moment(speed=speed)


def test_job_that_only_could_be_faster_waits_like_a_slow_one() -> None:
    assert moment(100.0, fault_class=None).waits
    assert not moment(1000.0, fault_class=None).waits


@settings(max_examples=100, deadline=None)
@given(st.floats(1.0, 10.0), st.integers(0, 10_000), st.floats(0, 10_000))
def test_choice_is_the_cheaper_of_two_replayed_runs(slow: float, lost_steps: int, wait_s: float) -> None:
    """An hour of wall time after the wait, restart left out: the run that has more steps done is the one chosen."""
    end_s = wait_s + 3600.0
    acted = -lost_steps + end_s / 1.0
    waited = wait_s / slow + 3600.0 / 1.0
    decided = moment(wait_s, speed=1 / slow, lost_s=float(lost_steps))
    if abs(acted - waited) > 1e-3:
        assert decided.waits == (waited > acted)


def test_next_checkpoint_is_expected_by_the_usual_gap() -> None:
    saved = [checkpoint(step, saved_ns=NOW_NS - ago * S) for step, ago in ((4, 50), (3, 150), (2, 250), (1, 900))]
    assert expect_next_save(catalogue(*saved), NOW_NS) == NOW_NS + 50 * S
    assert expect_next_save(catalogue(*saved), NOW_NS + 80 * S) == NOW_NS + 80 * S
    assert expect_next_save(catalogue(*saved), NOW_NS + 120 * S) is None
    assert expect_next_save(catalogue(*saved[:2]), NOW_NS) is None
