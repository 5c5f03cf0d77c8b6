"""Who takes longer for itself than it used to, where too few others do the same work to tell who is odd.

A stage of a pipeline with one rank has no peers, and of two ranks nobody can say which is late. What a rank does not
spend inside operations is its own time, on the GPU or in its process; waits for others lie inside of them. So when a
job becomes slower, and the own time of one rank has grown while that of no other has, it is that rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzer.straggler.culprits import KINDS, Culprit
from analyzer.straggler.operations import Operations
from analyzer.straggler.roles import find_roles
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class OwnPastOptions:
    """When a rank alone has become slower."""

    most_ranks: int = 256  # of a job: larger ones have peers, and what is kept grows with them
    min_past: int = 2  # evaluations that share nothing with this one
    most_peers: int = 1  # with more, they are asked
    min_ranks: int = 2  # that can be compared with their past
    min_operations: int = 20  # of a rank in an evaluation at its usual pace: fewer are a few steps
    min_share: float = 0.10  # of the time that its growth costs: as much as among few peers
    apart: float = 3.0  # times what the next one's own time has grown
    slower: float = 0.87  # operations in a second, of those before: as of any job that became slower
    gpu_share: float = 0.5  # of the growth in which the operation was enqueued already: then it is the GPU


@dataclass(frozen=True)
class OwnTimes:
    """What each process took for itself before an operation, in the mean of an evaluation without the longest time.

    A pause happens once. NaN where a process has peers.
    """

    end_ns: int
    own_ns: np.ndarray  # by process
    gpu_ns: np.ndarray  # the part of it in which the operation was enqueued already
    per_s: np.ndarray  # operations
    operations: np.ndarray  # that were seen

    def forget_few(self, least: float | np.ndarray) -> "OwnTimes":
        """Return the times without those of processes that did fewer operations."""
        return replace(self, own_ns=np.where(self.operations >= least, self.own_ns, np.nan))


def measure_own(rows: Operations, context: Context, options: OwnPastOptions) -> OwnTimes | None:
    """Return the own times of an evaluation; None where no single operations are known, or of too many ranks."""
    processes = len(context.roster)
    fine = (rows.process >= 0) & np.isfinite(rows.gap_ns) & np.isfinite(rows.dur_ns)
    if not fine.any() or processes > options.most_ranks:
        return None
    rows = rows.take(fine)
    operations = np.bincount(rows.process, minlength=processes)
    counts = np.where(_has_peers(rows, processes, options) | (operations < 2), np.nan, operations)
    longest = np.lexsort((rows.gap_ns, rows.process))[np.cumsum(operations)[operations > 0] - 1]
    rest = np.delete(np.arange(len(rows)), longest)
    sums = (
        np.bincount(rows.process[rest], weights=part[rest], minlength=processes)
        for part in (rows.gap_ns, rows.gpu_ns)
    )
    own_ns, gpu_ns = (each / (counts - 1) for each in sums)
    span_s = float((rows.start_ns + rows.dur_ns).max() - rows.start_ns.min()) / NS_PER_S
    return OwnTimes(context.window.end_ns, own_ns, gpu_ns, counts / max(span_s, 1e-3), operations)


def _has_peers(rows: Operations, processes: int, options: OwnPastOptions) -> np.ndarray:
    """Return of each process whether others do the same work."""
    roles = find_roles(rows.process, rows.comm, rows.rank, rows.peer, rows.sends, processes)
    there = np.unique(rows.process)
    _, index, ranks = np.unique(roles.role_of[there], return_inverse=True, return_counts=True)
    has_peers = np.ones(processes, bool)
    has_peers[there] = ranks[index.reshape(-1)] - 1 > options.most_peers
    return has_peers


def find_grown(now: OwnTimes, past: Sequence[OwnTimes], context: Context, options: OwnPastOptions) -> Culprit | None:
    """Return the rank whose own time alone has grown, or all of one host, in a job that became slower."""
    before = [each.forget_few(options.min_operations) for each in past if each.end_ns <= context.window.start_ns]
    if len(before) < options.min_past:
        return None
    own_ns, gpu_ns, per_s = (
        np.median(np.stack([getattr(each, name) for each in before]), axis=0)
        for name in ("own_ns", "gpu_ns", "per_s")
    )
    pace = now.per_s / per_s
    growth = now.forget_few(options.min_operations * np.fmin(pace, 1.0)).own_ns - own_ns
    share = growth * now.per_s / NS_PER_S
    known = np.flatnonzero(np.isfinite(share))
    if len(known) < options.min_ranks:
        return None
    worst = int(known[share[known].argmax()])
    if share[worst] < options.min_share or pace[worst] >= options.slower:
        return None
    grown = known[options.apart * share[known] > share[worst]]
    if len(grown) > 1 and not _are_a_host(grown, known, context):
        return None
    by_gpu = (now.gpu_ns - gpu_ns)[grown] >= options.gpu_share * growth[grown]
    return Culprit(
        kind=KINDS[bool(by_gpu.all()), len(grown) > 1],
        processes=tuple(grown.tolist()),
        share=min(float(share[worst]), 1.0),
        sigmas=0.0,
        peers=len(known) - len(grown),
        than="before",
    )


def _are_a_host(grown: np.ndarray, known: np.ndarray, context: Context) -> bool:
    """Say whether processes are all that are known of one host, and not all that are known."""
    hosts = context.roster.host_of[known]
    of_first = known[hosts == context.roster.host_of[grown[0]]]
    return np.array_equal(grown, of_first) and len(grown) < len(known)
