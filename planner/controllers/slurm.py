"""Slurm as a controller: nodes are drained and undrained, jobs cancelled and submitted again without a node.

Marks are left in the reason of a drained node (`lockstep MARK: why`) and in the comment of a submitted job
(`lockstep MARK`). A job's batch script is kept in a spool directory before the job is cancelled, because Slurm
forgets ended jobs (MinJobAge, 300 s unless configured): a planner that dies between scancel and sbatch finds all it
needs.
"""

from collections.abc import Callable, Sequence

from lockstep.clock import Clock, SystemClock
from lockstep.errors import ControllerDown, ControllerRefused
from planner.controllers.protocol import (
    NOT_IN_PLACE,
    JobView,
    Node,
    Outcome,
    Report,
    Restart,
    check_mark,
    check_name,
    check_order,
    find_variables,
    report_half_done,
)
from planner.controllers.running import Notes
from planner.controllers.slurm_commands import SlurmCommands, SlurmOptions
from planner.controllers.slurm_jobs import (
    EXCLUDED,
    SlurmJob,
    SlurmNode,
    explain_over,
    explain_unknown,
    find_excluded,
    find_ours,
    find_shape,
    why_not_requeued,
    without_ours,
    write_mark,
)
from planner.controllers.slurm_rest import SlurmRest, Slurmrestd
from planner.controllers.slurm_restarting import Resubmission

_REMARK = "Slurm lets it wait for cred_expire (120 s unless configured) before it starts"


def requeue(slurm: SlurmCommands, notes: Notes, options: SlurmOptions, order: Restart) -> Report:
    """Requeue a job, held until its excluded nodes are set: Slurm changes that list of waiting jobs only."""
    note = notes.read(order.mark) or {}
    if "new" in note:
        return Report("already", f"job {order.job} was requeued under {order.mark}", order.job)
    order = slurm.without_unknown(order)
    found = slurm.show_jobs(order.job)
    why_not = why_not_requeued(found[0]) if found else explain_unknown(order.job)
    if not why_not and not note and found[0].state == "ended":
        why_not = explain_over(found[0])
    if why_not:
        return Report("refused", why_not)
    job, restarts = found[0], int(note.get("restarts", found[0].restarts))
    plain = without_ours(job, notes)
    ours = {EXCLUDED: find_ours(plain, order)}
    if options.dry_run:
        return Report(
            "would", f"would requeue job {job.id} without {find_excluded(plain, order) or 'excluding a node'}"
        )
    if job.restarts > restarts and job.fields["JobState"] == "RUNNING":
        return Report("already", f"job {job.id} was requeued under {order.mark} and runs", job.id)
    notes.write(order.mark, {"job": job.id, "restarts": str(restarts)} | ours)
    if job.restarts == restarts and job.state != "waiting" and job.fields["JobState"] != "COMPLETING":
        slurm.requeue_and_hold(job.id)

    def is_waiting() -> bool:  # changes before its processes are gone may be lost
        return all(each.state != "running" for each in slurm.view_jobs(job.id))

    if not slurm.wait_until(is_waiting, options.grace_s):
        return Report("failed", f"job {job.id} is requeued, held, and still ending; ask again to exclude its nodes")
    slurm.update_job(job.id, _find_changes(plain, order, has_list="ExcNodeList" in job.fields))
    slurm.release_job(job.id)
    notes.write(order.mark, {"job": job.id, "new": job.id} | ours)
    lost = ", ".join(sorted(find_variables(order)))
    without = f", and without {lost}, as it keeps its environment" if lost else ""
    return Report("done", f"job {job.id} is requeued; {_REMARK}{without}", job.id)


def _find_changes(job: SlurmJob, order: Restart, has_list: bool) -> dict[str, str]:
    # A requeued job keeps its environment, so the comment is the only place where its script can find the checkpoint.
    resume = f"resume from {order.checkpoint}" if order.checkpoint is not None else ""
    changes = {"Comment": write_mark(order.mark, resume)}
    excluded = find_excluded(job, order)
    changes |= {"ExcNodeList": excluded} if excluded or has_list else {}
    return changes | (find_shape(job, order.nnodes) if order.nnodes else {})


class SlurmController:
    """Drains nodes and starts jobs again, through Slurm's commands, and slurmrestd where the options name one."""

    name = "slurm"
    restarts_whole_job = True
    acts = NOT_IN_PLACE

    def __init__(self, options: SlurmOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._notes = Notes(options.spool)
        self._clock = clock or SystemClock()
        self._server = Slurmrestd(options.rest, options) if options.rest is not None else None

    def nodes(self) -> Sequence[Node]:
        try:
            return [node.as_node() for node in self._open().show_nodes()]
        except ControllerRefused as refusal:
            raise ControllerDown(f"Slurm does not list its nodes: {refusal}") from None

    def job(self, job: str) -> JobView | None:
        """Return a job; None when Slurm does not know it, or has forgotten it after its end."""
        check_name(job, "job")
        try:
            found = self._open().view_jobs(job)
        except ControllerRefused as refusal:
            raise ControllerDown(f"Slurm does not describe job {job}: {refusal}") from None
        return found[0].as_view() if found else None

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        """Drain a node: what runs there goes on, and nothing new starts."""
        check_name(node, "node")
        check_mark(mark)
        return self._report(lambda slurm: self._isolate(slurm, node, mark, reason))

    def release(self, node: str, mark: str) -> Report:
        """Take our own drain away, and no other; a node that is also down stays down."""
        check_name(node, "node")
        check_mark(mark)
        return self._report(lambda slurm: self._release(slurm, node, mark))

    def restart(self, order: Restart) -> Report:
        """Cancel a job and submit it again, or requeue it; as the options say."""
        check_order(order)
        return report_half_done(
            lambda: self._report(lambda slurm: self._restart(slurm, order)),
            # With a note that names no new job, something of the old one may be stopped.
            lambda: "new" not in (self._notes.read(order.mark) or {"new": ""}),
        )

    def reattempt(self, job: str, mark: str) -> Report:
        """Refuse: Slurm has no way to start a job's processes again in the allocation that it has.

        `scontrol requeue` gives the allocation back and waits for cred_expire, so it is a restart, and a slow one.
        """
        check_name(job, "job")
        check_mark(mark)
        return Report(
            "refused", f"Slurm cannot let job {job} try again in place: restart it, or let its launcher do it"
        )

    def _report(self, act: Callable[[SlurmCommands], Report]) -> Report:
        try:
            return act(self._open())
        except ControllerRefused as refusal:
            return Report("failed", str(refusal))

    def _open(self) -> SlurmCommands:
        return SlurmRest(self._options, self._server) if self._server else SlurmCommands(self._options)

    def _restart(self, slurm: SlurmCommands, order: Restart) -> Report:
        if self._options.way == "requeue":
            return requeue(slurm, self._notes, self._options, order)
        return Resubmission(slurm, self._notes, self._options, self._clock, order).run()

    def _isolate(self, slurm: SlurmCommands, name: str, mark: str, reason: str) -> Report:
        node = slurm.show_node(name)
        if node is None:
            return Report("refused", f"Slurm knows no node {name}")
        if node.is_drained:
            is_ours = node.mark == mark
            return Report("already" if is_ours else "refused", f"{name} is drained {_by_whom(node)}")
        words = write_mark(mark, reason)
        if self._options.dry_run:
            return Report("would", f'would drain {name} with the reason "{words}"')
        remark = _change(slurm, name, State="DRAIN", Reason=words)
        now = slurm.show_node(name)  # somebody may have been faster, or slower
        if now is None or now.mark != mark:
            return Report("failed", f"{name} was to be drained and is {_describe(now)}{remark}")
        return Report("done", f'{name} is drained with the reason "{words}"')

    def _release(self, slurm: SlurmCommands, name: str, mark: str) -> Report:
        node = slurm.show_node(name)
        if node is None:
            return Report("refused", f"Slurm knows no node {name}")
        if not node.is_drained:
            # Just undrained it is NOT_RESPONDING until slurmd has registered again, which it does by itself.
            outcome: Outcome = "refused" if "DOWN" in node.states else "already"
            return Report(outcome, f"{name} is not drained; it is {_describe(node)}")
        if node.mark != mark:
            return Report("refused", f"{name} was not drained under {mark}: it is drained {_by_whom(node)}")
        if self._options.dry_run:
            return Report("would", f"would undrain {name}")
        remark = _change(slurm, name, State="UNDRAIN")  # RESUME would also bring up a node that is down
        now = slurm.show_node(name)
        if now is None or now.is_drained:
            return Report("failed", f"{name} was to be undrained and is {_describe(now)}{remark}")
        return Report("done", f"{name} is undrained; it is {_describe(now)}")


def _change(slurm: SlurmCommands, node: str, **changes: str) -> str:
    """Change a node, and return what Slurm had against it.

    What counts is how the node is afterwards: just after slurmctld's start, UNDRAIN works and is called invalid.
    """
    try:
        slurm.update_node(node, **changes)
    except ControllerRefused as refusal:
        return f"; {refusal}"
    return ""


def _by_whom(node: SlurmNode) -> str:
    return f'by {node.who or "somebody"} since {node.when or "an unknown time"} with the reason "{node.why}"'


def _describe(node: SlurmNode | None) -> str:
    return "+".join(sorted(node.states)) if node else "unknown to Slurm"
