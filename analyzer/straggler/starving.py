"""Hosts whose NCCL proxy threads get no CPU: chunks that have arrived wait for them to be flushed."""

from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from analyzer.straggler.reading import Flushes
from analyzer.windows.window import Context, Finding
from lockstep.topology import host_name


@dataclass(frozen=True, slots=True)
class StarvingOptions:
    """When a host's proxy threads count as starved."""

    min_share: float = 0.03  # of the time of its receives: less holds nobody up
    ratio: float = 5.0  # over the usual flush: a starved thread of our recordings took 25 times as long
    min_steps: int = 32  # fewer, and a single interrupt makes the mean
    min_hosts: int = 2  # with one there is nobody to compare it with
    floor_ns: float = 50_000.0  # a flush over a busy PCIe takes less; a thread that lacks its core loses a time slice


@dataclass(frozen=True, slots=True)
class LateProxies:
    """A host whose proxy threads come late to what has arrived; whether anybody waits for it is another question."""

    host: str
    per_step_ns: float
    usual_ns: float
    share: float  # of the time of its receives
    newest_ns: int


def find_late_proxies(flushes: Flushes, options: StarvingOptions) -> list[LateProxies]:
    """Return the hosts whose flushes take far longer than those of others: their connections only look slow."""
    rows = _choose(flushes, options)
    if len(rows) < options.min_hosts:
        return []
    per_step = flushes.flush_ns[rows] / flushes.steps[rows]
    busy_ns = flushes.busy_ns[rows]
    share = np.divide(flushes.flush_ns[rows], busy_ns, out=np.zeros(len(rows)), where=busy_ns > 0)
    usual = max(float(np.sort(per_step)[(len(rows) - 1) // 2]), options.floor_ns)
    return [
        LateProxies(
            flushes.hosts[rows[number]],
            float(per_step[number]),
            usual,
            float(share[number]),
            int(flushes.newest_ns[rows[number]]),
        )
        for number in np.flatnonzero(per_step >= options.ratio * usual).tolist()
    ]


def _choose(flushes: Flushes, options: StarvingOptions) -> np.ndarray:
    """Return the row of each host that tells enough: that of the window, else that of the time before it."""
    enough = np.flatnonzero(flushes.steps >= options.min_steps)
    chosen = {flushes.hosts[row]: row for row in enough[np.argsort(flushes.is_now[enough], kind="stable")].tolist()}
    return np.array(sorted(chosen.values()), np.int64)


def find_starving(
    flushes: Flushes, slow_hosts: Set[str], context: Context, options: StarvingOptions
) -> list[Finding]:
    """Return the hosts whose late proxy threads hold others up: by much of their receives, or by slow connections."""
    late = find_late_proxies(flushes, options)
    starving = [each for each in late if each.share >= options.min_share or each.host in slow_hosts]
    if len(starving) > max(1, len(_choose(flushes, options)) // 4):
        return []  # that many at once share a cause that is no host's own
    return [_report_starving(each, context) for each in starving]


def _report_starving(late: LateProxies, context: Context) -> Finding:
    return Finding(
        fault_class="noncomm_slow",
        component=host_name(late.host),
        likelihood=0.93,
        reason=(
            f"the NCCL proxy threads of {late.host} come {late.per_step_ns / 1e3:.0f} us late to each chunk that has "
            f"arrived, those of others {late.usual_ns / 1e3:.0f} us at most: not the network, they get no CPU; look "
            f"for other processes, pinning and cgroup limits on {late.host}"
        ),
        evidence=(
            {
                "kind": "flush",
                "host": late.host,
                "flush_us_per_step": round(late.per_step_ns / 1e3, 1),
                "usual_us_per_step": round(late.usual_ns / 1e3, 1),
                "share_of_receives": round(late.share, 3),
            },
        ),
        ranks_waiting=max(context.roster.ranks - 1, 0),
        lost_share=min(late.share, 1.0),
        is_stale=late.newest_ns < context.fresh_ns,
        slows_pairs=True,
    )
