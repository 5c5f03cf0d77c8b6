"""How Slurm starts a job again under its own number: requeue, which is slow, as it waits for cred_expire first."""

from planner.controllers.notes import Notes
from planner.controllers.orders import find_variables
from planner.controllers.protocol import Report, Restart
from planner.controllers.slurm_commands import SlurmCommands, SlurmOptions
from planner.controllers.slurm_parsing import SlurmJob, write_mark
from planner.controllers.slurm_submission import (
    EXCLUDED,
    find_excluded,
    find_ours,
    find_shape,
    say_over,
    say_unknown,
    why_not_requeued,
    without_ours,
)

_REMARK = "Slurm lets it wait for cred_expire (120 s unless configured) before it starts"


def requeue(slurm: SlurmCommands, notes: Notes, options: SlurmOptions, order: Restart) -> Report:
    """Requeue a job, held until its excluded nodes are set: Slurm changes that list of waiting jobs only."""
    note = notes.read(order.mark) or {}
    if "new" in note:
        return Report("already", f"job {order.job} was requeued under {order.mark}", order.job)
    order = slurm.without_unknown(order)
    found = slurm.show_jobs(order.job)
    why_not = why_not_requeued(found[0]) if found else say_unknown(order.job)
    if not why_not and not note and found[0].state == "ended":
        why_not = say_over(found[0])
    if why_not:
        return Report("refused", why_not)
    job, restarts = found[0], int(note.get("restarts", found[0].restarts))
    plain = without_ours(job, notes)
    ours = {EXCLUDED: find_ours(plain, order)}
    if options.is_dry_run:
        return Report(
            "would", f"would requeue job {job.id} without {find_excluded(plain, order) or 'excluding a node'}"
        )
    if job.restarts > restarts and job.fields["JobState"] == "RUNNING":
        return Report("already", f"job {job.id} was requeued under {order.mark} and runs", job.id)
    notes.write(order.mark, {"job": job.id, "restarts": str(restarts)} | ours)
    if job.restarts == restarts and job.state != "waiting" and job.fields["JobState"] != "COMPLETING":
        slurm.requeue_and_hold(job.id)
    if not _wait_until_waiting(slurm, options, job.id):
        return Report("failed", f"job {job.id} is requeued, held, and still ending; ask again to exclude its nodes")
    slurm.update_job(job.id, _find_changes(plain, order, has_list="ExcNodeList" in job.fields))
    slurm.release_job(job.id)
    notes.write(order.mark, {"job": job.id, "new": job.id} | ours)
    return Report("done", f"job {job.id} is requeued; {_REMARK}{_lost(order)}", job.id)


def _wait_until_waiting(slurm: SlurmCommands, options: SlurmOptions, job: str) -> bool:
    """Wait a little and return whether a requeued job's processes are gone; changes to it before may be lost."""

    def is_waiting() -> bool:
        return all(each.state != "running" for each in slurm.view_jobs(job))

    return slurm.wait_until(is_waiting, options.grace_s)


def _find_changes(job: SlurmJob, order: Restart, has_list: bool) -> dict[str, str]:
    # A requeued job keeps its environment, so the comment is the only place where its script can find the checkpoint.
    resume = f"resume from {order.checkpoint}" if order.checkpoint is not None else ""
    changes = {"Comment": write_mark(order.mark, resume)}
    excluded = find_excluded(job, order)
    changes |= {"ExcNodeList": excluded} if excluded or has_list else {}
    return changes | (find_shape(job, order.nnodes) if order.nnodes else {})


def _lost(order: Restart) -> str:
    lost = sorted(find_variables(order))
    return f", and without {', '.join(lost)}, as it keeps its environment" if lost else ""
