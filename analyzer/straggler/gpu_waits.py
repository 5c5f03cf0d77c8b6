"""Whose GPU others wait for, where NCCL tells no GPU times: by what proxy threads waited for their own GPU.

Without kernel times an operation seems to begin when the host enqueues it, and a slow GPU leaves no gap. Transfers
whose steps were sampled still show it: data that came in lies there, and nothing is there to be sent, until the
kernel begins. In a collective only a rank whose own kernel is late waits for its GPU on both sides: others that have
nothing to send wait for data too. Few operations are sampled, and most lie behind another one without any compute
between; hosts are late by some milliseconds now and then. So those waits count that cost most of the time that is
lost, and the question is whether it is always the same GPU: by chance each of n ranks is last as often as the others.

In a pipeline of one rank per stage nobody does the same work. There a receive is late against what receives of that
rank from the same peer waited before, and the question is the same: is it always one GPU?
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.straggler.kernels import mix
from analyzer.straggler.roles import find_roles
from analyzer.windows.jobs import Roster
from analyzer.windows.window import Context, Window
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import WHOSE

SAMPLES_BACK_NS = (
    30 * NS_PER_S
)  # as far as sampled steps count for pairs: an evaluation of a few seconds holds one or none
_KEPT = 256  # receives of each stream that tell what is usual
_LONGEST_NS = 3_600 * NS_PER_S  # transfers are stored by their beginning
_WAITS = f"""
SELECT /*ask,*/ comm, func, rank, if(func = 'Recv', peer, -1) AS far, seq, replay, epoch, max(last_ns) AS at_ns,
       maxIf(gpu_wait_ns, direction = 'recv') AS received, maxIf(gpu_wait_ns, direction = 'send') AS sent,
       if(func = 'Recv', received, least(received, sent)) AS own_ns
FROM transfers
WHERE {WHOSE} AND gpu_wait_ns IS NOT NULL AND func != 'Send' AND first_ns >= {{start:Int64}} - {_LONGEST_NS}
    AND last_ns >= {{start:Int64}} AND last_ns < {{end:Int64}}
GROUP BY /*ask,*/ comm, func, rank, far, seq, replay, epoch
HAVING own_ns IS NOT NULL
ORDER BY comm, func, rank, far, seq, replay, epoch
"""
_RECEIVES = _WAITS.replace("func != 'Send'", "func = 'Recv'")
_CLOCKED = f"""
SELECT /*ask,*/ count() AS n FROM collectives
WHERE {WHOSE} AND clock = 'gpu' AND enqueue_ns >= {{start:Int64}} AND enqueue_ns < {{end:Int64}}
/*GROUP BY ask*/
"""


@dataclass(frozen=True, slots=True)
class GpuWaitOptions:
    """When a GPU counts as the one that is always last, or alone slower than before."""

    min_ns: float = 1e6  # a kernel that is launched in time begins within a millisecond of its data
    apart: float = 3.0  # times what the next one waited: else several are late, and nobody in particular
    min_peers: int = 2
    chance: float = 1e-4  # of any rank to be last as often by chance; evaluations of a day that share nothing: 3,000
    min_share: float = 0.6  # of the operations in which somebody was late
    min_past: int = 30  # receives of before that have to be known of a stream, where there are no peers
    usual: float = 0.98  # of them waited no longer than what is usual: in each step one of fifty micro-batches may
    spread: int = 3  # parts of a window, each with late ones: garbage collection is in one of them, or two


@dataclass(frozen=True)
class GpuWaits:
    """How long proxy threads waited for their own GPU in sampled operations; arrays are parallel."""

    process: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    operation: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # equal for what is comparable
    own_ns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    per_s: float = 0.0  # operations that a rank does in a second, sampled or not
    stream: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))  # equal for receives of a rank by peer
    at_ns: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # when it ended
    is_clocked: bool = False  # whether GPU times are known


@dataclass(frozen=True)
class PastWaits:
    """What receives waited before, those of a stream in the order of time; arrays are parallel."""

    stream: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))  # rising
    own_ns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    until_ns: int = 0  # up to here all were taken in, or are not to be
    held: frozenset[int] = frozenset()  # processes found to be slower than that, by the last evaluation


@dataclass(frozen=True, slots=True)
class LateGpu:
    """A process whose GPU is nearly always the last."""

    process: int
    peers: int
    times: int  # that it was last, far behind the others
    late: int  # operations in which anybody was, by as much
    lost_share: float  # of the time
    since_ns: int | None = None  # where it is held against its own past: begin of the first wait that is late


def read_gpu_waits(store: Store, context: Context, per_s: float) -> GpuWaits:
    """Return the waits of sampled operations; of receives alone where GPU times are known, which tell more of others.

    A rank does so many operations in a second.
    """
    window = context.window
    back_ns = max(SAMPLES_BACK_NS, 3 * (window.end_ns - window.start_ns))  # what is learnt lies two windows back
    asked = context.parameters | {"start": window.end_ns - back_ns}
    is_clocked = bool(pc.sum(store.query(_CLOCKED, asked)["n"]).as_py())
    rows = store.query(_RECEIVES if is_clocked else _WAITS, asked)
    return replace(as_gpu_waits(rows, context.roster, per_s), is_clocked=is_clocked)


def as_gpu_waits(rows: pa.Table, roster: Roster, per_s: float) -> GpuWaits:
    """Return waits of ranks by operation: of a collective, or of a receive by stages that are as far along."""
    comm = rows["comm"].to_numpy().astype(np.uint64)
    rank, far, seq, replay, epoch = (
        rows[name].to_numpy().astype(np.int64) for name in ("rank", "far", "seq", "replay", "epoch")
    )
    func = rows["func"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    process = roster.find(comm, rank)
    roles = find_roles(np.maximum(process, 0), comm, rank, far, far < -1, max(len(roster), 1))
    where = np.where(far < 0, comm, mix(roles.family_of, roles.role_of[np.maximum(process, 0)], far - rank))
    _, operation = np.unique(mix(where, func, seq, replay, epoch), return_inverse=True)
    known = process >= 0
    own_ns = rows["own_ns"].to_numpy().astype(np.float64)
    stream, at_ns = mix(comm, rank, far), rows["at_ns"].to_numpy().astype(np.int64)
    arrays = (operation.reshape(-1)[known], own_ns[known])
    return GpuWaits(process[known], *arrays, per_s, np.where(far >= 0, stream, 0)[known], at_ns[known])


def find_late_gpus(waits: GpuWaits, options: GpuWaitOptions) -> list[LateGpu]:
    """Return the processes that were last in nearly all operations in which anybody was late."""
    if not len(waits.process) or waits.is_clocked:
        return []
    order = np.lexsort((-waits.own_ns, waits.operation))
    process, own_ns = waits.process[order], waits.own_ns[order]
    _, first, ranks = np.unique(waits.operation[order], return_index=True, return_counts=True)
    first, ranks = first[ranks > options.min_peers], ranks[ranks > options.min_peers]
    last, next_ns, lost_ns = process[first], own_ns[first + 1], own_ns[first]
    is_late = (lost_ns >= options.min_ns) & (lost_ns >= options.apart * next_ns)
    is_late &= _is_heavy(np.where(is_late, lost_ns - next_ns, 0.0), options.apart)
    found = []
    for number in np.unique(last[is_late]).tolist():
        mine = is_late & (last == number)
        late, times, peers = int(is_late.sum()), int(mine.sum()), int(ranks[mine].min()) - 1
        if times >= options.min_share * late and chance_to_be_last(times, late, peers + 1) <= options.chance:
            share = float((lost_ns - next_ns)[mine].sum()) / len(first) * waits.per_s / NS_PER_S
            found.append(LateGpu(number, peers, times, late, share))
    return found


def find_slower_gpus(waits: GpuWaits, past: PastWaits, window: Window, options: GpuWaitOptions) -> list[LateGpu]:
    """Return whose receives alone wait longer for their GPU than they did; asked of jobs that became slower."""
    recent = _pick_alone(waits, window, options)
    low, high = (np.searchsorted(past.stream, recent.stream, side) for side in ("left", "right"))
    known = high - low >= options.min_past
    ranks = len(np.unique(recent.process[known]))
    if ranks <= options.min_peers:
        return []
    ordered = np.append(past.own_ns[np.lexsort((past.own_ns, past.stream))], 0.0)
    usual_ns = ordered[np.where(known, low + options.usual * (high - low - 1), -1).astype(np.int64)]
    is_late = known & (recent.own_ns >= np.maximum(options.min_ns, options.apart * usual_ns))
    is_late &= _is_heavy(np.where(is_late, recent.own_ns - usual_ns, 0.0), options.apart)
    late, found = int(is_late.sum()), []
    for number in np.unique(recent.process[is_late]).tolist():
        mine = is_late & (recent.process == number)
        times = int(mine.sum())
        is_alone = times >= options.min_share * late
        is_new = chance_to_be_last(times, late, ranks) <= options.chance and _is_spread(
            recent.at_ns[mine], window, options
        )
        if is_alone and (is_new or number in past.held):
            share = _measure_growth(recent, past, known & (recent.process == number)) * waits.per_s / NS_PER_S
            since_ns = int((recent.at_ns - recent.own_ns)[mine].min())
            found.append(LateGpu(number, ranks - 1, times, late, share, since_ns))
    return found


def _measure_growth(recent: GpuWaits, past: PastWaits, its: np.ndarray) -> float:
    """Return by how much an operation of a process waits longer than before; receives are half of what it does."""
    before_ns = past.own_ns[np.isin(past.stream, recent.stream[its])]
    return float(recent.own_ns[its].mean() - before_ns.mean()) / 2


def learn_waits(waits: GpuWaits, past: PastWaits, window: Window, found: Sequence[LateGpu]) -> PastWaits:
    """Return the past with what ended two windows ago: a fault is found by then, and not learnt."""
    if found:
        return replace(past, until_ns=window.end_ns, held=frozenset(each.process for each in found))
    until_ns = max(2 * window.start_ns - window.end_ns, past.until_ns)
    fresh = (waits.stream > 0) & (waits.at_ns >= past.until_ns) & (waits.at_ns < until_ns)
    in_time = np.argsort(waits.at_ns[fresh], kind="stable")
    stream = np.concatenate([past.stream, waits.stream[fresh][in_time]])
    own_ns = np.concatenate([past.own_ns, waits.own_ns[fresh][in_time]])
    order = np.argsort(stream, kind="stable")
    newer = np.searchsorted(stream[order], stream[order], "right") - np.arange(len(order))
    kept = order[newer <= _KEPT]
    return PastWaits(stream[kept], own_ns[kept], until_ns)


def _pick_alone(waits: GpuWaits, window: Window, options: GpuWaitOptions) -> GpuWaits:
    """Return the receives of two windows, which were not learnt, that too few others do to tell who is odd."""
    _, group, ranks = np.unique(waits.operation, return_inverse=True, return_counts=True)
    chosen = (ranks[group.reshape(-1)] <= options.min_peers) & (waits.stream > 0)
    chosen &= waits.at_ns >= 2 * window.start_ns - window.end_ns
    columns = {name: getattr(waits, name)[chosen] for name in ("process", "operation", "own_ns", "stream", "at_ns")}
    return replace(waits, **columns)


def _is_spread(at_ns: np.ndarray, window: Window, options: GpuWaitOptions) -> bool:
    """Return whether something happened in every part of a window."""
    part = (at_ns - window.start_ns) * options.spread // max(window.end_ns - window.start_ns, 1)
    return len(np.unique(part[part >= 0])) >= options.spread


def _is_heavy(lost_ns: np.ndarray, apart: float) -> np.ndarray:
    """Return the losses of the size that costs most: that of the one that half of all lost time is reached with.

    Who lost plays no role, so by chance it is still anybody.

    >>> _is_heavy(np.array([1.0, 90.0, 2.0, 85.0, 0.0]), 3.0).tolist()
    [False, True, False, True, False]
    """
    ranked = np.sort(lost_ns)[::-1]
    reached = np.cumsum(ranked)
    if not len(ranked) or reached[-1] <= 0:
        return np.zeros(len(lost_ns), bool)
    heavy: np.ndarray = lost_ns * apart >= ranked[np.searchsorted(reached, reached[-1] / 2)]
    return heavy


def chance_to_be_last(times: int, of: int, ranks: int) -> float:
    """Return the chance that any of so many ranks is last at least so often, were each as likely; at most.

    >>> chance_to_be_last(3, 3, 4)
    0.0625
    """
    chances = np.array([1.0])
    for _ in range(of):
        chances = np.convolve(chances, [1 - 1 / ranks, 1 / ranks])
    return ranks * float(chances[times:].sum())
