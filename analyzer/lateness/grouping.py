"""What late ranks have in common: one GPU, all GPUs of a host, one process, or all processes of a host.

In the gap before an operation the GPU works on what was enqueued before, or the process has not enqueued it yet. The
first is the GPU's doing, the second the process's. A host whose ranks are late alike is one culprit, not eight.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from analyzer.context import Context
from analyzer.lateness.excess import Excess, without_worst
from analyzer.lateness.spread import spread_of
from analyzer.lateness.telling import Culprit, Kind

# By whether it is the GPU's doing and whether all of a host are late; where nobody knows, the GPU stands first.
_KINDS: dict[tuple[bool, bool], Kind] = {
    (True, False): "gpu",
    (True, True): "hot_host",
    (False, False): "rank",
    (False, True): "host",
}


@dataclass(frozen=True, slots=True)
class GroupingOptions:
    """Which late ranks belong together, and how many culprits there can be."""

    most_culprits: int = 3  # GPUs or hosts at once, or this share of the hosts: more are no coincidence of faults
    most_hosts_share: float = 0.05
    host_share: float = 0.75  # of a host's ranks that are late alike: then it is the host
    gpu_share: float = 0.5  # of the lateness in which the GPU was waited for: then it is the GPU
    once_per_step: float = 1.5  # late operations a step: more than the first one of a step is no data loader,
    once_share: float = 0.7  # unless others were in time: a starved CPU is late for nearly all operations
    min_spread: float = 0.004  # of the time, as for finding them

    def limit(self, context: Context) -> float:
        """Return how many culprits a job can have at once."""
        return max(self.most_culprits, self.most_hosts_share * len(context.roster.hosts))


def are_too_many(late: np.ndarray, context: Context, options: GroupingOptions) -> bool:
    """Say whether processes are late on so many hosts that it is a property of the job, not a set of faults.

    Asked before they are grouped, which takes a while when half of a large job is late.
    """
    return len(set(context.roster.host_of[late].tolist())) > options.limit(context)


def group_late(excess: Excess, late: np.ndarray, context: Context, options: GroupingOptions) -> list[Culprit]:
    """Return the culprits behind late processes."""
    hosts = context.roster.host_of[excess.processes]
    ranks_of = Counter(hosts.tolist()) if len(late) else Counter[str]()
    by_gpu = _is_gpu(excess, options)
    groups: dict[tuple[str, bool], list[int]] = {}
    for row in late.tolist():
        groups.setdefault((hosts[row], bool(by_gpu[row])), []).append(row)
    culprits = []
    for (host, is_gpu), rows in groups.items():
        is_whole = len(rows) > 1 and len(rows) >= options.host_share * ranks_of[host]
        parts = [[row] for row in rows] if is_gpu and not is_whole else [rows]
        culprits += [_as_culprit(excess, part, _KINDS[is_gpu, is_whole], context, options) for part in parts]
    return culprits


def _is_gpu(excess: Excess, options: GroupingOptions) -> np.ndarray:
    """Say of each process whether its lateness is its GPU's doing."""
    by_gpu: np.ndarray = (without_worst(excess.gpu) >= options.gpu_share * excess.lasting) | ~excess.knows_gpu
    return by_gpu


def _as_culprit(excess: Excess, rows: list[int], kind: Kind, context: Context, options: GroupingOptions) -> Culprit:
    lasting = excess.lasting
    spread = max(spread_of(lasting), options.min_spread)
    return Culprit(
        kind=kind,
        knows_why=bool(excess.knows_gpu[rows].any()),
        processes=tuple(int(excess.processes[row]) for row in rows),
        share=float(excess.waits.sum(axis=1)[rows].max()),
        sigmas=float((lasting[rows].min() - np.median(lasting)) / spread),
        peers=int(excess.peers[rows].min()),
        is_once_per_step=_is_once_per_step(excess, rows, context, options),
    )


def _is_once_per_step(excess: Excess, rows: list[int], context: Context, options: GroupingOptions) -> bool:
    """Say whether the lateness lies before about as many operations as there were steps, and not before all."""
    most = options.once_share * float(excess.operations[rows].mean())
    if context.period_ns:
        most = max(most, options.once_per_step * excess.span_ns / context.period_ns)
    return float(excess.spread_over[rows].mean()) <= most
