"""Where not all operations are known, their numbers still tell how long a step is."""

import numpy as np
import pyarrow as pa
import pytest

from analyzer.steps.traffic import find_period_in_samples, find_period_in_seconds
from lockstep.clock import NS_PER_S
from tests.analyzer.steps.traffic import DDP, MEGATRON, MS, Op, Rank


@pytest.mark.parametrize(("step", "length_ms"), [(MEGATRON, 400), (DDP, 520), ((Op(300),), 330)])
@pytest.mark.parametrize("keep", [0.3, 0.6])
def test_sampled_operations_give_the_period(step: tuple[Op, ...], length_ms: int, keep: float) -> None:
    witness = Rank().steps(step, 150).look(keep)
    assert witness.is_sampled
    assert find_period_in_samples([witness]) == pytest.approx(length_ms * MS, rel=0.05)


def test_few_operations_give_the_period_where_kinds_differ_in_how_often_they_come() -> None:
    assert find_period_in_samples([Rank().steps(MEGATRON, 150).look(0.08)]) == pytest.approx(400 * MS, rel=0.1)


def test_few_operations_that_look_alike_give_nothing() -> None:
    assert find_period_in_samples([Rank().steps(DDP, 60).look(0.08)]) is None


def test_ranks_have_to_agree() -> None:
    one, other = (Rank().steps(step, 150).look(0.5) for step in (MEGATRON, DDP))
    assert find_period_in_samples([one, other]) is None
    assert find_period_in_samples([one, one, other]) == pytest.approx(400 * MS, rel=0.05)


def test_complete_operations_are_not_sampled() -> None:
    assert not Rank().steps(MEGATRON, 20).look().is_sampled


def test_no_operations_give_nothing() -> None:
    assert find_period_in_samples([]) is None
    assert find_period_in_samples([Rank().steps(MEGATRON, 3).look()]) is None


def seconds(*kinds: tuple[int, int]) -> pa.Table:
    """Return counts of some kinds of operations, each with the seconds over which it was seen."""
    counts, spans = zip(*kinds, strict=True) if kinds else ((), ())
    last = [(span - 1) * NS_PER_S for span in spans]
    return pa.table(
        {
            "n": pa.array(counts, pa.uint64()),
            "first_ns": pa.array(np.zeros(len(last), np.int64)),
            "last_ns": pa.array(last, pa.int64()),
        }
    )


def test_counts_per_second_give_the_period_of_the_rarest_operation() -> None:
    assert find_period_in_seconds(seconds((480, 60), (120, 60), (9, 3))) == NS_PER_S // 2


def test_no_counts_give_nothing() -> None:
    assert find_period_in_seconds(seconds()) is None
    assert find_period_in_seconds(seconds((3, 60))) is None
