"""Whether ranks called collectives with different arguments or in different orders, which no hardware does.

Who asks for less than the others is through with its part and goes on, who asks for more stays behind alone: the
sizes of one operation are compared between those that are inside it and those that have ended it.

All ranks of a communicator call the same collectives in the same order, so that of two ranks one has ended at least
as many of every function as the other. A rank that left one out has ended more of one function and fewer of another.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.hang.facts import PAIRED, Call, Lines, OperationKey, ProgressFacts
from analyzer.hang.flow import EARLIER
from analyzer.hang.processes import Scene, finding_of
from analyzer.windows.window import Context, Finding
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store

_LOOKBACK_NS = 600 * NS_PER_S  # NCCL's own watchdog ends a hang after ten minutes
_HISTORY = 64  # operations before the open one whose sizes are compared
_PROVEN = 8  # of them, called alike by all: sizes are even in this job, and counted from the same moment on
_MOST_NAMED = 16  # ranks in one piece of evidence
_MOST_CALLS = 1_000_000  # one for each operation, size and data type: more are no collectives of one job
_CALLS = f"""
SELECT comm, func, seq, toInt64(bytes) AS size, ifNull(toString(dtype), '') AS kind, uniqExact(rank) AS count,
       groupUniqArray({_MOST_NAMED})(rank) AS ranks
FROM collectives
WHERE job = {{job:String}} AND attempt = {{attempt:UInt16}} AND comm IN {{comms:Array(UInt64)}}
    AND seq IN {{seqs:Array(UInt64)}} AND peer < 0 AND seq_valid AND replay = 0
    AND enqueue_ns >= {{start:Int64}} AND enqueue_ns < {{end:Int64}}
GROUP BY comm, func, seq, size, kind ORDER BY comm, func, seq, size, kind LIMIT {_MOST_CALLS}
"""


def read_calls(store: Store, lines: Lines, context: Context) -> tuple[Call, ...]:
    """Return how those that have ended them called the operations that somebody is inside of, and those before."""
    inside = _can_differ(lines)
    if not inside.any():
        return ()
    seqs = np.unique(np.maximum(lines.done[inside][:, None] - np.arange(_HISTORY + 1), 0))
    wanted = {"start": context.window.end_ns - _LOOKBACK_NS, "seqs": seqs.tolist()}
    wanted |= {"comms": np.unique(lines.comm[inside]).tolist()}
    rows = store.query(_CALLS, context.parameters | wanted).to_pylist()
    return tuple(
        Call(
            (row["comm"], row["func"], row["seq"]),
            row["size"],
            row["kind"],
            row["count"],
            tuple(sorted(row["ranks"])),
        )
        for row in rows
    )


@dataclass(frozen=True)
class Mismatch:
    """An operation, how most ranks called it, and who called it otherwise."""

    operation: OperationKey
    usual: Call
    odd: tuple[Call, ...]


def find_mismatch(facts: ProgressFacts) -> Mismatch | None:
    """Return the operation from which on arguments differ, up to an open one. Cost: O(lines log lines).

    NCCL ends some operations whose sizes differ, so that a rank with one call too many stops everybody a few later.
    Sizes that differ since ever are uneven by intent, or counted from different moments on.
    """
    if facts.is_dump:  # counts of dumps are of all functions together, and all-to-all may be uneven
        return None
    calls: dict[OperationKey, list[Call]] = defaultdict(list)
    still_open = list(_open_calls(facts.lines))
    for call in (*facts.calls, *still_open):
        calls[call.operation].append(call)
    uneven = {key for key, found in calls.items() if _differ(found)}
    for operation in sorted(uneven & {call.operation for call in still_open}):
        if first := _first_uneven(operation, calls, uneven):
            return _describe(first, calls[first])
    return None


def _first_uneven(
    operation: OperationKey, calls: dict[OperationKey, list[Call]], uneven: set[OperationKey]
) -> OperationKey | None:
    """Return where arguments began to differ; None if nobody has seen all of those ranks call alike before."""
    comm, func, seq = operation
    earlier = [key for before in range(seq - _HISTORY, seq) if (key := (comm, func, before)) in calls]
    if not uneven & {(comm, func, seq - back) for back in range(1, EARLIER + 1)}:
        return operation
    first = next(key for key in earlier if key in uneven)
    ranks = _count_ranks(calls[first])
    alike = sum(_count_ranks(calls[key]) >= ranks for key in earlier if key < first)
    return first if alike >= _PROVEN else None


def _count_ranks(calls: list[Call]) -> int:
    return sum(call.count for call in calls)


def name_mismatch(scene: Scene, mismatch: Mismatch, job: str) -> Finding:
    """Return that ranks called one operation with different arguments."""
    (comm, func, seq), usual, odd = mismatch.operation, mismatch.usual, mismatch.odd[0]
    members = sorted({rank for call in mismatch.odd for rank in call.ranks})
    lines = scene.waits.lines
    found = (lines.comm == comm) & np.isin(lines.rank, members)
    processes = np.unique(lines.process[found]).tolist()
    ranks, count = [scene.rank_of(process) for process in processes], sum(call.count for call in mismatch.odd)
    evidence: dict[str, Any] = {
        "kind": "mismatch",
        "ranks": ranks[:_MOST_NAMED],
        "bytes": odd.size,
        "dtype": odd.dtype,
    }
    evidence |= {"usual_bytes": usual.size, "usual_dtype": usual.dtype}
    who = f"rank {ranks[0]}" if count == 1 else f"{count} ranks ({ranks[0]} and others)"
    return finding_of(
        scene,
        processes,
        fault_class="software",
        component=f"job:{job}",
        likelihood=0.97,
        reason=f"{who} called {func} number {seq + 1} with {odd.size} bytes of {odd.dtype}, the others with "
        f"{usual.size} of {usual.dtype}",
        evidence=(evidence,),
    )


@dataclass(frozen=True)
class Slip:
    """Two orders in one communicator: who has ended more of one function and fewer of another than most have."""

    comm: int
    processes: tuple[int, ...]
    fewer: str  # function
    more: str


def find_slip(lines: Lines) -> Slip | None:
    """Return the first communicator whose ranks called collectives in different orders. Cost: O(lines log lines)."""
    mine = lines.pick(~np.isin(lines.func.astype(str), PAIRED))
    _, func = np.unique(mine.func.astype(str), return_inverse=True)
    comms, comm = np.unique(mine.comm, return_inverse=True)
    members, member = np.unique(comm + len(comms) * mine.process, return_inverse=True)
    ended = np.zeros(len(members), np.int64)
    np.add.at(ended, member, mine.done)
    # Who has ended more in all has ended no fewer of any function.
    order = np.lexsort((ended[member], func, mine.comm))
    same = (np.diff(mine.comm[order]) == 0) & (np.diff(func[order]) == 0)
    fewer = np.flatnonzero(same & (np.diff(mine.done[order]) < 0))
    return _describe_slip(mine.pick(mine.comm == mine.comm[order][fewer[0]])) if len(fewer) else None


def _describe_slip(lines: Lines) -> Slip | None:
    """Return who of a communicator is at odds with most others. Cost: O(lines + square of different counts)."""
    funcs, func = np.unique(lines.func.astype(str), return_inverse=True)
    processes, member = np.unique(lines.process, return_inverse=True)
    counts = np.zeros((len(processes), len(funcs)), np.int64)
    counts[member, func] = lines.done
    kinds, kind, ranks = np.unique(counts, axis=0, return_inverse=True, return_counts=True)
    less = np.asarray((kinds[:, None, :] < kinds[None, :, :]).any(axis=2))
    at_odds = (less & less.T) @ ranks  # by kind: with how many ranks
    odd = int(at_odds.argmax())
    other = int(np.where(less[odd] & less[:, odd], ranks, -1).argmax())
    fewer, more = kinds[odd] < kinds[other], kinds[odd] > kinds[other]
    if not at_odds[odd]:
        return None
    who = processes[kind.reshape(-1) == odd].tolist()
    return Slip(int(lines.comm[0]), tuple(who), str(funcs[fewer.argmax()]), str(funcs[more.argmax()]))


def name_slip(scene: Scene, slip: Slip, job: str) -> Finding:
    """Return that ranks called the collectives of a communicator in different orders."""
    ranks = [scene.rank_of(process) for process in slip.processes]
    who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"{len(ranks)} ranks ({ranks[0]} and others) have"
    evidence: dict[str, Any] = {"kind": "slip", "ranks": ranks[:_MOST_NAMED], "comm": f"{slip.comm:016x}"}
    return finding_of(
        scene,
        list(slip.processes),
        fault_class="software",
        component=f"job:{job}",
        likelihood=0.93,
        reason=f"{who} ended fewer {slip.fewer} and more {slip.more} than the others of a communicator: a collective "
        "was left out or called out of order",
        evidence=(evidence | {"fewer": slip.fewer, "more": slip.more},),
    )


def _can_differ(lines: Lines) -> np.ndarray:
    """Return the lines that are inside a collective of which all ranks must tell the same size."""
    able: np.ndarray = (lines.started > lines.done) & ~np.isin(lines.func.astype(str), PAIRED)
    return able


def _open_calls(lines: Lines) -> Iterator[Call]:
    """Yield how the operations that are open were called, those alike as one."""
    which = np.flatnonzero(_can_differ(lines))
    names = ["comm", "func", "seq", "size", "dtype"]
    columns = (lines.comm, lines.func.astype(str), lines.done, lines.open_bytes, lines.open_dtype.astype(str))
    table = pa.table(
        {name: column[which] for name, column in zip(names, columns, strict=True)} | {"rank": lines.rank[which]}
    )
    for row in table.group_by(names).aggregate([("rank", "list")]).to_pylist():
        ranks = sorted({*row["rank_list"]})
        key = (row["comm"], row["func"], row["seq"])
        yield Call(key, row["size"], row["dtype"], len(ranks), tuple(ranks[:_MOST_NAMED]))


def _differ(calls: list[Call]) -> bool:
    return len({call.size for call in calls} - {-1}) > 1 or len({call.dtype for call in calls} - {""}) > 1


def _describe(operation: OperationKey, calls: list[Call]) -> Mismatch:
    """Return the arguments that most ranks gave, and the calls with others."""
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for call in calls:
        counts[call.size, call.dtype] += call.count
    most = max(sorted(counts), key=counts.__getitem__)
    usual = next(call for call in calls if (call.size, call.dtype) == most)
    odd = [call for call in calls if (call.size, call.dtype) != most and _differ([call, usual])]
    return Mismatch(operation, usual, tuple(odd))
