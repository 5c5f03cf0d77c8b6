"""What every job controller can be asked for, and how it answers.

Each act carries a mark, the id of the decision it belongs to. The mark is left where the controller keeps its own
state (a drain reason, a comment of a job), so that the same act asked for twice is done once, also by a planner
that died in between and remembers nothing; and so that only what was isolated under a mark is released under it.
Around any of them: the spelling of hosts, which telemetry may know with or without a domain, and the commands that a
person types who carries a decision out without the planner.
"""

import re
import shlex
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, get_args, runtime_checkable

from lockstep.decision import Action
from lockstep.errors import BadInput, ControllerDown, HalfDone
from lockstep.hostlists import match_hosts
from lockstep.in_job import IN_JOB_ACTS, Effect, InJobAct

Outcome = Literal[
    "done",  # it was carried out just now
    "already",  # it had been carried out under this mark before: nothing was changed
    "would",  # a dry run: nothing was changed
    "refused",  # the controller's state speaks against it, such as a node that somebody else has drained
    "failed",  # it was tried and went wrong, or the controller did not answer in time; it may be asked for again
]


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one act, in a sentence a person can read in the audit trail."""

    outcome: Outcome
    what: str
    job: str | None = None  # of a restart: the job as the controller calls it from now on
    is_half_done: bool = False  # of a restart that failed: the job may be stopped, so it must not be given up
    is_job_failed: bool = False  # of a watch: the job was started and has failed

    @property
    def is_good(self) -> bool:
        """Whether what was asked for holds now (or would, in a dry run)."""
        return self.outcome in ("done", "already", "would")


@dataclass(frozen=True, slots=True)
class Node:
    """A host as the controller sees it."""

    name: str
    is_usable: bool  # new work may start there
    mark: str | None = None  # of the decision that isolated it; None: not isolated, or not by us
    reason: str = ""  # why it is not usable, in the controller's words
    is_idle: bool | None = None  # no job has it; None: the controller does not say


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the controller sees it."""

    id: str
    state: Literal["waiting", "running", "ended", "failed"]
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    mark: str | None = None  # of the decision that started it
    can: tuple[InJobAct, ...] = ()  # what it has announced that it can do by itself
    replicas: int | None = None  # of a job that has announced something, when it is whole
    stages: int = 1  # of each of them
    micro_batches: int | None = None  # of each of them in a step
    speed_after: float | None = None  # share of its speed with which it reckons without one process
    standstill_s: float | None = None  # that its last loss of a process has cost


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a job again, elsewhere."""

    mark: str
    job: str  # as the controller calls it
    exclude: tuple[str, ...] = ()  # nodes it must not run on
    nnodes: int | None = None  # None: as many as before
    checkpoint: str | None = None  # LOCKSTEP_RESUME_FROM of the new attempt
    environment: Mapping[str, str] = field(default_factory=dict)  # further variables, such as the target layout


@dataclass(frozen=True, slots=True)
class Shrink:
    """Let a job go on without what it has on some nodes."""

    mark: str
    job: str
    act: InJobAct
    nodes: tuple[str, ...]


ControllerAct = Literal["isolate", "release", "restart", "reattempt"]
EVERY_ACT: frozenset[ControllerAct] = frozenset(get_args(ControllerAct))
NOT_IN_PLACE: frozenset[ControllerAct] = EVERY_ACT - {"reattempt"}  # of those that start whole jobs only


class Controller(Protocol):
    """A job controller. Every call ends within the time its constructor was given, and raises nothing but BadInput
    (a request that makes no sense) and ControllerDown (nobody answers); all else is a Report.
    """

    name: str

    @property
    def acts(self) -> frozenset[ControllerAct]:
        """What it can do: nothing else is decided, so that nobody waits for a refusal."""
        ...

    @property
    def restarts_whole_job(self) -> bool:
        """Whether a restart of processes is a new start of the whole job: a new allocation, and all ranks begin."""
        ...

    def nodes(self) -> Sequence[Node]:
        """Return all nodes, or those this controller can know of."""
        ...

    def job(self, job: str) -> JobView | None:
        """Return a job; None: the controller does not know it (any more)."""
        ...

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        """Let no new work start on a node; work that runs there goes on."""
        ...

    def release(self, node: str, mark: str) -> Report:
        """Give a node back to service, if it was isolated under this mark; `already` when it is usable."""
        ...

    def restart(self, order: Restart) -> Report:
        """Stop a job if it still runs and start it again; `already` when the mark has been started before."""
        ...

    def reattempt(self, job: str, mark: str) -> Report:
        """Let a job try again in place, on the nodes it has; `refused` where the controller cannot do that."""
        ...


@runtime_checkable
class InJob(Protocol):
    """A controller that can also speak to the job itself."""

    def shrink(self, order: Shrink) -> Report:
        """Let a job go on without what it has on some nodes; `already` when it does."""
        ...

    def effect(self, job: str, mark: str) -> Effect | None:
        """Return what that has cost and brought, as the job measures it; None: no step is settled since."""
        ...


def report_half_done(restart: Callable[[], Report], is_begun: Callable[[], bool]) -> Report:
    """Return what became of a restart, or raise HalfDone: one that failed once it was begun must not be given up."""
    try:
        report = restart()
    except ControllerDown as down:
        raise (HalfDone(str(down)) if is_begun() else down) from None
    return replace(report, is_half_done=report.outcome == "failed" and is_begun())


RESUME_VARIABLE = "LOCKSTEP_RESUME_FROM"
_MARK = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,252}", re.ASCII)  # as long as a host's name may be
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def check_mark(mark: str) -> str:
    """Return a mark that fits into reasons, comments and file names; BadInput for any other."""
    if not _MARK.fullmatch(mark):
        raise BadInput(f"{mark!r} is no mark: up to 100 letters, digits, dots, dashes and underscores")
    return mark


def check_name(name: str, what: str) -> str:
    """Return a name of one node or job; BadInput for any other, such as a list of hosts."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is no name of a {what}: letters, digits, dots, dashes and underscores")
    return name


def check_order(order: Restart) -> None:
    """Raise BadInput for an order that no command line can carry."""
    check_mark(order.mark)
    check_name(order.job, "job")
    for node in order.exclude:
        check_name(node, "node")
    if order.nnodes is not None and order.nnodes < 1:
        raise BadInput(f"job {order.job} cannot run on {order.nnodes} nodes")
    for name, value in order.environment.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise BadInput(f"{name!r} is no name of a variable, or its value has a zero byte")


def find_variables(order: Restart) -> dict[str, str]:
    """Return what the new attempt finds in its environment."""
    resume = {RESUME_VARIABLE: order.checkpoint} if order.checkpoint is not None else {}
    return dict(order.environment) | resume


def check_template(template: Sequence[str], fields: Sequence[str]) -> None:
    """Raise BadInput for a template with a field that we do not fill."""
    for word in template:
        try:
            unknown = {name for _, name, _, _ in string.Formatter().parse(word) if name is not None} - set(fields)
        except ValueError as failure:
            raise BadInput(f"{word!r} is no template: {failure}") from None
        if unknown:
            raise BadInput(f"{word!r} has unknown fields {sorted(unknown)}; known are {', '.join(fields)}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be done."""

    job: str
    nodes: tuple[str, ...] = ()  # to take out of service
    reason: str = ""
    nnodes: int | None = None  # that the job starts again on; None: as many as before
    convert: str | None = None  # a command that must come before


def list_commands(controller: str, action: Action, wanted: Wanted) -> tuple[str, ...]:
    """Return commands in their order; none for controllers that a site knows better than we do.

    >>> list_commands("slurm", "replace", Wanted("4711", ("h3",), "gone"))
    ('scontrol update NodeName=h3 State=DRAIN Reason=gone', 'scontrol requeue 4711')
    """
    write = _BY_CONTROLLER.get(controller)
    if write is None or action in ("none", "reroute", "reattempt", *IN_JOB_ACTS):
        return ()
    return (*([wanted.convert] if wanted.convert else []), *write(wanted))


def _slurm(wanted: Wanted) -> Iterator[str]:
    job = shlex.quote(wanted.job)
    if wanted.nodes:
        names = shlex.quote(",".join(wanted.nodes))
        yield f"scontrol update NodeName={names} State=DRAIN Reason={shlex.quote(wanted.reason)}"
    if wanted.nnodes is None:
        yield f"scontrol requeue {job}"
    else:  # Slurm changes the size of waiting jobs only
        yield f"scontrol requeuehold {job}"
        yield f"scontrol update JobId={job} NumNodes={wanted.nnodes}"
        yield f"scontrol release {job}"


def _kubernetes(wanted: Wanted) -> Iterator[str]:
    for node in wanted.nodes:
        yield f"kubectl cordon {shlex.quote(node)}"
    namespace, _, name = wanted.job.rpartition("/")
    where = f" -n {shlex.quote(namespace)}" if namespace else ""
    if wanted.nnodes is None:
        yield f"kubectl delete pods{where} -l jobset.sigs.k8s.io/jobset-name={shlex.quote(name)}"


_BY_CONTROLLER: Mapping[str, Callable[[Wanted], Iterator[str]]] = {"slurm": _slurm, "kubernetes": _kubernetes}


class OwnSpelling:
    """What is asked for under a host's name reaches the one node that it means; answers are handed on as they are."""

    def __init__(self, controller: Controller) -> None:
        self.name = controller.name
        self._controller = controller
        self._nodes: frozenset[str] = frozenset()  # as it called them last

    @property
    def acts(self) -> frozenset[ControllerAct]:
        return self._controller.acts

    @property
    def restarts_whole_job(self) -> bool:
        return self._controller.restarts_whole_job

    def nodes(self) -> Sequence[Node]:
        found = self._controller.nodes()
        self._nodes = frozenset(node.name for node in found)
        return found

    def job(self, job: str) -> JobView | None:
        return self._controller.job(job)

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        return self._controller.isolate(self._spell(node)[0], mark, reason)

    def release(self, node: str, mark: str) -> Report:
        return self._controller.release(self._spell(node)[0], mark)

    def restart(self, order: Restart) -> Report:
        return self._controller.restart(replace(order, exclude=self._spell(*order.exclude)))

    def reattempt(self, job: str, mark: str) -> Report:
        return self._controller.reattempt(job, mark)

    def _spell(self, *hosts: str) -> tuple[str, ...]:
        """Return the hosts as the controller calls them; one that it has not told of stays as it is."""
        if not self._nodes.issuperset(hosts):
            self.nodes()
        meant = match_hosts(hosts, self._nodes)
        return tuple(meant.get(host, host) for host in hosts)
