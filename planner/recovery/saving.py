"""Whether a job saves about as often as is best at the failure rate that was seen here, in a sentence if not."""

from planner.recovery.checkpoints.intervals import Saving, advise_interval, say_time
from planner.recovery.facts import ClusterFacts, JobFacts

_FAR = 2.0  # times beyond what the doubt about the rate leaves open: Young's optimum is flat around its bottom
_WORTH_IT = 0.01  # of the time; less is not worth a change of a job's settings


def advise_saving(job: JobFacts, cluster: ClusterFacts) -> str | None:
    """Return how often a job should save, where it saves far too seldom or too often; None: it does well, or unknown.

    How long a save holds the job up is not in the telemetry: it is taken to last as long as loading one.
    """
    rate, every_s, resume = cluster.failure_rate, job.save_every_s, job.resume
    if rate is None or every_s is None or resume is None or resume.load_s <= 0 or not job.nodes:
        return None
    best = advise_interval(rate, Saving(len(job.nodes), resume.load_s, interval_s=every_s))
    is_far = every_s * _FAR < best.low_s or (best.high_s is not None and every_s > best.high_s * _FAR)
    if not is_far or (best.lost_share_now or 0.0) - best.lost_share < _WORTH_IT:
        return None
    return f"{job.job} saves every {say_time(every_s)}: {best.reason} (if a save lasts as long as loading one)"
