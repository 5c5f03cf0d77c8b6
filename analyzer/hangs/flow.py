"""How far the data of an open operation got, and who owes the next step.

A network step that the sender has ended and the receiver has not is lost on the wire, or its receiver does not take it.
Those who only wait for data have sent all that they could: they are ahead of what they received by the same number of
steps, which is how far the algorithm lets a rank run ahead. Whoever is ahead by less owes a step. These are counts,
so that the clocks of hosts do not matter.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from analyzer.hangs.facts import PAIRED, Lines, ProgressFacts, StepCounts
from analyzer.hangs.traffic import EARLIER


@dataclass(frozen=True)
class Edge:
    """One direction between two ranks of a communicator on one channel (-1: all of them)."""

    comm: int
    src: int
    dst: int
    channel: int


def find_queued(facts: ProgressFacts, lines: Lines, inside: np.ndarray) -> np.ndarray:
    """Return which lines wait behind something older of the same process: no step of theirs has ended.

    Only where steps of every operation are recorded: missing ones mean nothing elsewhere. Cost: O(lines log lines).
    """
    behind = inside & (lines.open_ns > _oldest_open(lines, inside)[lines.process])
    behind &= ~np.isin(lines.func.astype(str), PAIRED)
    which = np.flatnonzero(behind)
    if len(which) == 0 or len(facts.steps) == 0:
        return np.zeros(len(lines), bool)
    began = {*zip(*_operations(facts.steps), facts.steps.rank.tolist(), strict=True)}
    recorded = {*zip(*_operations(facts.steps), strict=True)}
    queued = np.zeros(len(lines), bool)
    queued[[row for row in which.tolist() if _is_queued(lines, row, began, recorded)]] = True
    return queued


def _oldest_open(lines: Lines, inside: np.ndarray) -> np.ndarray:
    """Return by process since when the oldest of what it is inside of is enqueued."""
    oldest = np.full(int(lines.process.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    known = inside & (lines.open_ns > 0)
    np.minimum.at(oldest, lines.process[known], lines.open_ns[known])
    return oldest


def _operations(steps: StepCounts) -> tuple[list[int], list[str], list[int]]:
    return steps.comm.tolist(), steps.func.tolist(), steps.seq.tolist()


def _is_queued(
    lines: Lines, row: int, began: set[tuple[int, str, int, int]], recorded: set[tuple[int, str, int]]
) -> bool:
    comm, func, seq = int(lines.comm[row]), str(lines.func[row]), int(lines.done[row])
    if (comm, func, seq, int(lines.rank[row])) in began:
        return False
    earlier = [(comm, func, seq - back) in recorded for back in range(1, EARLIER + 1)]
    return (comm, func, seq) in recorded or all(earlier)


def find_lost(steps: StepCounts, comm: int, func: str, seq: int) -> tuple[list[Edge], dict[int, dict[int, int]]]:
    """Return where an operation's sender is ahead of its receiver, and by channel and rank how far each runs ahead.

    How far ranks run ahead is told where each of them has one neighbour on either side, as in a ring.
    """
    mine = np.flatnonzero((steps.comm == comm) & (steps.func == func) & (steps.seq == seq))
    sent, got = _by_edge(steps, mine[steps.sends[mine]]), _by_edge(steps, mine[~steps.sends[mine]])
    lost = [
        Edge(comm, src, dst, channel)
        for (src, dst, channel), n in sorted(sent.items())
        if n > got.get((src, dst, channel), 0)
    ]
    return lost, _leads(sent, got)


_EdgeKey = tuple[int, int, int]  # sending rank, receiving rank, channel


def _by_edge(steps: StepCounts, which: np.ndarray) -> dict[_EdgeKey, int]:
    rank, peer, sends = steps.rank[which], steps.peer[which], steps.sends[which]
    src, dst = np.where(sends, rank, peer).tolist(), np.where(sends, peer, rank).tolist()
    return dict(
        zip(zip(src, dst, steps.channel[which].tolist(), strict=True), steps.steps[which].tolist(), strict=True)
    )


def _leads(sent: dict[_EdgeKey, int], got: dict[_EdgeKey, int]) -> dict[int, dict[int, int]]:
    leads: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    next_ranks: dict[tuple[int, int], set[int]] = defaultdict(set)
    for (src, dst, channel), n in sent.items():
        leads[channel][src] += n
        next_ranks[channel, src].add(dst)
    for (_, dst, channel), n in got.items():
        leads[channel][dst] -= n
    if any(len(several) > 1 for several in next_ranks.values()):  # a tree: what comes up is not what goes down
        return {}
    return {channel: dict(ranks) for channel, ranks in leads.items()}


def find_lost_pairs(lines: Lines, inside: np.ndarray) -> list[int]:
    """Return the lines that wait to receive what its sender has ended sending."""
    ended = _ended_sends(lines)
    waits = inside & (lines.func == "Recv") & (lines.state == "recv_wait") & (lines.head_peer == lines.peer)
    keys = zip(*(column[waits].tolist() for column in (lines.comm, lines.peer, lines.rank)), strict=True)
    rows = np.flatnonzero(waits).tolist()
    return [row for row, key in zip(rows, keys, strict=True) if ended.get(key, -1) > lines.done[row]]


def _ended_sends(lines: Lines) -> dict[tuple[int, int, int], int]:
    """Return how many sends of each communicator, sender and receiver have ended."""
    sends = lines.func == "Send"
    keys = zip(*(column[sends].tolist() for column in (lines.comm, lines.rank, lines.peer)), strict=True)
    return dict(zip(keys, lines.done[sends].tolist(), strict=True))


def pair_leads(lines: Lines, comm: int) -> dict[int, int]:
    """Return by rank how many more sends than receives it has ended in a communicator."""
    leads: dict[int, int] = defaultdict(int)
    for row in np.flatnonzero((lines.comm == comm) & np.isin(lines.func.astype(str), PAIRED)).tolist():
        leads[int(lines.rank[row])] += int(lines.done[row]) * (1 if lines.func[row] == "Send" else -1)
    return dict(leads)


def owes(leads: dict[int, int], rank: int, without: int) -> bool:
    """Return whether a rank has sent less ahead than everybody else; `without` is who may be held up by it."""
    others = [lead for other, lead in leads.items() if other not in (rank, without)]
    return bool(others) and leads.get(rank, 0) < min(others)
