"""The period is what a rank does again and again, however much its operations look alike."""

import numpy as np
import pytest

from analyzer.steps.periods import find_period
from analyzer.steps.traffic import Witness
from tests.analyzer.steps.traffic import DDP, MEGATRON, Op, Rank

PIPELINE = tuple(
    op
    for batch in range(4)
    for op in (Op(20, func="Recv", peer=0, comm=3), Op(5, comm=2), Op(40, func="Send", peer=2, comm=3))
) + (Op(10, func="AllReduce", comm=4, mb=500),)
EXPERTS = (
    Op(100, comm=2),
    *(Op(func="Send", peer=peer, comm=5) for peer in range(6)),
    Op(200, comm=2),
    Op(10, comm=6),
)


def period_of(witness: Witness) -> int | None:
    span_ns = int(witness.end_ns[-1] - witness.start_ns[0])
    found = find_period(witness.words, witness.gap_ns, span_ns)
    return found.operations if found else None


@pytest.mark.parametrize(
    ("step", "operations"), [(DDP, 4), (MEGATRON, 4), (PIPELINE, 13), (EXPERTS, 9), ((Op(300),), 1)]
)
def test_step_is_found_from_what_is_done_and_from_pauses(step: tuple[Op, ...], operations: int) -> None:
    assert period_of(Rank().steps(step, 12).look()) == operations


def test_one_operation_per_step_is_a_period_of_one_however_noisy() -> None:
    assert period_of(Rank(noise=0.15).steps((Op(300),), 40).look()) == 1


def test_micro_batches_belong_to_one_step() -> None:
    accumulated = (*(Op(50, func="AllGather", comm=2),) * 4, Op(50, func="AllReduce", mb=500))
    assert period_of(Rank().steps(accumulated, 10).look()) == 5


def test_slow_operations_do_not_change_the_period() -> None:
    assert period_of(Rank().steps(DDP, 10).steps(DDP, 10, slower=5).look()) == 4


def test_checkpoints_do_not_change_the_period() -> None:
    rank = Rank()
    for _ in range(6):
        rank.steps(DDP, 20).pause(5)
    assert period_of(rank.look()) == 4


def test_of_two_mixes_the_newer_one_counts() -> None:
    assert period_of(Rank().steps(DDP, 20).steps(EXPERTS, 20).look()) == 9


def test_three_rounds_are_needed() -> None:
    assert period_of(Rank().steps(MEGATRON, 3).look()) == 4
    assert period_of(Rank().steps(MEGATRON, 2).look()) is None


def test_what_does_not_repeat_has_no_period() -> None:
    random = np.random.default_rng(4)
    words, gaps = random.integers(0, 30, 400), random.integers(0, 1000, 400)
    assert find_period(words, gaps, 400_000) is None


@pytest.mark.parametrize("length", [0, 1, 2])
def test_next_to_nothing_has_no_period(length: int) -> None:
    assert find_period(np.zeros(length, np.int64), np.zeros(length, np.int64), 0) is None


def test_all_times_alike_and_no_pause_is_a_period_of_one() -> None:
    found = find_period(np.zeros(50, np.int64), np.zeros(50, np.int64), 0)
    assert found
    assert found.operations == 1


def test_layers_that_repeat_inside_a_step_are_no_steps() -> None:
    layers = (Op(5, comm=2, takes_ms=5), Op(5, comm=2, takes_ms=5, func="AllGather")) * 40
    witness = Rank().steps((*layers, Op(10, func="ReduceScatter", mb=500)), 8).look()
    assert period_of(witness) == 81


def test_loss_that_is_logged_now_and_then_does_not_lengthen_the_step() -> None:
    rank = Rank()
    for _ in range(10):
        rank.steps(MEGATRON, 9).steps((*MEGATRON, Op(mb=0.00001, takes_ms=0.1)))
    assert period_of(rank.look().without_light()) == 4
