"""How long a plan is expected to hold: until the next node fails, or one comes back, and everything is planned anew.

The rate is that of the nodes' own evidence, not one MTBF for all. Which nodes a plan will use is known only after it
is made, so this is an approximation: the average rate of all usable nodes times the number of nodes that the jobs can
use at most. It is exact where the jobs can use all nodes, and off by how unlike the average the idle ones are.
Failures are taken to be independent and without memory.
"""

import math

from planner.recovery.allocation.jobs import Cluster, Job

_DAY_S = 86_400.0
_LONGEST_S = 28 * _DAY_S  # nobody plans further ahead; also keeps a cluster without failures finite
_STEP = 1.1  # rates estimated from rare failures are no better known; and most single events keep their step


def expect_running_s(cluster: Cluster) -> float:
    """Return the seconds until the next plan, rounded to a step of a tenth so that small changes change nothing."""
    return running_s_of(
        len(cluster.usable),
        math.fsum(node.failures_per_day for node in cluster.usable),
        sum(most_useful(job) for job in cluster.jobs),
        cluster.repairs_per_day,
    )


def running_s_of(usable: int, failures_per_day: float, useful: int, repairs_per_day: float) -> float:
    """Return the seconds until the next plan of so many usable nodes with that sum of rates, of which so many are
    of use to jobs.

    >>> running_s_of(8, 0.82, 100, 0.0) == running_s_of(8, 0.83, 100, 0.0)
    True
    """
    failures = failures_per_day / max(usable, 1) * min(usable, useful)
    seconds = min(_DAY_S / max(failures + repairs_per_day, 1e-9), _LONGEST_S)
    return float(_STEP ** round(math.log(seconds, _STEP)))


def most_useful(job: Job) -> int:
    """Return the most nodes that a job can be given."""
    known = [*job.throughput.counts[-1:], len(job.nodes)]
    return min(max(known), job.most) if job.most is not None else max(known)
