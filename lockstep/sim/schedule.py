"""A training step as waves: everything that the ranks do next to each other, in an order that holds for all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lockstep.sim.network import Floats
from lockstep.sim.placement import Ints, Placement
from lockstep.sim.story import Algo, Doing, GroupKind, JobShape


@dataclass(frozen=True)
class Compute:
    """Kernels of some ranks; everybody else goes on."""

    ranks: Ints
    ns: Floats


@dataclass(frozen=True)
class Collective:
    """One operation in some groups of a kind at once."""

    kind: GroupKind
    groups: Ints  # rows of Placement.groups(kind)
    func: str
    algo: Algo
    bytes: int


@dataclass(frozen=True)
class Exchange:
    """Everybody sends to everybody else in each group of a kind: sends and receives in one group call."""

    kind: GroupKind
    bytes: int  # that a rank sends in all


@dataclass(frozen=True)
class Handover:
    """One send and one receive per pair of pipeline neighbours."""

    groups: Ints  # rows of Placement.groups("pp")
    src_stage: Ints
    dst_stage: Ints
    bytes: int


Wave = Compute | Collective | Exchange | Handover


def plan_step(doings: Sequence[Doing], job: JobShape, placement: Placement) -> list[Wave]:
    """Return the waves of a step."""
    return [wave for doing in doings for _ in range(doing.times) for wave in _waves(doing, job, placement)]


def _waves(doing: Doing, job: JobShape, placement: Placement) -> Iterator[Wave]:
    size = int(doing.mb * 1e6)
    everyone = np.arange(placement.ranks)
    match doing.do:
        case "compute":
            yield Compute(everyone, np.full(placement.ranks, doing.ms * 1e6))
        case "pipeline":
            yield from _pipeline(doing, job, placement)
        case "AllToAll":
            yield Exchange(doing.group, size)
        case func:
            groups = placement.groups(doing.group)
            if groups.shape[1] > 1:  # a group of one has nobody to talk to
                yield Collective(doing.group, np.arange(len(groups)), func, doing.algo, size)


@dataclass(frozen=True)
class _Task:
    stage: int
    batch: int
    forward: bool


def one_forward_one_backward(stages: int, batches: int) -> list[list[tuple[int, int, bool]]]:
    """Return rounds of (stage, micro-batch, forward) in which each stage does what it can, in the order of 1F1B.

    >>> one_forward_one_backward(2, 1)
    [[(0, 0, True)], [(1, 0, True)], [(1, 0, False)], [(0, 0, False)]]
    """
    todo = [_order_of_stage(stage, stages, batches) for stage in range(stages)]
    done: set[_Task] = set()
    rounds = []
    while any(todo):
        ready = [tasks[0] for tasks in todo if tasks and _is_ready(tasks[0], stages, done)]
        for task in ready:
            todo[task.stage].pop(0)
        done |= set(ready)
        rounds.append([(task.stage, task.batch, task.forward) for task in ready])
    return rounds


def _order_of_stage(stage: int, stages: int, batches: int) -> list[_Task]:
    ahead = min(stages - stage - 1, batches)
    order = [_Task(stage, batch, True) for batch in range(ahead)]
    for batch in range(batches - ahead):
        order += [_Task(stage, batch + ahead, True), _Task(stage, batch, False)]
    return order + [_Task(stage, batch, False) for batch in range(batches - ahead, batches)]


def _is_ready(task: _Task, stages: int, done: set[_Task]) -> bool:
    before = task.stage - 1 if task.forward else task.stage + 1
    if 0 <= before < stages:
        return _Task(before, task.batch, task.forward) in done
    return task.forward or _Task(task.stage, task.batch, True) in done


def _pipeline(doing: Doing, job: JobShape, placement: Placement) -> Iterator[Wave]:
    stages = placement.layout[3]
    chains = placement.groups("pp")
    stage_of = placement.stage_of()
    tp_groups = placement.groups("tp")
    tp_stage = stage_of[tp_groups[:, 0]]
    for tasks in one_forward_one_backward(stages, job.micro_batches):
        moves = [(stage - 1 if forward else stage + 1, stage) for stage, _, forward in tasks]
        moves = [(src, dst) for src, dst in moves if 0 <= src < stages]
        if moves and doing.mb:
            src, dst = (np.repeat(side, len(chains)) for side in zip(*moves, strict=True))
            yield Handover(np.tile(np.arange(len(chains)), len(moves)), src, dst, int(doing.mb * 1e6))
        spent = {stage: _stage_ms(doing, stage, stages, forward) for stage, _, forward in tasks}
        ranks = np.flatnonzero(np.isin(stage_of, list(spent)))
        yield Compute(ranks, np.array([spent[int(stage)] * 1e6 for stage in stage_of[ranks]]))
        if doing.tp_mb and tp_groups.shape[1] > 1:
            groups = np.flatnonzero(np.isin(tp_stage, list(spent)))
            yield Collective("tp", groups, "AllReduce", "RING", int(doing.tp_mb * 1e6))


def _stage_ms(doing: Doing, stage: int, stages: int, forward: bool) -> float:
    more = (doing.first_ms if stage == 0 else 0.0) + (doing.last_ms if stage == stages - 1 else 0.0)
    return more + (doing.ms if forward else doing.backward_ms)


def swap_order(rank: int, waves: Sequence[Wave], placement: Placement) -> dict[int, Wave]:
    """Return what each confused rank leaves out, so that it enters another communicator first, and all wait for good.

    The rank leaves out its last operation before one in another communicator, and waits there. When nobody but
    itself is in both, that alone only delays: tp and dp cross in one rank. Then the rank across the square, which
    shares one communicator each with the partners of both, makes the same mistake, and the four wait in a circle.
    """
    rings = [wave for wave in waves if isinstance(wave, Collective)]
    left, entered = next(((one, two) for one, two in pairwise(rings) if one.kind != two.kind), (None, None))
    if left is None or entered is None:
        return {}
    mine, other = (next(row for row in placement.groups(wave.kind) if rank in row) for wave in (left, entered))
    astray: dict[int, Wave] = {rank: left}
    if len(np.intersect1d(mine, other)) == 1:
        place, place_across = (int(np.flatnonzero(row == rank)[0]) for row in (mine, other))
        neighbour = other[(place_across + 1) % len(other)]
        theirs = next(row for row in placement.groups(left.kind) if neighbour in row)
        astray[int(theirs[(place + 1) % len(theirs)])] = left
    return astray
