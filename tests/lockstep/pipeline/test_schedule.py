"""Guests are shared out evenly, a stage without copies is lost, and a schedule says who hands what to whom."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.pipeline.dispatch import ScheduleOptions, plan_schedule
from lockstep.pipeline.schedule import (
    Op,
    Piece,
    Schedule,
    Shape,
    What,
    Worker,
    find_executors,
    find_heads,
    find_load,
    find_unread,
    piece_of,
    share_guests,
    tag_of,
    unit_times,
)
from tests.lockstep.pipeline.grids import EXAMPLE, ONE_GONE, failures_for, shapes


def test_six_guests_for_two_peers_are_three_each_and_a_stage_without_copies_is_lost() -> None:
    share = share_guests(EXAMPLE, ONE_GONE, 2)
    assert (share.live, share.each, share.more) == ((0, 2), 3, 0)
    assert [find_load(EXAMPLE, ONE_GONE, stage) for stage in range(4)] == [6, 6, 9, 6]
    with pytest.raises(BadInput, match="stage 3 has lost all 3 copies: no peer can stand in, only a restart"):
        share_guests(EXAMPLE, {Worker(pipeline, 3) for pipeline in range(3)}, 3)


@given(st.data())
def test_every_guest_has_a_peer(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    failed = data.draw(failures_for(shape))
    for stage in range(shape.stages):
        share = share_guests(shape, failed, stage)
        lost = shape.pipelines - len(share.live)
        assert len(share.live) * share.each + share.more == lost * shape.micro_batches
        assert share.more < len(share.live)


# --- who hands what to whom, and which forwards can be done ahead of a validation ---

GRID = Shape(stages=3, pipelines=2, micro_batches=3)
LOST = Worker(1, 1)


def planned(shape: Shape = GRID, failed: Sequence[Worker] = (LOST,), *, decoupled: bool = True) -> Schedule:
    return plan_schedule(shape, unit_times(shape.stages), failed, ScheduleOptions(is_decoupled=decoupled))


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    shape = Shape(draw(st.integers(1, 4)), draw(st.integers(2, 4)), draw(st.integers(1, 6)))
    lost = draw(st.sets(st.integers(0, shape.stages - 1), max_size=2))  # one worker of each of these stages
    failed = [Worker(draw(st.integers(0, shape.pipelines - 1)), stage) for stage in sorted(lost)]
    return planned(shape, failed, decoupled=draw(st.booleans()))


def run_heads(schedule: Schedule) -> set[Piece]:
    """Do all heads with real waiting for inputs; return outputs that were sent and not read. Fails when stuck."""
    waiting = deque((worker, deque(schedule.ops[worker][:count])) for worker, count in find_heads(schedule).items())
    sent: set[Piece] = set()
    stuck = 0
    while waiting and stuck <= len(waiting):
        worker, ops = waiting.popleft()
        stuck += 1
        while ops and (not ops[0].stage or piece_of(ops[0]).at(ops[0].stage - 1) in sent):
            piece = piece_of(ops.popleft())
            sent.discard(piece.at(piece.stage - 1))
            sent |= {piece} if piece.stage < schedule.shape.stages - 1 else set()
            stuck = 0
        if ops:
            waiting.append((worker, ops))
    assert not waiting, f"these never got their inputs: {waiting}"
    return sent


@given(schedules())
def test_heads_never_wait_for_what_is_not_in_a_head_and_what_they_leave_unread_is_known(schedule: Schedule) -> None:
    heads = find_heads(schedule)

    assert find_unread(schedule, heads) == run_heads(schedule)
    assert all(op.kind == "forward" for worker, count in heads.items() for op in schedule.ops[worker][:count])


def test_first_stage_runs_ahead_as_far_as_its_warm_up_goes() -> None:
    heads = find_heads(planned(failed=(), decoupled=False))
    assert (heads[Worker(0, 0)], heads[Worker(0, 2)]) == (3, 1)


@given(schedules())
def test_micro_batches_stay_at_home_unless_their_worker_has_failed(schedule: Schedule) -> None:
    for piece, worker in find_executors(schedule).items():
        home = Worker(piece.pipeline, piece.stage)
        assert worker == home or (home in schedule.failed and worker.stage == piece.stage)
        assert worker not in schedule.failed


def test_schedule_that_nobody_could_run_is_refused() -> None:
    needs = "needs one forward and one whole backward"
    guests = [replace(op, worker=LOST) for op in planned().ops[Worker(0, 1)]]
    refused: list[tuple[Worker, Callable[[list[Op]], list[Op]], str]] = [
        (Worker(0, 0), lambda ops: ops[:-1], rf"Piece\(pipeline=0, micro_batch=\d, stage=0\) {needs}"),
        (Worker(0, 0), lambda ops: ops + ops[-1:], needs),
        (Worker(0, 0), lambda ops: ops[::-1], "needs one forward"),
        (Worker(0, 0), lambda ops: ops[:-1] + [replace(ops[-1], worker=Worker(1, 0))], "activations cannot follow"),
        (Worker(0, 1), lambda _: guests, "it has failed or holds another stage"),
        (Worker(0, 0), lambda ops: [replace(ops[0], micro_batch=99)], "is not in the grid"),
    ]
    for worker, change, reason in refused:
        ops = {**planned().ops, worker: change(list(planned().ops[worker]))}
        with pytest.raises(BadInput, match=reason):
            find_executors(replace(planned(), ops=ops))


def test_no_two_messages_that_can_be_under_way_have_the_same_tag_and_tags_stay_small() -> None:
    pieces = list(find_executors(planned()))
    whats: tuple[What, ...] = ("activation", "gradient")

    tags = [tag_of(what, step, piece, GRID) for what in whats for step in (6, 7) for piece in pieces]

    assert len(set(tags)) == len(tags) == 2 * 2 * 18
    assert tag_of("gradient", 10**9, pieces[-1], Shape(16, 16, 64)) < 2**31
