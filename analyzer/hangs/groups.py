"""Who has to meet whom: the lines of one communicator and function, or of one Send and its Recv, form a group."""

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from analyzer.hangs.facts import PAIRED, Lines, ProgressFacts
from analyzer.hangs.standstill import Standstill
from analyzer.roster import NOBODY, Roster

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

    Members of whom nothing is heard get no line: how far they are, nobody knows.
    """
    lines = facts.lines
    missing = _find_missing(lines, number_groups(lines), standstill, roster)
    idle = [(line, process) for line, process in missing if standstill.heard[process]]
    lines = _add_idle(lines, idle, roster)
    groups = number_groups(lines)
    unheard = {(int(groups.of_line[line]), process) for line, process in missing if not standstill.heard[process]}
    return lines, replace(groups, missing=tuple(sorted(unheard)))


def _find_missing(lines: Lines, groups: Groups, standstill: Standstill, roster: Roster) -> list[tuple[int, int]]:
    """Return (a line of its group, process) of those who belong to a group in which somebody waits, but have no line.

    Lines of processes that are not heard do not count: they tell of the past.
    """
    told = standstill.heard[lines.process]
    order = np.argsort(np.where(told, groups.of_line, groups.count), kind="stable")
    bounds = np.searchsorted(groups.of_line[order[: int(told.sum())]], np.arange(groups.count + 1))
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
    place = np.minimum(np.searchsorted(roster.comms, lines.comm[which]), len(roster.comms) - 1)
    known = np.where(roster.comms[place] == lines.comm[which], roster.sizes[place], 0)
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
    )
    return Lines(
        **{name: np.concatenate([getattr(lines, name), getattr(fresh, name)]) for name in lines.__dataclass_fields__}
    )


_OTHER_SIDE = {"Send": "Recv", "Recv": "Send"}
