"""The advised interval loses least, its doubt is stated, and no failure seen is not taken for no failures."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import pdtr, pdtrc

from lockstep.errors import BadInput
from planner.checkpoints import intervals
from planner.checkpoints.intervals import Saving, Slowness, Timing, find_failure_rate
from tests.planner.checkpoints.build import catalogue, checkpoint

RSC_1 = find_failure_rate(65, 10_000)  # 6.50 failures in 1,000 node-days, as Meta counted on RSC-1


def test_advice_is_youngs_interval_in_the_form_of_rsc_in_a_sentence_with_its_figures() -> None:
    assert 24 / (16_384 / 8 * RSC_1.per_node_day) == pytest.approx(1.8, abs=0.01)
    advice = intervals.advise_interval(RSC_1, Saving(nodes=128, save_s=20.0))
    assert advice.interval_s == pytest.approx(math.sqrt(2 * 20.0 / (128 * 6.5e-3 / 86_400)))
    assert advice.low_s < advice.interval_s < (advice.high_s or 0)
    advice = intervals.advise_interval(RSC_1, Saving(nodes=2048, save_s=60.0, interval_s=3600.0))
    assert advice.reason == (
        "save every 15 minutes: a save holds 2048 nodes up for 60 s, and one of them fails every 1.8 hours "
        "(65 failures in 10,000 node-days: 6.5 in 1,000, and with 95 % between 5.02 and 8.28), so that 13.6% of "
        "the time is lost to saves and to work done twice, and 29.4% at the 60 minutes of today; with the doubt "
        "about the rate, 13 minutes to 17 minutes is right"
    )


def test_no_failure_seen_takes_the_upper_bound_and_says_so() -> None:
    rate = find_failure_rate(0, 1000.0)
    assert rate.planned == rate.high == pytest.approx(-math.log(0.05) / 1000)
    advice = intervals.advise_interval(rate, Saving(nodes=100, save_s=30.0))
    assert advice.high_s is None
    assert "no failure was seen in 1,000 node-days, so this is the upper bound with 95 %" in advice.reason
    assert advice.reason.endswith("or more is right")


@given(st.integers(1, 500), st.floats(1, 1e6), st.integers(1, 5000), st.floats(0.1, 3600), st.floats(0.2, 5))
def test_no_other_interval_loses_less(failures: int, days: float, nodes: int, save_s: float, factor: float) -> None:
    rate = find_failure_rate(failures, days)
    advice = intervals.advise_interval(rate, Saving(nodes, save_s))
    mttf_s = 86_400 / (nodes * rate.per_node_day)
    other_s = max(advice.interval_s * factor, save_s)
    assert advice.lost_share <= intervals.find_lost_share(other_s, save_s, mttf_s) + 1e-9


@given(st.integers(0, 300), st.floats(0.5, 1e5))
def test_bounds_are_where_the_count_is_just_unlikely(failures: int, days: float) -> None:
    """The exact bounds: at the upper one so few failures have 2.5 %, at the lower one so many have."""
    rate = find_failure_rate(failures, days)
    tail = 0.025 if failures else 0.05
    assert pdtr(failures, rate.high * days) == pytest.approx(tail, rel=1e-6)
    if failures:
        assert pdtrc(failures - 1, rate.low * days) == pytest.approx(tail, rel=1e-6)
    assert rate.low <= rate.per_node_day < rate.high


def test_rates_savings_and_speeds_that_cannot_be_are_refused() -> None:
    for failures, days in ((-1, 10.0), (1, 0.0), (1, -3.0), (1, math.inf), (1, math.nan)):
        with pytest.raises(BadInput, match="are no rate"):
            find_failure_rate(failures, days)
    for saving in (Saving(0, 10.0), Saving(1, 0.0), Saving(1, math.nan)):
        with pytest.raises(BadInput, match="it takes a node and a save that lasts"):
            intervals.advise_interval(RSC_1, saving)
    for speed in (-1.0, math.nan):
        with pytest.raises(BadInput, match="expected a share of 0 or more"):
            timing(speed=speed)


def test_times_are_said_in_the_unit_of_people() -> None:
    message = [intervals.say_time(seconds) for seconds in (0.25, 89, 1080, 9000, 2e6)]
    assert message == ["0.25 s", "89 s", "18 minutes", "2.5 hours", "23.1 days"]


S = 1_000_000_000
NOW_NS = 10_000 * S


def timing(wait_s: float | None = 100.0, **changed: Any) -> Timing:
    usual: dict[str, Any] = {"fault_class": "comm_slow", "speed": 0.5, "lost_s": 300.0}
    next_ns = None if wait_s is None else NOW_NS + int(wait_s * S)
    return intervals.choose_timing(Slowness(**(usual | {"next_save_ns": next_ns} | changed)), NOW_NS)


def test_near_checkpoint_is_waited_for_and_a_far_one_not() -> None:
    lost = "acting now does 5 minutes of work again"
    assert timing(100.0) == Timing(
        True,
        NOW_NS + 100 * S,
        f"wait: the next checkpoint is 2 minutes away and waiting costs 50 s of healthy work, {lost}",
    )
    far = "the next checkpoint is 17 minutes away and waiting costs 8 minutes of healthy work"
    assert timing(1000.0) == Timing(False, NOW_NS, f"act now: {lost}, {far}")
    assert [timing(wait_s, fault_class=None).waits for wait_s in (100.0, 1000.0)] == [True, False]
    assert [timing(500.0, failures_per_s=rate).waits for rate in (0.0, 1 / 1000)] == [True, False]
    assert intervals.find_wait_cost_s(Slowness("comm_slow", 1.1, 300.0, None), 5000.0) == 0.0
    risky = Slowness("comm_slow", 0.5, 300.0, None, failures_per_s=1 / 1000)
    assert intervals.find_wait_cost_s(risky, 500.0) == pytest.approx(250 + 0.5 * (300 + 125))


def test_what_stands_still_never_waits() -> None:
    for fault_class in ("comm_hang", "noncomm_hang", "crash", "software"):
        decided = timing(0.001, fault_class=fault_class, lost_s=1e6)
        assert not decided.waits
        assert decided.reason.startswith(f"act now: a {fault_class} does not wait")


def test_checkpoint_that_nobody_announced_is_not_waited_for() -> None:
    assert timing(None).reason == (
        "act now: nothing says when the next checkpoint will be there, and 5 minutes of work is done again"
    )
    assert not timing(-5.0).waits


def test_job_without_any_checkpoint_waits_for_its_first() -> None:
    decided = timing(1000.0, lost_s=None)
    assert decided.waits
    assert decided.reason.endswith("and without it there is none to go back to")
    unknown = timing(None, lost_s=None)
    assert (unknown.waits, unknown.until_ns) == (True, None)
    assert unknown.reason.endswith("and without one all work would be lost")


@given(st.floats(1.0, 10.0), st.integers(0, 10_000), st.floats(0, 10_000))
def test_choice_is_the_cheaper_of_two_replayed_runs(slow: float, lost_steps: int, wait_s: float) -> None:
    """An hour of wall time after the wait, restart left out: the run that has more steps done is the one chosen."""
    end_s = wait_s + 3600.0
    acted = -lost_steps + end_s / 1.0
    waited = wait_s / slow + 3600.0 / 1.0
    decided = timing(wait_s, speed=1 / slow, lost_s=float(lost_steps))
    if abs(acted - waited) > 1e-3:
        assert decided.waits == (waited > acted)


def test_next_checkpoint_is_expected_by_the_usual_gap() -> None:
    saved = [checkpoint(step, saved_ns=NOW_NS - ago * S) for step, ago in ((4, 50), (3, 150), (2, 250), (1, 900))]
    assert intervals.expect_next_save(catalogue(*saved), NOW_NS) == NOW_NS + 50 * S
    assert intervals.expect_next_save(catalogue(*saved), NOW_NS + 80 * S) == NOW_NS + 80 * S
    assert intervals.expect_next_save(catalogue(*saved), NOW_NS + 120 * S) is None
    assert intervals.expect_next_save(catalogue(*saved[:2]), NOW_NS) is None
