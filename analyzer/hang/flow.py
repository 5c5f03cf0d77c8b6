"""How far the data of an open operation got, and who owes the next step.

A network step that the sender has ended and the receiver has not is lost on the wire, or its receiver does not take
it. Those who only wait for data have sent all that they could: they are ahead of what they received by the same
number of steps, which is how far the algorithm lets a rank run ahead. Whoever is ahead by less owes a step. These are
counts, so that the clocks of hosts do not matter.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from analyzer.hang.facts import NO_STEPS, PAIRED, Lines, ProgressFacts, StepCounts
from analyzer.windows.columns import filled
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store

# Steps come in from the moment an operation begins; a hang that is older than this has been told of long ago.
_LOOKBACK_NS = 600 * NS_PER_S
_MOST_ROWS = 4_000_000  # 65,536 ranks with 16 channels both ways, and one operation before: what fits into memory
_STEPS = f"""
SELECT comm, func, seq, rank, channel, peer, direction = 'send' AS sends, uniqExact(step) AS steps,
       max(done_ns) AS last_ns
FROM step_samples
WHERE job = {{job:String}} AND attempt = {{attempt:UInt16}} AND comm IN {{comms:Array(UInt64)}}
    AND seq IN {{seqs:Array(UInt64)}} AND peer >= 0 AND replay = 0
    AND posted_ns >= {{start:Int64}} AND posted_ns < {{end:Int64}}
GROUP BY comm, func, seq, rank, channel, peer, direction ORDER BY comm LIMIT {_MOST_ROWS}
"""
_NUMBERS = ("seq", "rank", "channel", "peer", "steps", "last_ns")
EARLIER = 2  # operations before the open one whose steps tell whether every operation is recorded


def read_steps(store: Store, lines: Lines, context: Context) -> StepCounts:
    """Return the steps of the operations that somebody is inside of, where steps are recorded at all."""
    inside = lines.started > lines.done
    if not inside.any():
        return NO_STEPS
    done = np.unique(lines.done[inside])
    seqs = np.unique(np.maximum(done[:, None] - np.arange(EARLIER + 1), 0))
    end_ns = context.window.end_ns
    wanted = {"start": end_ns - _LOOKBACK_NS, "comms": np.unique(lines.comm[inside]).tolist(), "seqs": seqs.tolist()}
    rows = store.query(_STEPS, context.parameters | wanted)
    if rows.num_rows == 0:
        return NO_STEPS
    numbers = {name: np.asarray(rows[name]).astype(np.int64) for name in _NUMBERS}
    return StepCounts(
        comm=np.asarray(rows["comm"]).astype(np.uint64),
        func=np.array(rows["func"].to_pylist(), object),
        sends=np.asarray(rows["sends"]).astype(bool),
        **numbers,
    )


def date_by_steps(facts: ProgressFacts) -> ProgressFacts:
    """Return the facts with lines that stand since the newest network step of their open operation ended.

    Over a slow pair a single operation may take longer than several steps of the job did before: while its data moves
    nothing hangs. Cost: O(lines + steps).
    """
    if len(facts.steps) == 0:
        return facts
    lines, moved_ns = facts.lines, _newest_steps(facts.lines, facts.steps)
    since_ns = np.maximum(lines.since_ns, np.minimum(moved_ns, lines.seen_ns))
    return replace(facts, lines=replace(lines, since_ns=since_ns))


def _newest_steps(lines: Lines, steps: StepCounts) -> np.ndarray:
    """Return by line when the newest step of its open operation ended on its rank; 0: none is known."""
    ended = _keyed(steps.comm, steps.func, steps.seq, steps.rank).append_column("last_ns", pa.array(steps.last_ns))
    newest = ended.group_by(_KEYS).aggregate([("last_ns", "max")])
    asked = _keyed(lines.comm, lines.func, lines.done, lines.rank)
    asked = asked.append_column("index", pa.array(np.arange(len(lines))))
    joined = asked.join(newest, _KEYS, join_type="left outer").sort_by("index")
    return filled(joined["last_ns_max"], 0)


_KEYS = ["comm", "func", "seq", "rank"]


def _keyed(comm: np.ndarray, func: np.ndarray, seq: np.ndarray, rank: np.ndarray) -> pa.Table:
    return pa.table({"comm": comm, "func": func.astype(str), "seq": seq, "rank": rank})


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
    mine = lines.pick(which)
    operations, ranks = _Operations(facts.steps), (mine.rank, facts.steps.rank)
    began = operations.find(mine, mine.done, ranks)
    earlier = [operations.find(mine, mine.done - back) for back in range(1, EARLIER + 1)]
    is_recorded = operations.find(mine, mine.done) | np.logical_and.reduce(earlier)
    queued = np.zeros(len(lines), bool)
    queued[which] = is_recorded & ~began
    return queued


class _Operations:
    """The operations of which steps are known, and who ended any."""

    def __init__(self, steps: StepCounts) -> None:
        self._steps = steps
        self._comms, self._seqs = np.unique(steps.comm), np.unique(steps.seq)
        self._funcs = np.unique(steps.func.astype(str))

    def find(self, lines: Lines, seq: np.ndarray, ranks: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
        """Return for each line whether a step of its operation is known; with ranks, of its own rank."""
        steps = self._steps
        of_line, of_step = ranks or (np.zeros(len(lines), np.int64), np.zeros(len(steps), np.int64))
        known = np.isin(lines.comm, self._comms) & np.isin(seq, self._seqs)
        known &= np.isin(lines.func.astype(str), self._funcs)
        wanted = self._keys(lines.comm, lines.func, seq, of_line)
        found: np.ndarray = known & np.isin(wanted, self._keys(steps.comm, steps.func, steps.seq, of_step))
        return found

    def _keys(self, comm: np.ndarray, func: np.ndarray, seq: np.ndarray, rank: np.ndarray) -> np.ndarray:
        key = np.searchsorted(self._comms, comm) * (len(self._funcs) + 1)
        key = (key + np.searchsorted(self._funcs, func.astype(str))) * (len(self._seqs) + 1)
        keys: np.ndarray = (key + np.searchsorted(self._seqs, seq)) << 24 | rank  # 16 million ranks; places are few
        return keys


def _oldest_open(lines: Lines, inside: np.ndarray) -> np.ndarray:
    """Return by process since when the oldest of what it is inside of is enqueued."""
    oldest = np.full(int(lines.process.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    known = inside & (lines.open_ns > 0)
    np.minimum.at(oldest, lines.process[known], lines.open_ns[known])
    return oldest


def find_lost(steps: StepCounts, comm: int, func: str, seq: int) -> tuple[list[Edge], dict[int, dict[int, int]]]:
    """Return where an operation's sender is ahead of its receiver, and by channel and rank how far each runs ahead.

    How far ranks run ahead is told where each of them has one neighbour on either side, as in a ring.
    """
    low, high = (int(np.searchsorted(steps.comm, np.uint64(comm), side)) for side in ("left", "right"))
    mine = low + np.flatnonzero((steps.func[low:high] == func) & (steps.seq[low:high] == seq))
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
    others: dict[tuple[str, int, int], set[int]] = defaultdict(set)
    for (src, dst, channel), n in sent.items():
        leads[channel][src] += n
        others["after", channel, src].add(dst)
        others["before", channel, dst].add(src)
    for (_, dst, channel), n in got.items():
        leads[channel][dst] -= n
    if any(len(several) > 1 for several in others.values()):  # a tree: what comes up is not what goes down
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
