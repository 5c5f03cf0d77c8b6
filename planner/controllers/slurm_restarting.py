"""How Slurm starts a job again: cancel and submit, which is quick, or requeue, which keeps the job's number.

Both keep a note under the order's mark before they change anything, and read it first: asked again after a death in
the middle, they go on where the first try ended.
"""

import json
from dataclasses import replace
from tempfile import NamedTemporaryFile

from planner.controllers.notes import Notes
from planner.controllers.orders import find_variables
from planner.controllers.protocol import Report, Restart
from planner.controllers.slurm_commands import SlurmCommands, SlurmOptions, own_user
from planner.controllers.slurm_parsing import SlurmJob, write_mark
from planner.controllers.slurm_submission import (
    Submission,
    build_sbatch,
    fill_template,
    find_excluded,
    find_shape,
    why_not_requeued,
    why_not_submitted,
)

_REQUEUE_REMARK = "Slurm lets it wait for cred_expire (120 s unless configured) before it starts"
_LEFT_S = 5.0  # of a call's time: waiting for the old job must not eat the time to start the new one


def submit_again(slurm: SlurmCommands, notes: Notes, options: SlurmOptions, order: Restart) -> Report:
    """Cancel a job and submit its batch script again, without the order's nodes."""
    note = notes.read(order.mark) or {}
    known = note.get("new") or slurm.find_marked(order.mark)  # our note outlives the job's record and its comment
    if known:
        return Report("already", f"job {order.job} was submitted again as job {known} under {order.mark}", known)
    order = _without_unknown(slurm, order)
    submission = _find_submission(slurm, note, options, order)
    if isinstance(submission, Report):
        return submission
    command = build_sbatch(options.sbatch, submission, order, own_user())
    is_ours_to_try = not options.resubmit and "script" not in note  # with a note, the job may be cancelled already
    why_never = slurm.why_never(command, submission.script, submission.job.user) if is_ours_to_try else None
    if why_never:
        return Report("refused", f"job {order.job} is left as it is, as it could not start again: {why_never}")
    if options.is_dry_run:
        return Report("would", f"would cancel job {order.job} and run {' '.join(command)}")
    _keep(notes, order, submission)
    remark = _end(slurm, options, order.job)
    new = _submit(slurm, options, order, submission)
    notes.write(order.mark, {"job": order.job, "new": new})
    without = find_excluded(submission.job, order)
    where = f", to run without {without}" if without else ""
    return Report("done", f"job {order.job} is cancelled and submitted again as job {new}{where}{remark}", new)


def requeue(slurm: SlurmCommands, notes: Notes, options: SlurmOptions, order: Restart) -> Report:
    """Requeue a job, held until its excluded nodes are set: Slurm changes that list of waiting jobs only."""
    note = notes.read(order.mark) or {}
    if "new" in note:
        return Report("already", f"job {order.job} was requeued under {order.mark}", order.job)
    order = _without_unknown(slurm, order)
    found = slurm.show_jobs(order.job)
    why_not = why_not_requeued(found[0]) if found else _unknown(order.job)
    if not why_not and not note and found[0].state == "ended":
        why_not = _over(found[0])
    if why_not:
        return Report("refused", why_not)
    job, restarts = found[0], int(note.get("restarts", found[0].restarts))
    if options.is_dry_run:
        return Report(
            "would", f"would requeue job {job.id} without {find_excluded(job, order) or 'excluding a node'}"
        )
    if job.restarts > restarts and job.fields["JobState"] == "RUNNING":
        return Report("already", f"job {job.id} was requeued under {order.mark} and runs", job.id)
    notes.write(order.mark, {"job": job.id, "restarts": str(restarts)})
    if job.restarts == restarts and job.state != "waiting" and job.fields["JobState"] != "COMPLETING":
        slurm.requeue_and_hold(job.id)
    if not _wait_until_waiting(slurm, options, job.id):
        return Report("failed", f"job {job.id} is requeued, held, and still ending; ask again to exclude its nodes")
    slurm.update_job(job.id, _find_changes(job, order))
    slurm.release_job(job.id)
    notes.write(order.mark, {"job": job.id, "new": job.id})
    return Report("done", f"job {job.id} is requeued; {_REQUEUE_REMARK}{_lost(order)}", job.id)


def _find_submission(
    slurm: SlurmCommands, note: dict[str, str], options: SlurmOptions, order: Restart
) -> Submission | Report:
    """Return what an earlier try kept, or what Slurm says now; or a refusal."""
    if note.get("job") == order.job and "script" in note:
        return Submission(SlurmJob(order.job, "ended", json.loads(note["fields"])), note["script"])
    found = slurm.show_jobs(order.job)
    if not found:
        return Report("refused", _unknown(order.job))
    if not found[0].user:  # also a site's own command must not guess
        return Report("refused", f"job {order.job} has no owner, or two: its name or comment looks like a UserId")
    if found[0].state == "ended":  # not by us: we keep a note before we cancel
        return Report("refused", _over(found[0]))
    why_not = why_not_submitted(found[0])
    if why_not and not options.resubmit:
        return Report("refused", why_not)
    return Submission(found[0], "" if why_not else slurm.read_script(order.job))


def _without_unknown(slurm: SlurmCommands, order: Restart) -> Restart:
    """Return the order without nodes that Slurm does not know (any more): it would refuse the whole job."""
    known = {node.name for node in slurm.show_nodes()} if order.exclude else set()
    return replace(order, exclude=tuple(node for node in order.exclude if node in known))


def _unknown(job: str) -> str:
    return f"Slurm knows no job {job}: it never was, or it ended and is forgotten"


def _over(job: SlurmJob) -> str:
    return (
        f"job {job.id} is over ({job.fields['JobState']}), by itself or by somebody's will: it is not started again"
    )


def _keep(notes: Notes, order: Restart, submission: Submission) -> None:
    fields = json.dumps(dict(submission.job.fields))
    notes.write(order.mark, {"job": order.job, "script": submission.script, "fields": fields})


def _end(slurm: SlurmCommands, options: SlurmOptions, job: str) -> str:
    """Cancel a job and wait a little until it is gone: two attempts must not write the same checkpoint."""
    if not _is_alive(slurm, job):
        return ""
    slurm.cancel(job)
    has_ended = slurm.deadline.wait_until(lambda: not _is_alive(slurm, job), _reserve_s(slurm, options))
    return "" if has_ended else f"; job {job} had not quite ended when the new one was submitted"


def _submit(slurm: SlurmCommands, options: SlurmOptions, order: Restart, submission: Submission) -> str:
    """Run sbatch or the site's own command, and return the new job."""
    user, variables = submission.job.user, find_variables(order)
    if not options.resubmit:
        command = build_sbatch(options.sbatch, submission, order, own_user())
        return slurm.submit(command, submission.script, variables, user)
    with NamedTemporaryFile("w", prefix="lockstep-", suffix=".sh") as script:
        script.write(submission.script)
        script.flush()
        command = fill_template(options.resubmit, submission, order, script.name)
        return slurm.submit(command, submission.script, variables, user)


def _wait_until_waiting(slurm: SlurmCommands, options: SlurmOptions, job: str) -> bool:
    """Wait a little and return whether a requeued job's processes are gone; changes to it before may be lost."""

    def is_waiting() -> bool:
        return all(each.state != "running" for each in slurm.show_jobs(job))

    return slurm.deadline.wait_until(is_waiting, _reserve_s(slurm, options))


def _find_changes(job: SlurmJob, order: Restart) -> dict[str, str]:
    # A requeued job keeps its environment, so the comment is the only place where its script can find the checkpoint.
    resume = f"resume from {order.checkpoint}" if order.checkpoint is not None else ""
    changes = {"Comment": write_mark(order.mark, resume)}
    excluded = find_excluded(job, order)
    changes |= {"ExcNodeList": excluded} if excluded else {}
    return changes | (find_shape(job, order.nnodes) if order.nnodes else {})


def _lost(order: Restart) -> str:
    lost = sorted(find_variables(order))
    return f", and without {', '.join(lost)}, as it keeps its environment" if lost else ""


def _is_alive(slurm: SlurmCommands, job: str) -> bool:
    return any(each.state in ("waiting", "running") for each in slurm.show_jobs(job))


def _reserve_s(slurm: SlurmCommands, options: SlurmOptions) -> float:
    """Return how much of the call's time is left when the old job's grace is over."""
    return max(slurm.deadline.left_s - options.grace_s, _LEFT_S)
