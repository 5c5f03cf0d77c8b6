"""Slurm as a controller: nodes are drained and undrained, jobs cancelled and submitted again without a node.

Marks are left in the reason of a drained node (`lockstep MARK: why`) and in the comment of a submitted job
(`lockstep MARK`). A job's batch script is kept in a spool directory before the job is cancelled, because Slurm
forgets ended jobs (MinJobAge, 300 s unless configured): a planner that dies between scancel and sbatch finds all it
needs, and goes on where it ended. Two attempts never run at once, and a script is submitted once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from tempfile import NamedTemporaryFile

from lockstep.clock import NS_PER_S, Clock, SystemClock
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
from planner.controllers.slurm_commands import (
    LOOKED,
    SUBMITTING,
    SlurmCommands,
    SlurmOptions,
    find_changes,
    judge_arrival,
    own_user,
    was_never_sent,
)
from planner.controllers.slurm_jobs import (
    EXCLUDED,
    SlurmJob,
    SlurmNode,
    Submission,
    build_sbatch,
    explain_over,
    explain_unknown,
    fill_template,
    find_excluded,
    find_ours,
    why_not_requeued,
    why_not_submitted,
    without_ours,
    write_mark,
)
from planner.controllers.slurm_rest import SlurmRest, Slurmrestd

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
    slurm.update_job(job.id, find_changes(plain, order, has_list="ExcNodeList" in job.fields))
    slurm.release_job(job.id)
    notes.write(order.mark, {"job": job.id, "new": job.id} | ours)
    lost = ", ".join(sorted(find_variables(order)))
    without = f", and without {lost}, as it keeps its environment" if lost else ""
    return Report("done", f"job {job.id} is requeued; {_REMARK}{without}", job.id)


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
            return Report("already" if is_ours else "refused", f"{name} is drained {node.by_whom}")
        words = write_mark(mark, reason)
        if self._options.dry_run:
            return Report("would", f'would drain {name} with the reason "{words}"')
        remark = slurm.change_node(name, State="DRAIN", Reason=words)
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
            return Report("refused", f"{name} was not drained under {mark}: it is drained {node.by_whom}")
        if self._options.dry_run:
            return Report("would", f"would undrain {name}")
        remark = slurm.change_node(name, State="UNDRAIN")  # RESUME would also bring up a node that is down
        now = slurm.show_node(name)
        if now is None or now.is_drained:
            return Report("failed", f"{name} was to be undrained and is {_describe(now)}{remark}")
        return Report("done", f"{name} is undrained; it is {_describe(now)}")


def _describe(node: SlurmNode | None) -> str:
    return "+".join(sorted(node.states)) if node else "unknown to Slurm"


_CANCELLING = "cancelling_ns"
Note = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Resubmission:
    """One order, within the time of one call."""

    slurm: SlurmCommands
    notes: Notes
    options: SlurmOptions
    clock: Clock
    order: Restart

    def run(self) -> Report:
        """Cancel a job and submit its batch script again, without the order's nodes."""
        note = self.notes.read(self.order.mark) or {}
        return self._find_earlier(note) or self._submit_again(note)

    def _find_earlier(self, note: Note) -> Report | None:
        """Return what an earlier try has led to; None: it has led to nothing, and the way is free."""
        order, before_ns = self.order, self.clock.now_ns()
        known = note.get("new") or self.slurm.find_marked(order.mark)
        if known:
            if note and "new" not in note and not self.options.dry_run:  # it outlives the job's own comment
                self.notes.write(order.mark, {"job": order.job, "new": known, EXCLUDED: note.get(EXCLUDED, "")})
            return Report("already", f"job {order.job} was submitted again as job {known} under {order.mark}", known)
        if SUBMITTING not in note:
            return None
        arrival = judge_arrival(note, order.mark, self.slurm.read_times(), self.clock.now_ns())
        if arrival.state == "unknowable":
            return Report("refused", arrival.what)
        if not self.options.dry_run:
            self.notes.write(order.mark, {**note, LOOKED: str(before_ns)})
        return Report("failed", arrival.what) if arrival.state == "open" else None

    def _submit_again(self, note: Note) -> Report:
        order = self.slurm.without_unknown(self.order)
        submission = self._find_submission(note)
        if isinstance(submission, Report):
            return submission
        command = build_sbatch(self.options.sbatch, submission, order, own_user())
        # With a note, the job may be cancelled already.
        is_ours_to_try = not self.options.resubmit and "script" not in note
        why_never = self.slurm.why_never(command, submission.script, submission.job.user) if is_ours_to_try else None
        if why_never:
            return Report("refused", f"job {order.job} is left as it is, as it could not start again: {why_never}")
        if self.options.dry_run:
            return Report("would", f"would cancel job {order.job} and run {' '.join(command)}")
        kept = self._keep(note, submission)
        remark = self._end_old(kept, order)
        if isinstance(remark, Report):
            return remark
        new = self._submit_once(kept, submission, order)
        without = find_excluded(submission.job, order)
        where = f", to run without {without}" if without else ""
        return Report("done", f"job {order.job} is cancelled and submitted again as job {new}{where}{remark}", new)

    def _find_submission(self, note: Note) -> Submission | Report:
        """Return what an earlier try kept, or what Slurm says now; or a refusal."""
        job = self.order.job
        if note.get("job") == job and "script" in note:
            return Submission(SlurmJob(job, "ended", json.loads(note["fields"])), note["script"])
        found = self.slurm.show_jobs(job)
        if not found:
            return Report("refused", explain_unknown(job))
        if not found[0].user:  # also a site's own command must not guess
            return Report("refused", f"job {job} has no owner, or two: its name or comment looks like a UserId")
        if found[0].state == "ended":  # not by us: we keep a note before we cancel
            return Report("refused", explain_over(found[0]))
        why_not = why_not_submitted(found[0])
        if why_not and not self.options.resubmit:
            return Report("refused", why_not)
        return Submission(without_ours(found[0], self.notes), "" if why_not else self.slurm.read_script(job))

    def _keep(self, note: Note, submission: Submission) -> Note:
        """Write down all that the new attempt needs, and since when the old one is being ended."""
        kept = {
            "job": self.order.job,
            "script": submission.script,
            "fields": json.dumps(dict(submission.job.fields)),
            EXCLUDED: find_ours(submission.job, self.order),
            _CANCELLING: note.get(_CANCELLING, str(self.clock.now_ns())),
        }
        self.notes.write(self.order.mark, kept)
        return kept

    def _end_old(self, note: Note, order: Restart) -> str | Report:
        """Cancel the old job and wait for its end: two attempts must not write the same checkpoint.

        Return a remark, or a report when it is still ending. After KillWait all that a living slurmd can kill is
        dead; what then still ends only on nodes that are taken out (dead ones, most often) is not waited for.
        """
        if not self._find_alive():
            return ""
        self.slurm.cancel(order.job)
        times = self.slurm.read_times()
        patience_s = times.kill_wait_s + self.options.grace_s
        if self.slurm.wait_until(lambda: not self._find_alive(), patience_s):
            return ""
        left = {node for each in self._find_alive() for node in each.nodes}
        where = ", ".join(sorted(left)) or "its nodes"
        waited_s = (self.clock.now_ns() - int(note[_CANCELLING])) / NS_PER_S
        if left and left <= set(order.exclude) and waited_s >= patience_s:
            return f"; job {order.job} has not quite ended on {where}, which the new one does not use"
        return Report(
            "failed",
            f"job {order.job} is cancelled and after {waited_s:.0f} s still ending on {where} "
            f"(KillWait is {times.kill_wait_s:g} s): it is submitted again when it has ended",
        )

    def _find_alive(self) -> list[SlurmJob]:
        return [each for each in self.slurm.view_jobs(self.order.job) if each.state in ("waiting", "running")]

    def _submit_once(self, kept: Note, submission: Submission, order: Restart) -> str:
        """Write down that sbatch is called, call it, and write down the new job; a clear no leaves all as before."""
        self.notes.write(order.mark, {**kept, SUBMITTING: str(self.clock.now_ns())})
        try:
            new = self._submit(submission, order)
        except (ControllerRefused, ControllerDown) as failure:
            if isinstance(failure, ControllerRefused) or (was_never_sent(failure) and not self.options.resubmit):
                self.notes.write(order.mark, kept)
            raise
        self.notes.write(order.mark, {"job": order.job, "new": new, EXCLUDED: kept[EXCLUDED]})
        return new

    def _submit(self, submission: Submission, order: Restart) -> str:
        """Run sbatch or the site's own command, and return the new job."""
        user, variables = submission.job.user, find_variables(order)
        if not self.options.resubmit:
            command = build_sbatch(self.options.sbatch, submission, order, own_user())
            return self.slurm.submit(command, submission.script, variables, user)
        with NamedTemporaryFile("w", prefix="lockstep-", suffix=".sh") as script:
            script.write(submission.script)
            script.flush()
            command = fill_template(self.options.resubmit, submission, order, script.name)
            return self.slurm.submit(command, submission.script, variables, user)
