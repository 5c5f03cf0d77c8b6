"""What every job controller can be asked for, and how it answers.

Each act carries a mark, the id of the decision it belongs to. The mark is left where the controller keeps its own
state (a drain reason, a comment of a job), so that the same act asked for twice is done once, also by a planner
that died in between and remembers nothing; and so that only what was isolated under a mark is released under it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

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


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a job again, elsewhere."""

    mark: str
    job: str  # as the controller calls it
    exclude: tuple[str, ...] = ()  # nodes it must not run on
    nnodes: int | None = None  # None: as many as before
    checkpoint: str | None = None  # LOCKSTEP_RESUME_FROM of the new attempt
    environment: Mapping[str, str] = field(default_factory=dict)  # further variables, such as the target layout


class Controller(Protocol):
    """A job controller. Every call ends within the time its constructor was given, and raises nothing but BadInput
    (a request that makes no sense) and ControllerDown (nobody answers); all else is a Report.
    """

    name: str

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
