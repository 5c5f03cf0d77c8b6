"""Who waits for whom, over all communicators of a job, and where the waiting ends.

A process inside operation k of a communicator waits for those that have not begun it. One of these may itself be
inside an operation of another communicator, and so on. It ends at processes that wait for nobody (origins), at
operations that all who are heard have entered and that do not end (stuck; who is not heard may keep them), at
processes that do move, or nowhere: then the waiting goes round, and ranks have entered communicators in different
orders.

Cost: O(lines log lines), and one pass over the waiting lines per link of the longest chain.
"""

from dataclasses import dataclass

import numpy as np

from analyzer.hangs.facts import TOGETHER, Lines, ProgressFacts
from analyzer.hangs.flow import find_queued
from analyzer.hangs.groups import Groups, complete_lines
from analyzer.hangs.standstill import Standstill
from analyzer.roster import Roster

# What a GPU may have done on its own after its process was stopped: the launches that CUDA holds for it. Whoever is
# further behind than that has been counted from another moment on, and his numbers say nothing.
MOST_BEHIND = 1024


@dataclass(frozen=True)
class StuckOperation:
    """An operation that all of whom anything is heard have entered, and some do not leave."""

    group: int
    number: int  # counted from 1
    members: np.ndarray  # lines inside it


@dataclass(frozen=True)
class Waits:
    """Where the waiting comes from."""

    lines: Lines  # all, with lines of zeros for those who never began what others wait in
    group: np.ndarray  # by line
    need: np.ndarray  # by group: the furthest operation that anybody is inside of, 0: none
    late: np.ndarray  # by line: has not begun what others of its group are inside of
    waiting: np.ndarray  # by process: inside something, and held up there
    frozen: np.ndarray  # by process: has ended, without knowing it, what others could not have ended without it
    origins: np.ndarray  # processes that are waited for, and wait for nobody
    unheard: np.ndarray  # processes that are waited for, and of which nothing is heard
    stuck: tuple[StuckOperation, ...]
    circling: np.ndarray  # processes that wait for each other in a circle


@dataclass(frozen=True)
class _Holds:
    """By line: whether it is inside, which operation of its group, whether it waits there for others, and is late."""

    inside: np.ndarray
    number: np.ndarray
    need: np.ndarray
    held: np.ndarray
    late: np.ndarray
    frozen: np.ndarray


def trace_waits(facts: ProgressFacts, standstill: Standstill, roster: Roster) -> Waits:
    """Return where the waiting of a standstill comes from."""
    lines, groups = complete_lines(facts, standstill, roster)
    group, count = groups.of_line, len(facts.people)
    holds = _find_holds(facts, lines, groups, standstill)
    waiting, in_stuck = (_mark(lines.process[which], count) for which in (holds.held, holds.inside & ~holds.held))
    origins = _mark(lines.process[holds.late], count) & ~waiting & ~in_stuck & standstill.still
    has_late = _mark(group[holds.late], groups.count)
    unheard = [process for place, process in groups.missing if not has_late[place]]
    ends = in_stuck | origins | (standstill.heard & ~standstill.still)
    explained = _spread(ends, lines.process, group, holds)
    return Waits(
        lines=lines,
        group=group,
        need=holds.need,
        late=holds.late,
        waiting=waiting | in_stuck,
        frozen=holds.frozen,
        origins=np.flatnonzero(origins),
        unheard=np.unique(np.array(unheard, np.int64)),
        stuck=_list_stuck(group, holds.number, holds.inside & ~holds.held, _list_unsettled(lines, group, standstill)),
        circling=np.flatnonzero(_find_circle(waiting & ~explained, lines.process, group, holds)),
    )


def _find_holds(facts: ProgressFacts, lines: Lines, groups: Groups, standstill: Standstill) -> _Holds:
    group = groups.of_line
    told = standstill.heard[lines.process]
    inside = np.concatenate([standstill.inside, np.zeros(len(lines) - len(standstill.inside), bool)])
    queued = find_queued(facts, lines, inside)
    inside &= ~queued
    # A host hands transfers to the network's thread as it enqueues, so that more looks begun than the one it is in.
    begun = np.where(queued, lines.done, np.minimum(lines.started, lines.done + 1))
    reached = np.where(told, lines.enqueued if facts.is_dump else begun, _FAR)
    frozen = _find_frozen(lines, groups, inside, len(facts.people))
    inside &= ~frozen[lines.process]
    need = _greatest(group, np.where(inside, lines.done + 1, 0), groups.count)
    least = -_greatest(group, -reached, groups.count, -_FAR)
    is_comparable = need - least <= MOST_BEHIND
    inside &= is_comparable[group]
    number = np.where(inside, lines.done + 1, 0)
    held = inside & (least[group] < number)
    return _Holds(inside, number, need, held, is_comparable[group] & (reached < need[group]), frozen)


_FAR = np.int64(1 << 62)  # further than any count


def _find_frozen(lines: Lines, groups: Groups, inside: np.ndarray, processes: int) -> np.ndarray:
    """Return the processes that are inside an operation although somebody has ended the one after it.

    Nobody ends that one before all have begun it, and so have ended this one. So their own counts stand still,
    because the process was stopped or its GPU answers no more, and what they say about being inside is worth nothing.
    """
    ended = _greatest(groups.of_line, lines.done, groups.count)
    over = inside & (ended[groups.of_line] > lines.done + 1) & np.isin(lines.func.astype(str), TOGETHER)
    return _mark(lines.process[over], processes)


def _spread(ends: np.ndarray, process: np.ndarray, group: np.ndarray, holds: _Holds) -> np.ndarray:
    """Return the processes from which the waiting leads to an end."""
    explained, groups = ends.copy(), np.zeros(len(holds.need), bool)
    held, late = holds.held, holds.late
    while True:
        groups[group[late][explained[process[late]]]] = True
        found = process[held][groups[group[held]]]
        if explained[found].all():
            return explained
        explained[found] = True


def _find_circle(lost: np.ndarray, process: np.ndarray, group: np.ndarray, holds: _Holds) -> np.ndarray:
    """Return those of the processes whose waiting ends nowhere that are waited for themselves, again and again."""
    held, late = holds.held, holds.late
    while True:
        asking = _mark(group[held][lost[process[held]]], len(holds.need))
        awaited = _mark(process[late][asking[group[late]]], len(lost))
        if not (lost & ~awaited).any():
            return lost
        lost = lost & awaited


_Operation = tuple[int, int]  # group and number


def _list_unsettled(lines: Lines, group: np.ndarray, standstill: Standstill) -> set[_Operation]:
    """Return the operations in which somebody is of whom nobody knows yet whether he moves: the next look does."""
    which = np.flatnonzero(standstill.unsettled)
    return set(zip(group[which].tolist(), (lines.done[which] + 1).tolist(), strict=True))


def _list_stuck(
    group: np.ndarray, number: np.ndarray, stuck: np.ndarray, unsettled: set[_Operation]
) -> tuple[StuckOperation, ...]:
    lines = np.flatnonzero(stuck)
    order = lines[np.lexsort((number[lines], group[lines]))]
    changes = np.flatnonzero((np.diff(group[order]) != 0) | (np.diff(number[order]) != 0)) + 1
    parts = np.split(order, changes) if len(order) else []
    found = (StuckOperation(int(group[part[0]]), int(number[part[0]]), part) for part in parts)
    return tuple(each for each in found if (each.group, each.number) not in unsettled)


def _greatest(group: np.ndarray, values: np.ndarray, count: int, least: np.int64 | int = 0) -> np.ndarray:
    greatest = np.full(count, least, np.int64)
    np.maximum.at(greatest, group, values)
    return greatest


def _mark(numbers: np.ndarray, count: int) -> np.ndarray:
    marks = np.zeros(count, bool)
    marks[numbers] = True
    return marks
