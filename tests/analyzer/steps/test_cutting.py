"""Steps are cut where they begin; checkpoints, evaluations and first iterations are no slow steps."""

import numpy as np

from analyzer.steps.cutting import Steps, cut, learn_signature
from analyzer.steps.periods import find_period
from analyzer.steps.traffic import Witness
from tests.analyzer.steps.traffic import DDP, MEGATRON, MS, T0, Op, Rank

EVALUATION = (Op(30, func="Broadcast", comm=9), Op(10, func="AllGather", comm=9))


def cut_up(witness: Witness) -> Steps:
    period = find_period(witness.words, witness.gap_ns, int(witness.end_ns[-1] - witness.start_ns[0]))
    assert period
    signature = learn_signature(witness, period)
    assert signature
    return cut(witness, signature)


def lengths_ms(steps: Steps) -> list[int]:
    return [round(length / MS, -1) for length in (steps.end_ns - steps.start_ns).tolist()]


def test_every_step_is_found_with_its_length_and_bytes() -> None:
    steps = cut_up(Rank(noise=0.0).steps(MEGATRON, 8).look())
    assert lengths_ms(steps) == [400] * 8
    assert steps.bytes.tolist() == [400_000_000] * 8
    assert (steps.period_ns, steps.off_period) == (400 * MS, ())


def test_alike_operations_are_cut_where_the_host_waited() -> None:
    witness = Rank(noise=0.0).steps(DDP, 10).look().since(2)  # the recording begins in the middle of a step
    assert cut_up(witness).start_ns.tolist() == [T0 + (520 * number) * MS for number in range(1, 10)]


def test_steps_follow_each_other_without_a_gap() -> None:
    steps = cut_up(Rank().steps(DDP, 20).look())
    assert steps.start_ns[1:].tolist() == steps.end_ns[:-1].tolist()


def test_checkpoint_is_off_the_period_and_no_slow_step() -> None:
    rank = Rank(noise=0.0).steps(MEGATRON, 8)
    begin = rank.now_ns
    steps = cut_up(rank.pause(12).steps(MEGATRON, 8).look())
    assert lengths_ms(steps) == [400] * 16
    assert steps.off_period == ((begin, begin + 12_000 * MS),)


def test_evaluation_is_off_the_period() -> None:
    rank = Rank(noise=0.0).steps(MEGATRON, 8)
    begin = rank.now_ns
    rank.steps(EVALUATION, 6)
    end = rank.now_ns
    steps = cut_up(rank.steps(MEGATRON, 8).look())
    assert lengths_ms(steps) == [400] * 16
    assert steps.off_period == ((begin, end),)


def test_first_iterations_are_odd_and_do_not_count_for_the_period() -> None:
    steps = cut_up(Rank(noise=0.0).steps(MEGATRON, 2, slower=15).steps(MEGATRON, 12).look())
    assert np.flatnonzero(steps.is_odd).tolist() == [0, 1]
    assert steps.period_ns == 400 * MS


def test_long_steps_in_a_row_are_a_slow_job_and_not_odd() -> None:
    steps = cut_up(Rank().steps(MEGATRON, 12).steps(MEGATRON, 5, slower=15).look())
    assert (len(steps), int(steps.is_odd.sum())) == (17, 0)


def test_lost_rows_cost_single_steps_only() -> None:
    witness = Rank(noise=0.0).steps(MEGATRON, 20).look()
    kept = np.delete(np.arange(len(witness)), [30])
    columns = ("comm", "func", "peer", "seq", "counts", "bytes", "enqueue_ns", "start_ns", "end_ns")
    steps = cut_up(Witness(0, *(getattr(witness, name)[kept] for name in columns)))
    assert len(steps) == 19


def test_single_long_step_among_few_is_odd_where_the_usual_length_is_known() -> None:
    rank = Rank(noise=0.0).steps(MEGATRON, 6)
    whole = rank.look()
    period = find_period(whole.words, whole.gap_ns, 6 * 400 * MS)
    assert period
    signature = learn_signature(whole, period)
    assert signature
    fresh = rank.pause(30).steps(MEGATRON, 1).look().since(20)
    assert lengths_ms(cut(fresh, signature, usual_ns=400 * MS)) == [400] * 2
