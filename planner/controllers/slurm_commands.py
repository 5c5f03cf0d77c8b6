"""Slurm's own commands, each as a function that returns values or says why not.

slurm_rest.py has the same functions by way of slurmrestd, where that offers them.
"""

import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NoReturn

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput, ControllerDown, ControllerRefused
from planner.controllers.protocol import Restart, check_template
from planner.controllers.running import Deadline, Finished, make_environment, run_within
from planner.controllers.slurm_jobs import (
    TEMPLATE_FIELDS,
    SlurmJob,
    SlurmNode,
    SlurmTimes,
    find_excluded,
    find_marked,
    find_shape,
    parse_jobs,
    parse_nodes,
    parse_times,
    write_mark,
)

# What the commands say, in any version from 20.11 on, when slurmctld, its configuration or munged cannot be reached.
_NOBODY_ANSWERS = (
    "Unable to contact slurm controller",
    "Unable to process configuration file",
    "Could not establish a configuration source",
    "Socket timed out",
    "Zero Bytes were transmitted or received",
    "Communication connection failure",
    "controller in standby mode",
    "If munged is up",
    "Protocol authentication error",
)
# What is said where no request has left this machine; after all else that goes wrong, one may be on its way.
_NEVER_SENT = (
    "(connect failure)",
    "cannot be started",
    "If munged is up",
    "Unable to process configuration file",
    "Could not establish a configuration source",
)
# What sbatch says of a job that it would take, and that starts when something is free again.
_NOT_NOW = (
    "Job violates accounting/QOS policy",
    "Requested nodes are busy",
    "Requested partition configuration not available now",
    "Required node not available",
    "Requested reservation is in use",
    "Requested reservation not usable now",
    "Switch resources currently not available",
)
_LEFT_S = 5.0  # of a call's time: waiting for an old job must not eat the time to start the new one
_FOR_JOBS = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ")
_NOT_ALLOWED = ("Invalid user id", "Access/permission denied")
_UNKNOWN = ("not found", "Invalid job id specified", "Invalid node name specified")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Where Slurm's commands are and how jobs are started again."""

    spool: Path  # batch scripts are kept here before their job is cancelled; it must outlive the planner
    timeout_s: float = 20.0  # for each call; Slurm's commands need 9 s to find out that slurmctld is down
    dry_run: bool = False
    way: Literal["submit", "requeue"] = "submit"  # a requeued job first waits cred_expire, 120 s unless configured
    resubmit: tuple[str, ...] = ()  # a site's own command instead of sbatch; prints the new job's number last
    grace_s: float = 5.0  # after KillWait, then nodes that are taken out keep the new job waiting no longer
    environment: Mapping[str, str] = field(default_factory=dict)  # such as SLURM_CONF
    scontrol: str = "scontrol"
    sbatch: str = "sbatch"
    scancel: str = "scancel"
    squeue: str = "squeue"
    rest: str | None = None  # slurmrestd as unix:///run/slurmrestd.socket or http://host:6820; None: commands alone
    rest_token_file: Path | None = (
        None  # a JSON web token (scontrol token), read anew each time; None: by our user id
    )
    rest_user: str | None = None  # whom the token is for; None: our own user

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.grace_s < 0:
            raise BadInput(f"timeout_s={self.timeout_s} and grace_s={self.grace_s} must be positive")
        check_template(self.resubmit, TEMPLATE_FIELDS)
        if self.resubmit and not any("{comment}" in word for word in self.resubmit):
            raise BadInput(f"{self.resubmit} must set the job's {{comment}}: by it a job is known that we submitted")
        if self.rest is not None and not self.rest.startswith(("unix:///", "http://", "https://")):
            raise BadInput(f"rest={self.rest!r} is no unix:///path and no http://host:port of a slurmrestd")


class SlurmCommands:
    """The commands of one call, which share its time; ControllerRefused, or ControllerDown if nobody answers."""

    def __init__(self, options: SlurmOptions) -> None:
        self._options = options
        self.deadline = Deadline(options.timeout_s)

    def wait_until(self, is_so: Callable[[], bool], at_most_s: float) -> bool:
        """Wait until it is so and return whether it is, while enough of the call's time is left to act on it."""
        return self.deadline.wait_until(is_so, max(self.deadline.left_s - at_most_s, _LEFT_S))

    def show_nodes(self) -> list[SlurmNode]:
        return parse_nodes(self._ask(self._options.scontrol, "show", "node", "--all", "--oneliner").out)

    def show_node(self, name: str) -> SlurmNode | None:
        """Return a node; None when Slurm knows none of that very name (`ALL` is a name to scontrol)."""
        done = self._run([self._options.scontrol, "show", "node", name, "--oneliner"])
        if done.code and not is_unknown(done.err + done.out):
            _refuse(done)
        return next((node for node in parse_nodes(done.out) if node.name == name), None)

    def without_unknown(self, order: Restart) -> Restart:
        """Return an order without nodes that Slurm does not know (any more): it would refuse the whole job."""
        known = {node.name for node in self.show_nodes()} if order.exclude else set()
        return replace(order, exclude=tuple(node for node in order.exclude if node in known))

    def view_jobs(self, job: str) -> list[SlurmJob]:
        """Return what is to be seen of a job, or of all tasks of an array: state, nodes, restarts, owner, comment."""
        return self.show_jobs(job)

    def show_jobs(self, job: str) -> list[SlurmJob]:
        """Return a job in sbatch's words, or all tasks of an array; none when Slurm does not know it (any more)."""
        done = self._run([self._options.scontrol, "show", "job", job, "--all", "--oneliner"])
        if done.code and not is_unknown(done.err + done.out):
            _refuse(done)
        return parse_jobs(done.out)

    def find_marked(self, mark: str) -> str | None:
        """Return the job, waiting, running or ended, that was submitted under a mark."""
        words = ("--all", "--states=all", "--noheader", "--format=%A|%T|%k")
        return find_marked(self._ask(self._options.squeue, *words).out, mark)

    def read_times(self) -> SlurmTimes:
        """Return how long this Slurm waits and remembers."""
        return parse_times(self._ask(self._options.scontrol, "show", "config").out)

    def read_script(self, job: str) -> str:
        """Return a job's batch script."""
        done = self._ask(self._options.scontrol, "write", "batch_script", job, "-")
        if not done.out.startswith("#!"):  # it ends with 0 also when it was not allowed to
            raise ControllerRefused(f"the batch script of job {job} cannot be had: {done.complaint}")
        return done.out

    def update_node(self, name: str, **changes: str) -> None:
        self._ask(self._options.scontrol, "update", f"NodeName={name}", *(f"{k}={v}" for k, v in changes.items()))

    def change_node(self, name: str, **changes: str) -> str:
        """Change a node, and return what Slurm had against it.

        What counts is how the node is afterwards: just after slurmctld's start, UNDRAIN works and is called invalid.
        """
        try:
            self.update_node(name, **changes)
        except ControllerRefused as refusal:
            return f"; {refusal}"
        return ""

    def update_job(self, job: str, changes: Mapping[str, str]) -> None:
        self._ask(self._options.scontrol, "update", f"JobId={job}", *(f"{k}={v}" for k, v in changes.items()))

    def cancel(self, job: str) -> None:
        self._ask(self._options.scancel, job)

    def requeue_and_hold(self, job: str) -> None:
        self._ask(self._options.scontrol, "requeuehold", job)

    def release_job(self, job: str) -> None:
        self._ask(self._options.scontrol, "release", job)

    def why_never(self, command: Sequence[str], script: str, user: str) -> str | None:
        """Return why sbatch would not take a job; None: it would, or only what lacks at the moment forbids it.

        All that we do not know counts as a no: the job is about to be cancelled for this command.
        """
        trial = [command[0], "--test-only", *command[1:]]
        extra = dict(self._options.environment) | _home_of(user)
        done = run_within(trial, self.deadline, make_environment(extra), script)
        if any(words in done.err for words in _NOBODY_ANSWERS):
            _refuse(done)
        return done.complaint if done.code and not any(words in done.err for words in _NOT_NOW) else None

    def submit(self, command: Sequence[str], script: str, variables: Mapping[str, str], user: str) -> str:
        """Run sbatch or a site's own command and return the number of the new job."""
        extra = dict(self._options.environment) | dict(variables) | _home_of(user)
        is_ours = bool(self._options.resubmit)  # a site's own command is; sbatch hands its environment to the job
        plain = {name: os.environ[name] for name in _FOR_JOBS if name in os.environ}  # anybody's job may see these
        environment = make_environment(extra) if is_ours else plain | extra
        done = run_within(command, self.deadline, environment, script)
        if done.code:
            _refuse(done)
        words = done.out.replace(";", " ").split()  # --parsable prints "17;cluster" where there are several
        numbers = [word for word in words if word.isdigit()]
        if not numbers:
            raise ControllerRefused(f"{command[0]} ended well but printed no job number: {done.out.strip()[:200]!r}")
        return numbers[-1]

    def _ask(self, *command: str) -> Finished:
        done = self._run(command)
        if done.code:
            _refuse(done)
        return done

    def _run(self, command: Sequence[str]) -> Finished:
        return run_within(command, self.deadline, make_environment(self._options.environment))


def find_changes(job: SlurmJob, order: Restart, has_list: bool) -> dict[str, str]:
    """Return what a requeued job has to be changed to, while it is held."""
    # A requeued job keeps its environment, so the comment is the only place where its script can find the checkpoint.
    resume = f"resume from {order.checkpoint}" if order.checkpoint is not None else ""
    changes = {"Comment": write_mark(order.mark, resume)}
    excluded = find_excluded(job, order)
    changes |= {"ExcNodeList": excluded} if excluded or has_list else {}
    return changes | (find_shape(job, order.nnodes) if order.nnodes else {})


def own_user() -> str:
    """Return who asks Slurm: the user of this process."""
    return pwd.getpwuid(os.geteuid()).pw_name


def raise_refusal(message: str, complaint: str, user: str) -> NoReturn:
    """Raise what Slurm said as ControllerDown when slurmctld did not answer, else as ControllerRefused."""
    if any(words in message for words in _NOBODY_ANSWERS):
        raise ControllerDown(f"Slurm does not answer: {complaint}")
    if any(words in message for words in _NOT_ALLOWED):
        raise ControllerRefused(f"Slurm does not allow it to {user}, who must be an operator: {complaint}")
    raise ControllerRefused(complaint)


def was_never_sent(failure: ControllerDown) -> bool:
    """Return whether a command that got no answer cannot have changed anything."""
    return any(words in str(failure) for words in _NEVER_SENT)


def is_unknown(message: str) -> bool:
    """Return whether Slurm says that it has no such node or job."""
    return any(words in message for words in _UNKNOWN)


def _refuse(done: Finished) -> NoReturn:
    raise_refusal(done.err, done.complaint, own_user())


def _home_of(user: str) -> dict[str, str]:
    """Return what tells a job who it is, where it is not ours: our own home would be none of its business."""
    if not user or user == own_user():
        return {}
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise ControllerRefused(f"this machine knows no user {user} to submit the job as") from None
    return {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user, "SHELL": entry.pw_shell}


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
