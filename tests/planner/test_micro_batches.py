"""After a loss in the middle of a step nothing is lost and nothing counts twice: the sum of gradients is the same."""

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import BadInput
from planner.micro_batches import BucketState, Takeover, take_over

REPEATABLE = settings(max_examples=100, deadline=None)


@st.composite
def losses(draw: st.DrawFn) -> tuple[dict[int, list[int]], list[int], list[BucketState]]:
    """Draw replicas with micro-batches of their own, some of them lost, and how far the sum was."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=2, max_size=6))
    numbers = iter(range(100))
    replicas = {at: [next(numbers) for _ in range(size)] for at, size in enumerate(sizes)}
    lost = draw(st.lists(st.sampled_from(sorted(replicas)), min_size=1, max_size=len(sizes) - 1, unique=True))
    states: st.SearchStrategy[BucketState] = st.sampled_from(get_args(BucketState))
    return replicas, lost, draw(st.lists(states, min_size=1, max_size=4))


def finish_step(
    replicas: Mapping[int, Sequence[int]], buckets: Sequence[BucketState], plan: Takeover, gradients: np.ndarray
) -> np.ndarray:
    """Return the sum of each bucket when survivors do as planned, from what each bucket still holds."""
    survivors = sorted(plan.own)
    everything = [one for those in replicas.values() for one in those]
    total = np.zeros(len(buckets), np.int64)
    for bucket, state in enumerate(buckets):
        if state == "reduced":
            total[bucket] = gradients[everything, bucket].sum()
        for replica in survivors:
            if bucket in plan.completed and state == "whole":
                total[bucket] += gradients[list(plan.own[replica]), bucket].sum()
            if bucket in plan.repeated:
                total[bucket] += gradients[list(plan.own[replica]), bucket].sum()
            if bucket in (*plan.completed, *plan.repeated):
                total[bucket] += gradients[list(plan.extra[replica]), bucket].sum()
    return total


@REPEATABLE
@given(losses(), st.integers(0, 999))
def test_the_sum_of_every_bucket_is_that_of_the_step_without_a_fault(
    case: tuple[dict[int, list[int]], list[int], list[BucketState]], seed: int
) -> None:
    replicas, lost, buckets = case
    gradients = np.random.default_rng(seed).integers(-1_000, 1_000, (100, len(buckets)))
    everything = [one for those in replicas.values() for one in those]
    plan = take_over(replicas, lost, buckets)
    assert finish_step(replicas, buckets, plan, gradients).tolist() == gradients[everything].sum(axis=0).tolist()


@REPEATABLE
@given(losses())
def test_nothing_is_lost_nothing_twice_and_all_as_even_as_can_be(
    case: tuple[dict[int, list[int]], list[int], list[BucketState]],
) -> None:
    replicas, lost, _ = case
    plan = take_over(replicas, lost)
    dealt = sorted(one for replica in plan.own for one in plan.micro_batches_of(replica))
    assert dealt == sorted(one for those in replicas.values() for one in those)
    loads = {replica: len(plan.micro_batches_of(replica)) for replica in plan.own}
    lowest = min(loads.values())
    assert all(loads[replica] <= lowest + 1 for replica, more in plan.extra.items() if more)
    if len({len(those) for those in replicas.values()}) == 1:
        assert max(loads.values()) - lowest <= 1


def test_buckets_that_were_summed_are_kept_and_after_the_whole_sum_nothing_is_computed_again() -> None:
    plan = take_over({0: [0, 1], 1: [2, 3]}, [1], ["reduced", "whole", "torn"])
    assert (plan.kept, plan.completed, plan.repeated) == ((0,), (1,), (2,))
    assert plan.reason == (
        "2 micro-batches go to 1 replicas, the fullest has 4 instead of 2; 1 of 3 buckets are kept, "
        "and 1 torn buckets make the survivors compute their own again"
    )
    plan = take_over({0: [0], 1: [1]}, [1], ["reduced", "reduced"])
    assert plan.extra == {0: ()}
    assert plan.reason == "all 2 buckets were summed before the loss: nothing is computed again"


@pytest.mark.parametrize(
    ("replicas", "lost", "sentence"),
    [
        ({0: [0], 1: [1]}, [0, 1], "all 2 replicas are lost"),
        ({0: [0], 1: [1]}, [7], "replica 7 is not one of 0, 1"),
        ({0: [0], 1: [0]}, [1], "a micro-batch belongs to two replicas"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(replicas: dict[int, list[int]], lost: list[int], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        take_over(replicas, lost)
