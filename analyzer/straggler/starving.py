"""Hosts whose NCCL proxy threads get no CPU: chunks that have arrived wait for them to be flushed."""

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


def find_starving(flushes: Flushes, context: Context, options: StarvingOptions) -> list[Finding]:
    """Return the hosts whose flushes take far longer than those of the others."""
    enough = flushes.steps >= options.min_steps
    if int(enough.sum()) < options.min_hosts:
        return []
    per_step = np.divide(flushes.flush_ns, flushes.steps, out=np.zeros(len(enough)), where=enough)
    share = np.divide(flushes.flush_ns, flushes.busy_ns, out=np.zeros(len(enough)), where=flushes.busy_ns > 0)
    ordered = np.sort(per_step[enough])
    usual = max(float(ordered[(len(ordered) - 1) // 2]), options.floor_ns)
    slow = np.flatnonzero(enough & (share >= options.min_share) & (per_step >= options.ratio * usual))
    if len(slow) > max(1, int(enough.sum()) // 4):
        return []  # that many at once share a cause that is no host's own
    return [
        _report_starving(flushes.hosts[row], float(per_step[row]), usual, float(share[row]), context) for row in slow
    ]


def _report_starving(host: str, per_step_ns: float, usual_ns: float, share: float, context: Context) -> Finding:
    return Finding(
        fault_class="noncomm_slow",
        component=host_name(host),
        likelihood=0.93,
        reason=(
            f"the NCCL proxy threads of {host} come {per_step_ns / 1e3:.0f} us late to each chunk that has arrived, "
            f"those of others {usual_ns / 1e3:.0f} us at most: not the network, they get no CPU; look for other "
            f"processes, pinning and cgroup limits on {host}"
        ),
        evidence=(
            {
                "kind": "flush",
                "host": host,
                "flush_us_per_step": round(per_step_ns / 1e3, 1),
                "usual_us_per_step": round(usual_ns / 1e3, 1),
                "share_of_receives": round(share, 3),
            },
        ),
        ranks_waiting=max(context.roster.ranks - 1, 0),
        lost_share=min(share, 1.0),
    )
