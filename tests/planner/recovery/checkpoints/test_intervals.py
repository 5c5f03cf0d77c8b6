"""The advised interval loses least, its doubt is stated, and no failure seen is not taken for no failures."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import pdtr, pdtrc

from lockstep.errors import BadInput
from planner.recovery.checkpoints.intervals import (
    Saving,
    advise_interval,
    find_failure_rate,
    find_lost_share,
    say_time,
)

RSC_1 = find_failure_rate(65, 10_000)  # 6.50 failures in 1,000 node-days, as Meta counted on RSC-1


def test_rate_of_rsc_1_gives_its_published_time_between_failures() -> None:
    """16,384 GPUs on hosts of eight: Meta projected 1.8 h."""
    assert 24 / (16_384 / 8 * RSC_1.per_node_day) == pytest.approx(1.8, abs=0.01)


def test_advice_is_youngs_interval_in_the_form_of_rsc() -> None:
    advice = advise_interval(RSC_1, Saving(nodes=128, save_s=20.0))
    assert advice.interval_s == pytest.approx(math.sqrt(2 * 20.0 / (128 * 6.5e-3 / 86_400)))
    assert advice.low_s < advice.interval_s < (advice.high_s or 0)


def test_advice_is_a_sentence_with_its_figures() -> None:
    advice = advise_interval(RSC_1, Saving(nodes=2048, save_s=60.0, interval_s=3600.0))
    assert advice.reason == (
        "save every 15 minutes: a save holds 2048 nodes up for 60 s, and one of them fails every 1.8 hours "
        "(65 failures in 10,000 node-days: 6.5 in 1,000, and with 95 % between 5.02 and 8.28), so that 13.6% of "
        "the time is lost to saves and to work done twice, and 29.4% at the 60 minutes of today; with the doubt "
        "about the rate, 13 minutes to 17 minutes is right"
    )


def test_no_failure_seen_takes_the_upper_bound_and_says_so() -> None:
    rate = find_failure_rate(0, 1000.0)
    assert rate.planned == rate.high == pytest.approx(-math.log(0.05) / 1000)
    advice = advise_interval(rate, Saving(nodes=100, save_s=30.0))
    assert advice.high_s is None
    assert "no failure was seen in 1,000 node-days, so this is the upper bound with 95 %" in advice.reason
    assert advice.reason.endswith("or more is right")


def test_interval_is_not_shorter_than_a_save() -> None:
    often = find_failure_rate(100, 1.0)
    advice = advise_interval(often, Saving(nodes=1000, save_s=60.0, background_s=30.0))
    assert (advice.interval_s, advice.lost_share) == (90.0, 1.0)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 500), st.floats(1, 1e6), st.integers(1, 5000), st.floats(0.1, 3600), st.floats(0.2, 5))
def test_no_other_interval_loses_less(failures: int, days: float, nodes: int, save_s: float, factor: float) -> None:
    rate = find_failure_rate(failures, days)
    advice = advise_interval(rate, Saving(nodes, save_s))
    mttf_s = 86_400 / (nodes * rate.per_node_day)
    other_s = max(advice.interval_s * factor, save_s)
    assert advice.lost_share <= find_lost_share(other_s, save_s, mttf_s) + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 300), st.floats(0.5, 1e5))
def test_bounds_are_where_the_count_is_just_unlikely(failures: int, days: float) -> None:
    """The exact bounds: at the upper one so few failures have 2.5 %, at the lower one so many have."""
    rate = find_failure_rate(failures, days)
    tail = 0.025 if failures else 0.05
    assert pdtr(failures, rate.high * days) == pytest.approx(tail, rel=1e-6)
    if failures:
        assert pdtrc(failures - 1, rate.low * days) == pytest.approx(tail, rel=1e-6)
    assert rate.low <= rate.per_node_day < rate.high


@pytest.mark.parametrize(("failures", "days"), [(-1, 10.0), (1, 0.0), (1, -3.0), (1, math.inf), (1, math.nan)])
def test_what_is_no_rate_is_refused(failures: int, days: float) -> None:
    with pytest.raises(BadInput, match="are no rate"):
        find_failure_rate(failures, days)


@pytest.mark.parametrize("saving", [Saving(0, 10.0), Saving(1, 0.0), Saving(1, math.nan), Saving(1, 1.0, -1.0)])
def test_saving_that_cannot_be_is_refused(saving: Saving) -> None:
    with pytest.raises(BadInput, match="it takes a node and a save that lasts"):
        advise_interval(RSC_1, saving)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.25, "0.25 s"), (89, "89 s"), (1080, "18 minutes"), (9000, "2.5 hours"), (2e6, "23.1 days")],
)
def test_times_are_said_in_the_unit_of_people(seconds: float, said: str) -> None:
    assert say_time(seconds) == said
