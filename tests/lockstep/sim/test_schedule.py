"""A step's waves come in an order that holds for all ranks, and a pipeline fills and drains as 1F1B does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.sim.placement import Placement, place
from lockstep.sim.schedule import (
    Collective,
    Compute,
    Exchange,
    Handover,
    Wave,
    one_forward_one_backward,
    plan_step,
    swap_order,
)
from lockstep.sim.story import Doing, JobShape, Layout
from tests.lockstep.sim.build import story


def planned(*doings: Doing, layout: Layout, micro_batches: int = 4) -> tuple[list[Wave], Placement]:
    job = JobShape(layout=layout, step=doings, micro_batches=micro_batches)
    placement = place(story(job=job))
    return plan_step(job.steps, job, placement), placement


@given(st.integers(1, 8), st.integers(1, 12))
def test_every_stage_does_every_batch_once_each_way_and_in_order(stages: int, batches: int) -> None:
    rounds = one_forward_one_backward(stages, batches)
    done = [task for tasks in rounds for task in tasks]
    assert len(done) == len(set(done)) == 2 * stages * batches
    when = {task: number for number, tasks in enumerate(rounds) for task in tasks}
    for stage in range(stages):
        for batch in range(batches):
            if stage:
                assert when[stage, batch, True] > when[stage - 1, batch, True]
                assert when[stage - 1, batch, False] > when[stage, batch, False]
            assert when[stage, batch, False] > when[stage, batch, True]


@given(st.integers(1, 8), st.integers(1, 12))
def test_stage_keeps_no_more_batches_open_than_there_are_stages_after_it(stages: int, batches: int) -> None:
    """What 1F1B is for: activations of at most stages - stage batches are kept."""
    opened = [0] * stages
    for tasks in one_forward_one_backward(stages, batches):
        for stage, _, forward in tasks:
            opened[stage] += 1 if forward else -1
            assert opened[stage] <= stages - stage
    assert opened == [0] * stages


@given(st.integers(1, 8), st.integers(1, 12))
def test_pipeline_has_as_many_rounds_as_its_bubble_and_its_work(stages: int, batches: int) -> None:
    """With all tasks alike, 2 (P - 1) rounds are bubble and 2 M are work."""
    assert len(one_forward_one_backward(stages, batches)) == 2 * (stages - 1) + 2 * batches


def test_collective_runs_in_all_groups_of_its_kind() -> None:
    waves, _ = planned(Doing(do="AllReduce", mb=2, group="tp", times=2), layout=Layout(tp=4))
    assert [type(wave) for wave in waves] == [Collective, Collective]
    assert isinstance(waves[0], Collective)
    assert (waves[0].kind, waves[0].groups.tolist(), waves[0].bytes) == ("tp", [0, 1, 2, 3], 2_000_000)


def test_group_of_one_talks_to_nobody() -> None:
    assert planned(Doing(do="AllReduce", mb=2, group="cp"), layout=Layout(tp=4))[0] == []


def test_all_to_all_is_an_exchange() -> None:
    (wave,), _ = planned(Doing(do="AllToAll", mb=3, group="ep"), layout=Layout(ep=4))
    assert wave == Exchange("ep", 3_000_000)


def test_pipeline_computes_hands_over_and_reduces() -> None:
    doing = Doing(do="pipeline", ms=10.0, backward_ms=20.0, first_ms=1.0, last_ms=5.0, mb=4, tp_mb=2)
    waves, placement = planned(doing, layout=Layout(tp=2, pp=4), micro_batches=2)
    computing = [wave for wave in waves if isinstance(wave, Compute)]
    spent = np.zeros(placement.ranks)
    for wave in computing:
        spent[wave.ranks] += wave.ns
    by_stage = [set(spent[placement.stage_of() == stage].tolist()) for stage in range(4)]
    assert by_stage == [{2 * 32e6}, {2 * 30e6}, {2 * 30e6}, {2 * 40e6}]
    moves = [wave for wave in waves if isinstance(wave, Handover)]
    pairs = [pair for wave in moves for pair in zip(wave.src_stage.tolist(), wave.dst_stage.tolist(), strict=True)]
    chains = len(placement.groups("pp"))
    assert {pair: pairs.count(pair) for pair in pairs} == dict.fromkeys(
        [(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)], 2 * chains
    )
    reduced = [wave for wave in waves if isinstance(wave, Collective)]
    assert len(reduced) == len(computing)


def test_rank_with_partners_in_both_communicators_swaps_them_alone() -> None:
    doings = (Doing(do="AllReduce", mb=1, group="tp"), Doing(do="AllReduce", mb=1, group="world"))
    waves, placement = planned(*doings, layout=Layout(tp=4))
    assert swap_order(5, waves, placement) == {5: waves[0]}


def test_where_groups_cross_in_one_rank_two_of_four_swap_them() -> None:
    """Otherwise the swap would only delay: nobody whom the rank waits for waits for the rank."""
    doings = (Doing(do="AllReduce", mb=1, group="tp", times=3), Doing(do="ReduceScatter", mb=1, group="dp"))
    waves, placement = planned(*doings, layout=Layout(tp=4))
    astray = swap_order(5, waves, placement)
    assert list(astray) == [5, 10]
    assert all(left is waves[2] for left in astray.values())
    tensor = {rank: set(row.tolist()) for row in placement.groups("tp") for rank in row.tolist()}
    data = {rank: set(row.tolist()) for row in placement.groups("dp") for rank in row.tolist()}
    (one,), (other,) = tensor[5] & data[10], data[5] & tensor[10]
    assert len({5, one, 10, other}) == 4


def test_nothing_can_be_swapped_in_a_job_with_one_kind_of_communicator() -> None:
    waves, placement = planned(Doing(do="AllReduce", mb=1, times=3), layout=Layout())
    assert swap_order(5, waves, placement) == {}


@pytest.mark.parametrize("times", [1, 3])
def test_step_without_a_told_sequence_computes_and_reduces_its_buckets(times: int) -> None:
    job = JobShape(compute_ms=50.0, allreduce_mb=(4,) * times)
    waves = plan_step(job.steps, job, place(story(job=job)))
    assert [type(wave) for wave in waves] == [Compute] + [Collective] * times
