"""Tables hold what was measured, keep the model's shape elsewhere, and say which is which."""

import pytest

from lockstep.errors import BadInput
from planner.recovery.allocation.throughput import Sample, Throughput, calibrate, tabulate

MODEL = tabulate({1: 100.0, 2: 190.0, 4: 360.0, 8: 640.0})


def seen(nodes: int, *per_s: float) -> list[Sample]:
    return [Sample(nodes, value) for value in per_s]


def test_a_count_that_was_seen_has_its_median_and_is_marked() -> None:
    table = calibrate(seen(4, 1.4, 1.5, 9.0), work_each=200.0, model=MODEL)
    assert table.at(4) == 300.0
    assert table.measured == {4}


def test_other_counts_keep_the_shape_of_the_model() -> None:
    table = calibrate(seen(4, 1.8, 1.8, 1.8), work_each=100.0, model=MODEL)
    assert [table.at(count) for count in MODEL.counts] == pytest.approx([50.0, 95.0, 180.0, 320.0])


def test_between_two_counts_that_were_seen_the_model_is_bent() -> None:
    table = calibrate([*seen(1, 1, 1, 1), *seen(4, 1.8, 1.8, 1.8)], work_each=100.0, model=MODEL)
    assert table.at(2) == pytest.approx(190.0 * 0.75)
    assert table.at(8) == pytest.approx(320.0)


def test_too_few_samples_say_nothing() -> None:
    assert calibrate(seen(4, 1.8, 1.8), work_each=100.0, model=MODEL) == MODEL


def test_a_count_the_model_held_impossible_counts_once_it_was_seen() -> None:
    table = calibrate(seen(3, 2.0, 2.0, 2.0), work_each=100.0, model=MODEL)
    assert (table.at(3), table.at(4)) == (200.0, 360.0)
    assert table.measured == {3}


def test_a_count_that_is_not_in_the_table_does_no_work() -> None:
    assert [MODEL.at(count) for count in (0, 3, 9)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("counts", "rates"),
    [((2, 1), (1.0, 2.0)), ((1,), ()), ((0, 1), (0.0, 1.0)), ((1, 1), (1.0, 1.0))],
)
def test_a_table_out_of_order_is_refused(counts: tuple[int, ...], rates: tuple[float, ...]) -> None:
    with pytest.raises(BadInput, match="one rate for each count, counts upwards from 1"):
        Throughput(counts, rates)


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(BadInput, match="rates that are no numbers of 0 or more"):
        tabulate({1: rate})
