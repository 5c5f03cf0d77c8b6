"""How Slurm starts a job again at once: cancel it, wait for its end, and submit its batch script without some nodes.

A note under the order's mark is kept before anything changes, and read first: asked again after a death in the
middle, this goes on where the first try ended. Two attempts never run at once, and a script is submitted once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import Literal

from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import ControllerDown, ControllerRefused
from planner.controllers.protocol import Report, Restart, find_variables
from planner.controllers.running import Notes
from planner.controllers.slurm_commands import SlurmCommands, SlurmOptions, own_user, was_never_sent
from planner.controllers.slurm_jobs import (
    EXCLUDED,
    SlurmJob,
    SlurmTimes,
    Submission,
    build_sbatch,
    explain_over,
    explain_unknown,
    fill_template,
    find_excluded,
    find_ours,
    why_not_submitted,
    without_ours,
    write_mark,
)

SUBMITTING, LOOKED = "submitting_ns", "looked_ns"  # in a note: when sbatch was called, when we last looked in vain
# MessageTimeout once for the command, which gives up then, and once for slurmctld to work off what it has taken.
_ANSWER_TIMES = 2


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where a lost submission is: it never came, it may still come, or nobody can tell any more."""

    state: Literal["absent", "open", "unknowable"]
    what: str = ""


def judge_arrival(note: Mapping[str, str], mark: str, times: SlurmTimes, now_ns: int) -> Arrival:
    """Return what it means that no job carries the mark of a note, looked for just now."""
    if SUBMITTING not in note:
        return Arrival("absent")
    job, called_ns = note["job"], int(note[SUBMITTING])
    since_call_s = (now_ns - called_ns) / NS_PER_S
    since_poll_s = (now_ns - int(note.get(LOOKED, called_ns))) / NS_PER_S
    if times.memory_s and since_poll_s >= times.memory_s:
        return Arrival(
            "unknowable",
            f"this needs a person: sbatch was called for job {job}, its answer is lost, and nobody has looked for "
            f"{since_poll_s:.0f} s, while Slurm forgets an ended job after {times.memory_s:g} s (MinJobAge); see "
            f'whether a job with the comment "{write_mark(mark)}" has run, and submit job {job} by hand if none has',
        )
    wait_s = _ANSWER_TIMES * times.answer_s
    if since_call_s < wait_s:
        return Arrival(
            "open",
            f"sbatch was called for job {job} {since_call_s:.0f} s ago and its answer is lost: it is called again "
            f'when no job with the comment "{write_mark(mark)}" has come after {wait_s:g} s',
        )
    return Arrival("absent")


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
