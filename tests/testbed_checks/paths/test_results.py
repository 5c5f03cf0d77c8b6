"""What is said of trials: medians, shares of the ideal, and when a fabric had recovered."""

import pytest

from tests.testbed.paths.flows import PlannedFlow
from tests.testbed.paths.results import CutTrial, Pair, PairedTrials, Round
from tests.testbed.paths.traffic import Count, Rates, rates_between

FLOWS = [PlannedFlow((f"h{number}", "eth0"), ("h9", "eth0")) for number in range(2)]


def rates(*mbps: float) -> Rates:
    return Rates(dict(zip(FLOWS, mbps, strict=True)))


def trial(*rounds: tuple[float, float], decided_s: float | None = None) -> CutTrial:
    """A trial with rounds that end at a moment and have a share; an ideal one takes half a second."""
    told = tuple(Round(end_s, 0.5 / share, share) for end_s, share in rounds)
    return CutTrial("leaf0--spine0", True, 1.0, told, 0, decided_s)


def test_rates_are_of_what_was_acknowledged_by_each_host_s_own_clock() -> None:
    before = Count({FLOWS[0]: 1_000, FLOWS[1]: 0}, {FLOWS[0]: 0, FLOWS[1]: 0})
    after = Count({FLOWS[0]: 126_000, FLOWS[1]: 125_000}, {FLOWS[0]: 10**9, FLOWS[1]: 2 * 10**9})

    counted = rates_between(before, after)
    assert counted == rates(1.0, 0.5)
    assert (counted.aggregate_mbps, counted.worst_mbps) == (1.5, 0.5)


def test_pairs_are_summed_up_by_medians_and_shares_of_one_flow_alone() -> None:
    pairs = (
        Pair(rates(40, 20), rates(95, 95), 1.0),
        Pair(rates(80, 10), rates(99, 98), 1.0),
        Pair(rates(50, 30), rates(97, 97), 0.5),
    )
    told = PairedTrials(hosts=2, flows=2, single_mbps=100.0, pairs=pairs)

    assert told.ideal_mbps == 200
    assert told.random_share == pytest.approx(0.4)
    assert told.planned_share == pytest.approx(0.97)
    assert told.worst_ratio == pytest.approx(97 / 20)
    assert told.worst_share == pytest.approx(0.97)
    assert told.enforced == pytest.approx(2.5 / 3)


def test_fabric_has_recovered_when_the_first_good_round_begins() -> None:
    assert trial((1.0, 0.5), (1.6, 0.95), (2.1, 1.0)).recovered_s == pytest.approx(1.6 - 0.5 / 0.95)


def test_fabric_has_not_recovered_before_the_last_flow_was_moved() -> None:
    assert trial((0.5, 1.0), (1.0, 1.0), decided_s=0.4).recovered_s == pytest.approx(0.4)


def test_fabric_that_has_no_good_round_has_not_recovered() -> None:
    assert trial((1.0, 0.5), (2.0, 0.7)).recovered_s is None


def test_steady_state_is_the_later_half_of_the_rounds() -> None:
    assert trial((1.0, 0.1), (2.0, 0.2), (3.0, 0.8), (4.0, 0.9)).after == pytest.approx(0.85)
