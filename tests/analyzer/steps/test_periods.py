"""The period is what a rank does again and again, however much its operations look alike."""

from dataclasses import fields

import numpy as np
import pytest

from analyzer.steps.periods import Steps, cut, find_period, learn_signature, still_holds
from analyzer.steps.traffic import Witness
from tests.analyzer.steps.traffic import DDP, MEGATRON, MS, T0, Op, Rank

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


def test_micro_batches_and_layers_belong_to_one_step() -> None:
    accumulated = (*(Op(50, func="AllGather", comm=2),) * 4, Op(50, func="AllReduce", mb=500))
    assert period_of(Rank().steps(accumulated, 10).look()) == 5
    layers = (Op(5, comm=2, takes_ms=5), Op(5, comm=2, takes_ms=5, func="AllGather")) * 40
    witness = Rank().steps((*layers, Op(10, func="ReduceScatter", mb=500)), 8).look()
    assert period_of(witness) == 81


def test_period_no_longer_holds_where_the_same_operations_come_at_other_pauses() -> None:
    burst, step = np.zeros(24, np.int64), np.tile([90, 1, 1], 8) * MS
    span_ns = int(step.sum())
    assert still_holds(burst, step, span_ns, lag=3)
    assert not still_holds(burst, step, span_ns, lag=1), "found within one step, before the next began with its pause"
    other = np.arange(24) % 5
    assert still_holds(other, step, span_ns, lag=1), "other operations tell nothing of pauses"


def test_pauses_slow_operations_and_logged_losses_do_not_change_the_period() -> None:
    assert period_of(Rank().steps(DDP, 10).steps(DDP, 10, slower=5).look()) == 4
    rank = Rank()
    for _ in range(6):
        rank.steps(DDP, 20).pause(5)
    assert period_of(rank.look()) == 4
    assert period_of(Rank().steps(DDP, 20).steps(EXPERTS, 20).look()) == 9
    rank = Rank()
    for _ in range(10):
        rank.steps(MEGATRON, 9).steps((*MEGATRON, Op(mb=0.00001, takes_ms=0.1)))
    assert period_of(rank.look().without_light) == 4


def test_what_does_not_repeat_three_times_has_no_period() -> None:
    assert period_of(Rank().steps(MEGATRON, 3).look()) == 4
    assert period_of(Rank().steps(MEGATRON, 2).look()) is None
    random = np.random.default_rng(4)
    words, gaps = random.integers(0, 30, 400), random.integers(0, 1000, 400)
    assert find_period(words, gaps, 400_000) is None
    found = find_period(np.zeros(50, np.int64), np.zeros(50, np.int64), 0)
    assert found
    assert found.operations == 1
    assert period_of(Rank(noise=0.15).steps((Op(300),), 40).look()) == 1


@pytest.mark.parametrize("length", [0, 1, 2])
def test_next_to_nothing_has_no_period(length: int) -> None:
    assert find_period(np.zeros(length, np.int64), np.zeros(length, np.int64), 0) is None


EVALUATION = (Op(30, func="Broadcast", comm=9), Op(10, func="AllGather", comm=9))


def cut_up(witness: Witness) -> Steps:
    period = find_period(witness.words, witness.gap_ns, int(witness.end_ns[-1] - witness.start_ns[0]))
    assert period
    signature = learn_signature(witness, period)
    assert signature
    return cut(witness, signature)


def lengths_ms(steps: Steps) -> list[int]:
    return [round(length / MS, -1) for length in (steps.end_ns - steps.start_ns).tolist()]


def test_every_step_is_found_with_its_length_and_bytes_and_follows_the_one_before() -> None:
    steps = cut_up(Rank(noise=0.0).steps(MEGATRON, 8).look())
    assert lengths_ms(steps) == [400] * 8
    assert (steps.bytes.tolist(), steps.period_ns, steps.off_period) == ([400_000_000] * 8, 400 * MS, ())
    witness = Rank(noise=0.0).steps(DDP, 10).look().since(2)  # the recording begins in the middle of a step
    assert cut_up(witness).start_ns.tolist() == [T0 + (520 * number) * MS for number in range(1, 10)]
    steps = cut_up(Rank().steps(DDP, 20).look())
    assert steps.start_ns[1:].tolist() == steps.end_ns[:-1].tolist()


def test_checkpoints_and_evaluations_are_off_the_period_and_no_slow_steps() -> None:
    rank = Rank(noise=0.0).steps(MEGATRON, 8)
    begin = rank.now_ns
    steps = cut_up(rank.pause(12).steps(MEGATRON, 8).look())
    assert lengths_ms(steps) == [400] * 16
    assert steps.off_period == ((begin, begin + 12_000 * MS),)
    rank = Rank(noise=0.0).steps(MEGATRON, 8)
    begin = rank.now_ns
    rank.steps(EVALUATION, 6)
    end = rank.now_ns
    steps = cut_up(rank.steps(MEGATRON, 8).look())
    assert lengths_ms(steps) == [400] * 16
    assert steps.off_period == ((begin, end),)


def test_long_steps_are_odd_where_they_are_the_first_and_not_where_they_last() -> None:
    steps = cut_up(Rank(noise=0.0).steps(MEGATRON, 2, slower=15).steps(MEGATRON, 12).look())
    assert np.flatnonzero(steps.is_odd).tolist() == [0, 1]
    assert steps.period_ns == 400 * MS
    steps = cut_up(Rank().steps(MEGATRON, 12).steps(MEGATRON, 5, slower=15).look())
    assert (len(steps), int(steps.is_odd.sum())) == (17, 0)


def test_lost_rows_and_single_long_steps_cost_single_steps_only() -> None:
    witness = Rank(noise=0.0).steps(MEGATRON, 20).look()
    kept = np.delete(np.arange(len(witness)), [30])
    steps = cut_up(Witness(0, *(getattr(witness, each.name)[kept] for each in fields(witness)[1:])))
    assert len(steps) == 19
    rank = Rank(noise=0.0).steps(MEGATRON, 6)
    whole = rank.look()
    period = find_period(whole.words, whole.gap_ns, 6 * 400 * MS)
    assert period
    signature = learn_signature(whole, period)
    assert signature
    fresh = rank.pause(30).steps(MEGATRON, 1).look().since(20)
    assert lengths_ms(cut(fresh, signature, usual_ns=400 * MS)) == [400] * 2
