"""Who waits for whom, over all communicators of a job, and where the waiting ends.

A process inside operation k of a communicator waits for those that have not begun it. One of these may itself be
inside an operation of another communicator, and so on. It ends at processes that wait for nobody (origins), at
operations that all who are heard have entered and that do not end (stuck; who is not heard may keep them), at
processes that do move, or nowhere: then the waiting goes round, and ranks have entered communicators in different
orders.

Cost: O(lines log lines), and one pass over the waiting lines per link of the longest chain.
"""

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from analyzer.hang.facts import PAIRED, TOGETHER, Lines, ProgressFacts, Standstill
from analyzer.hang.flow import find_queued
from analyzer.windows.jobs import NOBODY, Roster

_MOST_SHORT = 4096  # groups in which somebody is looked for who is missing: by then everybody has been met


@dataclass(frozen=True)
class Groups:
    """The group of each line, and who belongs to a group in which somebody waits without having a line."""

    of_line: np.ndarray
    count: int
    missing: tuple[tuple[int, int], ...] = ()  # group, process


def number_groups(lines: Lines) -> Groups:
    """Return the groups of all lines. Cost: O(lines log lines)."""
    funcs, func = np.unique(lines.func.astype(str), return_inverse=True)
    is_paired, sends = np.isin(funcs, PAIRED)[func], lines.func == "Send"
    func = np.where(is_paired, len(funcs), func)  # a Send and its Recv are one operation
    src = np.where(is_paired, np.where(sends, lines.rank, lines.peer), -1)
    dst = np.where(is_paired, np.where(sends, lines.peer, lines.rank), -1)
    order = np.lexsort((dst, src, func, lines.comm))
    fresh = np.zeros(len(order), bool)
    for column in (lines.comm, func, src, dst):
        fresh[1:] |= column[order][1:] != column[order][:-1]
    numbers = np.zeros(len(order), np.int64)
    numbers[order] = np.cumsum(fresh)
    return Groups(numbers, int(numbers.max(initial=-1)) + 1)


def complete_lines(facts: ProgressFacts, standstill: Standstill, roster: Roster) -> tuple[Lines, Groups]:
    """Return all lines and groups, with a line of zeros for who is heard but never did what others wait for.

    Members without telemetry get no line: how far they are, nobody knows.
    """
    lines = facts.lines
    missing = _find_missing(lines, number_groups(lines), standstill, roster)
    idle = [(line, process) for line, process in missing if standstill.present[process]]
    lines = _add_idle(lines, idle, roster)
    groups = number_groups(lines)
    silent = {(int(groups.of_line[line]), process) for line, process in missing if not standstill.present[process]}
    return lines, replace(groups, missing=tuple(sorted(silent)))


def _find_missing(lines: Lines, groups: Groups, standstill: Standstill, roster: Roster) -> list[tuple[int, int]]:
    """Return (a line of its group, process) of those who belong to a group in which somebody waits, but have no line.

    Lines of processes that are not heard do not count: they tell of the past.
    """
    is_present = standstill.present[lines.process]
    order = np.argsort(np.where(is_present, groups.of_line, groups.count), kind="stable")
    bounds = np.searchsorted(groups.of_line[order[: int(is_present.sum())]], np.arange(groups.count + 1))
    waits_in, firsts = np.unique(groups.of_line[standstill.inside], return_index=True)
    firsts = np.flatnonzero(standstill.inside)[firsts]
    is_short = np.diff(bounds)[waits_in] < _sizes(lines, firsts, roster)
    missing: list[tuple[int, int]] = []
    short = zip(waits_in[is_short].tolist(), firsts[is_short].tolist(), strict=True)
    for group, line in islice(short, _MOST_SHORT):
        here = lines.process[order[bounds[group] : bounds[group + 1]]]
        missing += [(line, process) for process in _absent(lines, line, here, roster)]
    return missing


def _sizes(lines: Lines, which: np.ndarray, roster: Roster) -> np.ndarray:
    """Return how many should meet in the groups of some lines; 0 where no communicator tells."""
    if len(roster.comms) == 0:
        return np.zeros(len(which), np.int64)
    index = np.minimum(np.searchsorted(roster.comms, lines.comm[which]), len(roster.comms) - 1)
    known = np.where(roster.comms[index] == lines.comm[which], roster.sizes[index], 0)
    return np.where(lines.peer[which] >= 0, np.minimum(known, 2), known)


def _absent(lines: Lines, line: int, here: np.ndarray, roster: Roster) -> list[int]:
    """Return the processes of a group that are not among those that are here."""
    if lines.peer[line] >= 0:
        absent = roster.find(lines.comm[line : line + 1], lines.peer[line : line + 1])
    else:
        absent = np.setdiff1d(roster.members(int(lines.comm[line])), here)
    return [process for process in absent.tolist() if process != NOBODY]


def _add_idle(lines: Lines, idle: list[tuple[int, int]], roster: Roster) -> Lines:
    if not idle:
        return lines
    like = lines.pick(np.array([line for line, _ in idle]))
    zeros, unknown = np.zeros(len(idle), np.int64), np.full(len(idle), -1)
    fresh = replace(
        like,
        process=np.array([process for _, process in idle]),
        func=np.array([_OTHER_SIDE.get(func, func) for func in like.func.tolist()], object),
        rank=np.where(like.peer >= 0, like.peer, -1),
        peer=np.where(like.peer >= 0, like.rank, -1),
        enqueued=zeros,
        started=zeros,
        done=zeros,
        state=np.full(len(idle), "idle", object),
        head_peer=unknown,
        head_channel=unknown,
        open_bytes=unknown,
        untimed=zeros.astype(bool),
    )
    return Lines(
        **{name: np.concatenate([getattr(lines, name), getattr(fresh, name)]) for name in lines.__dataclass_fields__}
    )


_OTHER_SIDE = {"Send": "Recv", "Recv": "Send"}


# What a GPU may have done on its own after its process was stopped: the launches that CUDA holds for it. Whoever is
# further behind than that has been counted from another moment on, and his numbers say nothing.
MOST_BEHIND = 1024


@dataclass(frozen=True)
class StuckOperation:
    """An operation that all that report have entered, and some do not leave."""

    group: int
    number: int  # counted from 1
    members: np.ndarray  # lines inside it


@dataclass(frozen=True)
class Waits:
    """Where the waiting comes from."""

    lines: Lines  # all, with lines of zeros for those who never began what others wait in
    group: np.ndarray  # by line
    need: np.ndarray  # by group: the furthest operation that anybody is inside of, 0: none
    behind: np.ndarray  # by line: has not begun what others of its group are inside of
    waiting: np.ndarray  # by process: inside something, and held up there
    frozen: np.ndarray  # by process: has ended, without knowing it, what others could not have ended without it
    origins: np.ndarray  # processes that are waited for or, in a dump, frozen, and wait for nobody
    missing: np.ndarray  # processes that are waited for, and without telemetry
    stuck: tuple[StuckOperation, ...]
    circling: np.ndarray  # processes that wait for each other in a circle


@dataclass(frozen=True)
class _Holds:
    """By line: whether it is inside, which operation of its group, whether it waits there for others, and is late."""

    inside: np.ndarray
    number: np.ndarray
    need: np.ndarray
    held: np.ndarray
    behind: np.ndarray
    frozen: np.ndarray


def trace_waits(facts: ProgressFacts, standstill: Standstill, roster: Roster) -> Waits:
    """Return where the waiting of a standstill comes from."""
    lines, groups = complete_lines(facts, standstill, roster)
    group, count = groups.of_line, len(facts.people)
    holds = _find_holds(facts, lines, groups, standstill)
    waiting, in_stuck = (_mark(lines.process[which], count) for which in (holds.held, holds.inside & ~holds.held))
    # The host of a frozen process may have enqueued all that others wait for; a dump tells no more than that.
    awaited = _mark(lines.process[holds.behind], count) | (holds.frozen & facts.is_dump)
    origins = awaited & ~waiting & ~in_stuck & standstill.still
    # Who is inside the operation before is held up there: by somebody without telemetry as well as anybody.
    has_behind = _mark(group[holds.behind & ~holds.inside], groups.count)
    missing = [process for index, process in groups.missing if not has_behind[index]]
    ends = in_stuck | origins | (standstill.present & ~standstill.still)
    explained = _spread(ends, lines.process, group, holds)
    # Operations in which somebody is of whom only the next evaluation knows whether he moves, and those that somebody
    # has left so lately that others may have, too, since their newest rows.
    which = np.flatnonzero(standstill.unsettled)
    unsettled = set(zip(group[which].tolist(), (lines.done[which] + 1).tolist(), strict=True))
    is_left = standstill.present[lines.process] & (lines.seen_ns - lines.since_ns < facts.interval_ns)
    left = _mark(group[is_left & (lines.done >= holds.need[group])], groups.count)
    return Waits(
        lines=lines,
        group=group,
        need=holds.need,
        behind=holds.behind,
        waiting=waiting | in_stuck,
        frozen=holds.frozen,
        origins=np.flatnonzero(origins),
        missing=np.unique(np.array(missing, np.int64)),
        stuck=_list_stuck(group, holds.number, holds.inside & ~holds.held & ~left[group], unsettled),
        circling=np.flatnonzero(_find_circle(waiting & ~explained, lines.process, group, holds)),
    )


def _find_holds(facts: ProgressFacts, lines: Lines, groups: Groups, standstill: Standstill) -> _Holds:
    group = groups.of_line
    is_present = standstill.present[lines.process]
    inside = np.concatenate([standstill.inside, np.zeros(len(lines) - len(standstill.inside), bool)])
    queued = find_queued(facts, lines, inside)
    inside &= ~queued
    # A host hands transfers to the network's thread as it enqueues, so that more looks begun than the one it is in.
    begun = np.where(queued, lines.done, np.minimum(lines.started, lines.done + 1))
    begun = np.where(lines.untimed, lines.enqueued, begun)  # at most: it is behind what it has not even enqueued
    reached = np.where(is_present, lines.enqueued if facts.is_dump else begun, _FAR)
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
    held, behind = holds.held, holds.behind
    while True:
        groups[group[behind][explained[process[behind]]]] = True
        found = process[held][groups[group[held]]]
        if explained[found].all():
            return explained
        explained[found] = True


def _find_circle(lost: np.ndarray, process: np.ndarray, group: np.ndarray, holds: _Holds) -> np.ndarray:
    """Return those of the processes whose waiting ends nowhere that are waited for themselves, again and again."""
    held, behind = holds.held, holds.behind
    while True:
        asking = _mark(group[held][lost[process[held]]], len(holds.need))
        awaited = _mark(process[behind][asking[group[behind]]], len(lost))
        if not (lost & ~awaited).any():
            return lost
        lost = lost & awaited


_Operation = tuple[int, int]  # group and number


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
