"""The numeric core finds the late rank in the rows that it is measured with, and says the same on torch."""

import pytest

import benchmarks.analyze_numeric
from analyzer.lateness.excess import measure_excess
from benchmarks.analyze_numeric import is_equal, measure_numeric, single_operations, sums_of_seconds


@pytest.mark.parametrize("are_sums", [False, True])
def test_late_rank_is_the_one_that_stands_out(are_sums: bool) -> None:
    rows = sums_of_seconds(64) if are_sums else single_operations(64)
    excess = measure_excess(rows, are_sums, 64, None)
    assert excess is not None
    assert int(excess.lasting.argmax()) == 27
    assert excess.lasting[27] > 5 * abs(excess.lasting[26])


def test_core_is_the_same_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.analyze_numeric, "_AGAIN", 1)
    plain, torch = measure_numeric(64, ("cpu",))
    assert (plain.device, torch.device) == ("numpy", "cpu")
    assert torch.is_same
    assert plain.rows == torch.rows == 64 * 15


def test_other_figures_are_not_the_same() -> None:
    one, other = (measure_excess(single_operations(ranks), False, ranks, None) for ranks in (64, 128))
    assert is_equal(one, one)
    assert not is_equal(one, other)
    assert not is_equal(one, None)
