"""What a server answers, as values; incidents, verdicts, decisions and orders are those of lockstep itself.

The fields are those that a program needs; a server may tell more, and what is not named here is left out.
"""

from typing import Literal

from pydantic import Field

from lockstep.decision import Decision
from lockstep.execution import Execution, ExecutionState, Order, Outcome
from lockstep.verdict import Frozen, Incident

Condition = Literal["running", "slow", "hung", "crashed", "unseen", "ended"]


class Job(Frozen):
    """One attempt of a job, and how it is."""

    job: str
    attempt: int = 0
    condition: Condition
    because: str = Field("", description="the sentence of the verdict behind the condition; empty: there is none")
    ranks: int
    hosts: int
    first_ns: int
    last_ns: int = Field(description="last sign of life")
    step: int | None = Field(None, description="newest known training step")
    step_s: float | None = Field(None, description="median of its newest steps in seconds")
    incidents: tuple[str, ...] = Field((), description="ids of its open incidents")


class TrainingStep(Frozen):
    """One training step of a job over all ranks that tell of it."""

    attempt: int = 0
    step: int
    start_ns: int
    end_ns: int
    step_s: float = Field(description="of the slowest rank, in seconds")
    slowest_rank: int


class AgentView(Frozen):
    """The collector of a host, as of its last heartbeat."""

    host: str
    version: str
    is_silent: bool
    missing: tuple[str, ...] = Field((), description="sources without readings and since when, a sentence each")
    last_seen_ns: int
    lag_s: float = Field(description="how far what it has sent is behind its last heartbeat")
    dropped: int = Field(description="rows lost since its start")
    dropped_lately: int = Field(0, description="of these, in the last five minutes")
    spool_bytes: int


class Seat(Frozen):
    """A rank and where it runs."""

    rank: int
    host: str
    gpu: int | None = None


class Cells(Frozen):
    """The cells of a matrix that are known, as parallel columns."""

    src: tuple[int, ...] = Field(description="places of the senders in `ranks`")
    dst: tuple[int, ...] = Field(description="places of the receivers in `ranks`")
    ms: tuple[float, ...] = Field(description="delays in the unit of the matrix")


class Matrix(Frozen):
    """The delay matrix of a job, or of one of its communicators."""

    job: str
    attempt: int = 0
    comm: str | None = Field(None, description="id in decimal; None: all communicators together")
    from_ns: int
    to_ns: int
    ranks: tuple[Seat, ...]
    cells: Cells
    usual_ms: float | None = None
    unit: str


class IncidentFile(Incident):
    """An incident with what it turned out to be and the decisions on it."""

    outcome: Outcome | None = Field(None, description="as somebody confirmed it; None: nobody has so far")
    decisions: tuple[Decision, ...] = ()


class ListedDecision(Decision):
    """A decision, and how far it was carried out."""

    execution: ExecutionState | None = Field(None, description="None: nothing was done")


class DecisionFile(Decision):
    """A decision with what persons said to it and every step that was done."""

    orders: tuple[Order, ...] = ()
    execution: Execution | None = None
