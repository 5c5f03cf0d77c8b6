"""Which names a job has had: a job that is submitted again gets a new one, and its history goes by the old ones."""

from collections.abc import Sequence

from lockstep.execution import Execution


def names_of(job: str, runs: Sequence[Execution]) -> tuple[str, ...]:
    """Return all names of a job, the one it has now first and the one it was first started under last."""
    before = {run.new_job: run.job for run in runs if run.new_job}
    names = [job]
    while (older := before.get(names[-1])) is not None and older not in names:
        names.append(older)
    return tuple(names)


def newest_name(job: str, runs: Sequence[Execution]) -> str:
    """Return the name that a job has now."""
    after = {run.job: run.new_job for run in reversed(runs) if run.new_job}  # the newest run comes first
    seen = {job}
    while (newer := after.get(job)) is not None and newer not in seen:
        seen.add(job := newer)
    return job


def has_moved_on(job: str, runs: Sequence[Execution]) -> bool:
    """Return whether we have started a job again under another name; its incidents may be open for a while."""
    return any(run.job == job and run.new_job not in (None, job) for run in runs)
