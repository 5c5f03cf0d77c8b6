"""A counter that rises too fast is told once per rise; resets, pauses and slow growth are not."""

from collections.abc import Iterable

import pytest

from collector.sources.rdma import CounterRule, Rise, RuleWatch, load_rules
from tests.builders import SECOND, T0


def rule(threshold: int = 10, window_s: int = 1) -> CounterRule:
    return CounterRule("symbol_error", threshold, window_s, "warning", "bit errors")


def follow(watched: CounterRule, samples: Iterable[tuple[float, int]]) -> list[tuple[float, Rise]]:
    """Return what a rule says about (seconds, value), each with its second."""
    watch = RuleWatch(watched)
    reported = [(at_s, watch.observe(T0 + round(at_s * SECOND), value)) for at_s, value in samples]
    return [(at_s, rise) for at_s, rise in reported if rise]


def test_rules_are_those_that_nvsentinel_publishes() -> None:
    rules = {(rule.counter, rule.severity): (rule.threshold, rule.window_s) for rule in load_rules()}
    assert len(rules) == len(load_rules()) == 17
    for fatal in (
        "link_downed",
        "excessive_buffer_overrun_errors",
        "local_link_integrity_errors",
        "rnr_nak_retry_err",
    ):
        assert rules[fatal, "error"] == (0, 1)
    assert rules["symbol_error", "error"] == (120, 3600)
    assert rules["symbol_error", "warning"] == (10, 1)
    assert rules["link_error_recovery", "warning"] == (5, 60)
    assert rules["roce_slow_restart", "warning"] == (10, 1)


def test_rules_can_be_used_as_they_are() -> None:
    for found in load_rules():
        assert found.severity in ("warning", "error")
        assert found.threshold >= 0
        assert found.window_s > 0
        assert found.meaning


def test_rise_is_reported_with_what_was_seen() -> None:
    ((_, rise),) = follow(rule(), [(0, 5), (1, 16)])
    assert str(rise) == "symbol_error grew by 11 (5 to 16) in 1.0 s, more than 10 in 1 s: bit errors"


def test_growth_up_to_the_threshold_is_quiet() -> None:
    assert follow(rule(), [(second, 10 * second) for second in range(100)]) == []


def test_first_value_is_a_beginning_however_high() -> None:
    assert follow(rule(threshold=0), [(0, 10_000), (1, 10_000)]) == []


def test_any_increase_breaks_a_threshold_of_zero() -> None:
    assert [at_s for at_s, _ in follow(rule(threshold=0), [(0, 7), (1, 7), (2, 8)])] == [2]


def test_rise_that_goes_on_is_reported_once_and_the_next_one_again() -> None:
    values = [0, 50, 100, 150, 150, 150, 200, 250]
    assert [at_s for at_s, _ in follow(rule(), enumerate(values))] == [1, 6]


def test_counter_that_was_reset_begins_anew() -> None:
    assert follow(rule(), [(0, 1_000), (1, 0), (2, 10), (3, 20)]) == []


def test_counter_that_wraps_says_nothing_and_goes_on_to_be_watched() -> None:
    reported = follow(rule(), [(0, 2**64 - 5), (1, 100), (2, 111)])
    assert [(at_s, rise.before, rise.after) for at_s, rise in reported] == [(2, 100, 111)]


def test_rise_after_a_reset_in_the_middle_of_a_rise_is_reported() -> None:
    assert [at_s for at_s, _ in follow(rule(), [(0, 0), (1, 50), (2, 0), (3, 50)])] == [1, 3]


def test_rise_from_the_reset_on_is_reported_within_a_long_window() -> None:
    ((at_s, rise),) = follow(rule(threshold=120, window_s=3600), [(0, 1_000), (10, 0), (20, 130)])
    assert (at_s, rise.before, rise.after) == (20, 0, 130)


def test_one_calm_window_ends_a_rise() -> None:
    assert [at_s for at_s, _ in follow(rule(), enumerate([0, 50, 50, 100]))] == [1, 3]


def test_slow_growth_that_adds_up_within_a_long_window_is_reported() -> None:
    reported = follow(rule(threshold=120, window_s=3600), [(second, second // 20) for second in range(3600)])
    assert [(at_s, rise.after) for at_s, rise in reported] == [(2420, 121)]


def test_growth_below_the_rate_is_quiet_for_ever() -> None:
    assert follow(rule(threshold=120, window_s=3600), [(at_s, at_s // 31) for at_s in range(0, 40_000, 10)]) == []


@pytest.mark.parametrize("gap_s", [0.99, 1.0, 1.01, 1.3])
def test_reads_that_come_early_or_late_change_nothing(gap_s: float) -> None:
    samples = [(gap_s * number, 100 * number) for number in range(5)]
    assert len(follow(rule(), samples)) == 1


def test_growth_over_a_long_pause_counts_by_its_mean() -> None:
    assert follow(rule(), [(0, 0), (600, 5_000)]) == []
    assert len(follow(rule(), [(0, 0), (600, 7_000)])) == 1


def test_clock_that_goes_back_begins_anew() -> None:
    assert follow(rule(), [(100, 0), (50, 1_000), (51, 1_001)]) == []


def test_memory_of_a_window_is_bounded_however_often_it_is_read() -> None:
    watch = RuleWatch(rule(window_s=3600))
    for tenth in range(60_000):
        watch.observe(T0 + tenth * SECOND // 10, 0)
    assert len(watch._samples) <= 62
