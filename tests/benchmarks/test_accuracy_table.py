"""Scores add up to precision, recall, alarms with their bound, and calibration."""

import math

import pytest

from benchmarks.accuracy_score import Hit, Named, Score
from benchmarks.accuracy_table import Tally, calibrate, figures_of, quantile, right_at, upper_bound
from benchmarks.figures import Figure


def named(confidence: float = 0.95, **words: object) -> Named:
    return Named("nic:h3/eth1", "comm_slow", 30.0, 60.0, confidence=confidence, **words)  # type: ignore[arg-type]


def hit(delay_s: float = 8.0, *, confidence: float = 0.95, class_right: bool = True, in_time: bool = True) -> Hit:
    return Hit(named(confidence), class_right, True, delay_s, in_time)


def scored(*hits: Hit, **words: object) -> Score:
    """A run of 64 ranks with one strong fault, 20 s of health, and steps of 2 s."""
    told = {"scenario": "s", "family": "f", "group": "single strong", "ranks": 64, "seed": 1, "healthy_s": 20.0}
    return Score(**{**told, "hits": hits, "step_s": 2.0, **words})  # type: ignore[arg-type]  # words are fields


def test_recall_counts_faults_and_precision_counts_verdicts() -> None:
    tally = Tally([scored(hit(), hit(in_time=False)), scored(missed=("a",), wrong=(named(),) * 2)])
    assert tally.recall == pytest.approx(100 / 3), "one of three in time"
    assert tally.precision == 50.0, "two of four verdicts are on a part that broke"


def test_verdict_in_health_costs_precision_too() -> None:
    assert Tally([scored(hit()), scored(alarms=(named(),))]).precision == 50.0


def test_class_is_a_part_of_recall_of_its_own() -> None:
    tally = Tally([scored(hit(class_right=False)), scored(hit())])
    assert (tally.recall, tally.class_recall) == (100.0, 50.0)


def test_time_to_detect_is_told_in_seconds_and_in_steps() -> None:
    tally = Tally([scored(hit(8.0)), scored(hit(4.0), step_s=None), scored(hit(99.0, in_time=False))])
    assert (tally.delays_s(), tally.delays_steps()) == ([4.0, 8.0], [4.0])


def test_bound_of_no_event_is_three_and_of_many_is_near_their_number() -> None:
    assert upper_bound(0) == pytest.approx(math.log(20))
    assert upper_bound(100) == pytest.approx(118.1, abs=0.1)


def test_calibration_counts_verdicts_of_each_confidence_with_what_is_right_of_them() -> None:
    bins = calibrate(
        [scored(hit(confidence=0.97), hit(confidence=0.92, class_right=False)), scored(wrong=(named(1.0),))]
    )
    assert [(one.low, one.verdicts, one.right) for one in bins if one.verdicts] == [(0.9, 1, 0), (0.95, 2, 1)]
    share, verdicts = right_at(bins, 0.9)
    assert share == pytest.approx(100 / 3)
    assert verdicts == 3


def test_quantile_of_nothing_is_no_number() -> None:
    assert math.isnan(quantile([], 0.9))
    assert quantile([1.0, 2.0, 3.0], 0.9) == 3.0


def by_name(*scores: Score, **peers: list[Score]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures_of({"": scores, **peers})}


def test_floors_are_those_of_the_claim() -> None:
    figures = by_name(*[scored(hit())] * 97, *[scored(missed=("a",))] * 3, scored(hit(), group="hard"))
    recall = figures["single strong: recall, part exact"]
    assert (recall.value, recall.floor, recall.goal, recall.met) == (97.0, 97.0, 99.5, True)
    assert figures["hard: precision, part exact"].floor == 90.0


def test_one_false_alarm_breaks_the_floor_and_raises_the_bound() -> None:
    quiet = by_name(scored(healthy_s=3_600.0, group="silence"))
    loud = by_name(scored(healthy_s=3_600.0, group="silence", alarms=(named(grade="isolate"),)))
    assert (quiet["false alarms"].met, loud["false alarms"].met) == (True, False)
    assert quiet["false alarms, 95 % upper bound"].value == pytest.approx(2.996, abs=0.001)
    assert (quiet["wrong verdicts of isolation grade"].met, loud["wrong verdicts of isolation grade"].met) == (
        True,
        False,
    )


def test_crash_breaks_its_floor() -> None:
    figure = by_name(scored(hit()), scored(crashed=True, scenario="nic-tx-mild-ib"))[
        "runs in which the analyzer crashed"
    ]
    assert (figure.value, figure.met, figure.reference) == (1, False, "nic-tx-mild-ib")


def test_peer_is_compared_on_the_faults_that_its_rule_is_for() -> None:
    wire = {"fault_classes": ("comm_slow",)}
    ours = [scored(hit(), **wire), scored(hit(), fault_classes=("noncomm_slow",))]
    theirs = [scored(missed=("a",), **wire), scored(hit(), fault_classes=("noncomm_slow",))]
    figures = by_name(*ours, **{"delay matrix": theirs})
    assert figures["peer delay matrix: recall"].value == 0.0
    assert "the analyzer there 100.0 %" in figures["peer delay matrix: recall"].reference


def test_family_is_a_line_with_what_was_wrong() -> None:
    figures = by_name(
        scored(hit(), family="a"), scored(family="a", missed=("x",), wrong=(named(),)), scored(family="b")
    )
    assert figures["family a: recall"].value == 50.0
    assert "wrong 1: nic:h3/eth1 comm_slow" in figures["family a: recall"].reference
    assert figures["family b: false alarms"].value == 0
