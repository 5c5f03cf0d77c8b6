"""Looks that overlap number every step once, the same on all ranks."""

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from analyzer.steps.steps import StepMemory, StepReport, find_global, find_steps
from analyzer.steps.traffic import StepFacts, Witness
from tests.analyzer.steps.jobs import look_at, step_time_ratio
from tests.analyzer.steps.traffic import DDP, MEGATRON, MS, T0, Op, Rank
from tests.builders import SECOND

OTHER = (Op(300, func="ReduceScatter"), Op(func="AllGather"), Op(func="Broadcast"))


def between(witness: Witness, begin_s: float, end_s: float) -> Witness:
    """Return what an evaluation from one moment to another would read."""
    inside = (witness.enqueue_ns >= T0 + begin_s * 1e9) & (witness.end_ns < T0 + end_s * 1e9)
    return Witness(witness.process, *(getattr(witness, each.name)[inside] for each in fields(witness)[1:]))


def follow(*ranks: Rank, until_s: int, back_s: int = 8) -> tuple[list[StepReport], StepMemory]:
    """Look at some ranks every two seconds."""
    reports, memory = [], StepMemory()
    for end_s in range(5, until_s + 1, 2):
        facts = StepFacts(tuple(between(rank.look(), end_s - back_s, end_s) for rank in ranks))
        report, memory = find_steps(facts, memory, look_at(int(T0 + end_s * 1e9)))
        reports.append(report)
    return reports, memory


def numbers(reports: list[StepReport], rank: int) -> list[int]:
    rows = pa.concat_tables([report.rows for report in reports])
    return [row["step"] for row in rows.to_pylist() if row["world_rank"] == rank]


def test_overlapping_evaluations_number_each_step_once_on_all_ranks_with_begin_and_end() -> None:
    reports, memory = follow(
        Rank(noise=0.0).steps(MEGATRON, 50), Rank(noise=0.0, process=1).steps(MEGATRON, 50), until_s=21
    )
    assert numbers(reports, 0) == numbers(reports, 1) == list(range(50))
    assert (memory.next_step, memory.period_ns) == (50, 400 * MS)
    reports, _ = follow(Rank().steps(DDP, 60), until_s=31)
    steps = pa.concat_tables([report.rows for report in reports]).to_pylist()
    assert {step["source"] for step in steps} == {"period"}
    assert all(before["end_ns"] <= after["start_ns"] for before, after in pairwise(steps))
    assert np.median([step["end_ns"] - step["start_ns"] for step in steps]) == pytest.approx(520 * MS, rel=0.02)


def test_pause_longer_than_the_look_back_is_off_the_period() -> None:
    rank = Rank(noise=0.0).steps(MEGATRON, 30)
    begin = rank.now_ns
    reports, memory = follow(rank.pause(20).steps(MEGATRON, 30), until_s=45)
    stretches = {stretch for report in reports for stretch in report.off_period}
    assert stretches == {(begin, begin + 20_000 * MS)}
    assert step_time_ratio(memory.history) == pytest.approx(1.0)


@pytest.mark.parametrize("first_s", [0.30, 0.45, 0.51, 0.8, 1.2])
def test_period_found_within_the_first_step_is_given_up_for_the_true_one(first_s: float) -> None:
    rank = Rank(noise=0.02).steps(DDP, 40)
    memory = StepMemory()
    for end_s in (first_s, *range(2, 20, 2)):
        facts = StepFacts((between(rank.look(), end_s - 8, end_s),))
        report, memory = find_steps(facts, memory, look_at(int(T0 + end_s * 1e9)))
    assert report.operations == 4
    assert step_time_ratio(memory.history) == pytest.approx(1.0, rel=0.03)


def test_other_steps_are_learnt_and_an_evaluation_does_not_make_the_job_forget() -> None:
    reports, memory = follow(Rank().steps(DDP, 30).steps(OTHER, 60), until_s=39)
    assert (reports[0].operations, reports[-1].operations) == (4, 3)
    assert reports[-1].period_ns == pytest.approx(390 * MS, rel=0.03)
    assert step_time_ratio(memory.history) == pytest.approx(1.0, rel=0.03)
    evaluation = (Op(100, func="Broadcast", comm=9), Op(20, func="AllGather", comm=9))
    rank = Rank().steps(MEGATRON, 30).steps(evaluation, 60).steps(MEGATRON, 30)
    _, memory = follow(rank, until_s=35)
    assert len(memory.history) > 50, "steps of before and after the evaluation"


def test_rank_that_fell_silent_is_replaced_and_numbers_go_on() -> None:
    both = [Rank(noise=0.0, process=number).steps(MEGATRON, 60) for number in (0, 1)]
    memory, seen = StepMemory(), []
    for end_s in range(5, 25, 2):
        alive = both if end_s < 13 else both[1:]
        facts = StepFacts(tuple(between(rank.look(), end_s - 8, end_s) for rank in alive))
        report, memory = find_steps(facts, memory, look_at(int(T0 + end_s * 1e9)))
        seen.append(report)
    assert numbers(seen, 1) == list(range(57))


def test_told_steps_are_what_the_ratio_is_made_of() -> None:
    reported = pa.table(
        {
            "step": pa.array(range(60), pa.uint64()),
            "begin_ns": pa.array(range(T0, T0 + 60)),
            "length_ns": pa.array([100 * MS] * 40 + [150 * MS] * 20),
        }
    )
    witness = Rank().steps(DDP, 20).look()
    _, memory = find_steps(StepFacts((witness,), reported=reported), StepMemory(), look_at())
    assert step_time_ratio(memory.history) == pytest.approx(1.5)
    _, again = find_steps(StepFacts((witness,), reported=reported), memory, look_at())
    assert len(again.history) == 60, "told twice is heard once"
    _, memory = follow(Rank().steps(MEGATRON, 40).steps(MEGATRON, 20, slower=3), until_s=29)
    assert step_time_ratio(memory.history) == pytest.approx((280 + 360) / 400, rel=0.05)


def test_reported_steps_that_begin_late_do_not_hide_what_was_found_before() -> None:
    rank = Rank(noise=0.0).steps(MEGATRON, 30)
    began_ns = rank.now_ns
    witness = rank.steps(MEGATRON, 12, slower=3).look()
    lengths = [400 * MS] * 2 + [640 * MS] * 10
    reported = pa.table(
        {
            "step": pa.array(range(12), pa.uint64()),
            "begin_ns": pa.array(began_ns - 800 * MS + np.cumsum([0, *lengths[:-1]])),
            "length_ns": pa.array(lengths),
        }
    )
    _, memory = find_steps(StepFacts((witness,), reported=reported), StepMemory(), look_at())
    (finding,) = find_global(memory, look_at())
    assert finding.since_ns == pytest.approx(began_ns, abs=400 * MS)


def test_nothing_known_gives_nothing_and_a_new_attempt_begins_anew() -> None:
    report, memory = find_steps(StepFacts(), StepMemory(), look_at())
    assert (report.period_ns, report.rows.num_rows, report.off_period) == (None, 0, ())
    assert step_time_ratio(memory.history) is None
    _, memory = follow(Rank().steps(DDP, 30), until_s=15)
    report, memory = find_steps(StepFacts(), memory, look_at(attempt=1))
    assert (report.period_ns, memory.next_step, memory.attempt) == (None, 0, 1)


def test_sampled_operations_give_a_period_and_no_steps() -> None:
    witness = Rank().steps(MEGATRON, 100).look(keep=0.4)
    report, memory = find_steps(StepFacts((witness,)), StepMemory(), look_at())
    assert (report.operations, report.rows.num_rows) == (None, 0)
    assert report.period_ns == pytest.approx(400 * MS, rel=0.05)
    assert step_time_ratio(memory.history) is None


def with_hole(rank: Rank, first: int, count: int) -> Witness:
    """Return what was seen of a rank whose plugin had detail off for some operations."""
    witness = rank.look()
    untimed = (np.arange(len(witness)) >= first) & (np.arange(len(witness)) < first + count)
    start, end = (np.where(untimed, witness.enqueue_ns, times) for times in (witness.start_ns, witness.end_ns))
    return replace(witness, start_ns=start, end_ns=end, untimed=untimed)


@pytest.mark.parametrize("first", range(60, 68))
@pytest.mark.parametrize("step", [DDP, MEGATRON], ids=["ddp", "megatron"])
def test_steps_that_begin_or_end_where_detail_was_off_are_left_out(step: tuple[Op, ...], first: int) -> None:
    rank = Rank(noise=0.0).steps(step, 40)
    clean, _ = find_steps(StepFacts((rank.look(),)), StepMemory(), look_at())
    report, memory = find_steps(StepFacts((with_hole(rank, first, 9),)), StepMemory(), look_at())
    lengths = [round((each["end_ns"] - each["start_ns"]) / MS) for each in report.rows.to_pylist()]
    assert set(lengths) == {round((clean.period_ns or 0) / MS)}
    assert len(lengths) >= 40 - 4
    assert report.off_period == ()
    assert step_time_ratio(memory.kind.history) == pytest.approx(1.0)


LAYERS = (Op(3.0, takes_ms=8.0), *(Op(0.1, takes_ms=8.0),) * 23)  # tensor parallel: all alike, without a pause


def test_layers_without_a_pause_are_a_step_where_the_host_waits_for_its_end_and_else_none() -> None:
    rank = Rank(noise=0.1).steps(LAYERS, 60)
    report, memory = find_steps(StepFacts((rank.look(),)), StepMemory(), look_at())
    assert report.operations == 24
    assert step_time_ratio(memory.history) == pytest.approx(1.0, rel=0.05)
    ahead = replace(rank.look(), enqueue_ns=rank.look().start_ns - 500 * MS)  # the host never waits
    report, memory = find_steps(StepFacts((ahead,)), StepMemory(), look_at())
    assert (report.operations, len(memory.history)) == (None, 0)


def test_no_step_is_cut_across_operations_that_were_not_kept_and_an_old_slowdown_confirms_nothing() -> None:
    rank = Rank(noise=0.1).steps(LAYERS, 100)
    whole, thinned = rank.look(), rank.look(keep=0.25)
    usual_ns = find_steps(StepFacts((whole,)), StepMemory(), look_at())[0].period_ns or 0
    sampled_ns = int(whole.start_ns[-100])
    kept = np.isin(whole.seq, thinned.seq) | (whole.enqueue_ns < sampled_ns)
    newest = Witness(0, *(getattr(whole, each.name)[kept] for each in fields(whole)[1:]))
    assert not newest.is_sampled, "four of a hundred are missing, all of them at the end"
    _, memory = find_steps(StepFacts((newest,)), StepMemory(), look_at())
    assert memory.history.length_ns.max() < 1.2 * usual_ns
    _, memory = follow(Rank().steps(MEGATRON, 40).steps(MEGATRON, 20, slower=3), until_s=29)
    assert [finding.is_stale for finding in find_global(memory, look_at(T0 + 29 * SECOND))] == [False]
    assert [finding.is_stale for finding in find_global(memory, look_at(T0 + 60 * SECOND))] == [True]


@pytest.mark.parametrize("seed", range(30))
def test_nonsense_gives_an_answer_or_none_and_no_crash(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 200))
    kinds = int(random.integers(1, 4))
    times = [T0 + random.integers(0, [1, 10**3, 10**10][seed % 3], count) for _ in range(3)]
    witness = Witness(
        0,
        random.integers(0, kinds, count).astype(np.uint64),
        random.choice(["Send", "AllReduce"], count),
        random.integers(-1, kinds, count),
        random.integers(0, [1, 2, 1000][seed % 3], count),
        random.random(count) < 0.5,
        random.integers(0, 2**40, count),
        *[*times, random.random(count) < 0.1],
    )
    memory = StepMemory()
    for _ in range(3):
        report, memory = find_steps(StepFacts((witness, witness)), memory, look_at())
        lengths = np.asarray(report.rows["end_ns"]) - np.asarray(report.rows["start_ns"])
        assert (lengths >= 0).all()
        assert report.period_ns is None or report.period_ns >= 0
