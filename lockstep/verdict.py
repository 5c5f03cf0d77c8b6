"""What the analyzer says: one faulty part, how sure, why, and why not another."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FaultClass = Literal["comm_slow", "noncomm_slow", "global_slow", "comm_hang", "noncomm_hang", "crash", "software"]
Side = Literal["tx", "rx"]
Grade = Literal["isolate", "alert", "note"]


class Frozen(BaseModel):
    """Base of the values that travel as JSON: unchangeable, and strict about what they are given."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Impact(Frozen):
    """What the fault costs the job."""

    step_time_ratio: float | None = Field(None, description="step time now over step time before; None: unknown")
    ranks_waiting: int = Field(ge=0, description="ranks held up by the part")
    gpu_hours: float | None = Field(None, ge=0, description="lost since it began; None: unknown")


class RuledOut(Frozen):
    """A part that was suspected and cleared."""

    component: str
    because: str


class Verdict(Frozen):
    """One faulty part of one job; names follow the table of verdicts in docs/methods.md."""

    id: str = Field(description="the same for the same fault while it lasts")
    job: str
    attempt: int = Field(0, ge=0)
    fault_class: FaultClass = Field(alias="class")
    component: str = Field(description="kind:name, such as nic:h3/eth1 or link:leaf1--spine2")
    side: Side | None = Field(None, description="direction at fault; None: both, or it has none")
    confidence: float = Field(ge=0, le=1)
    grade: Grade = Field(description="isolate only for what would justify draining a node")
    since_ns: int = Field(ge=0)
    last_seen_ns: int = Field(ge=0)
    impact: Impact
    reason: str = Field(description="one sentence a person can act on")
    evidence: tuple[dict[str, Any], ...] = ()  # Any: each kind of evidence has its own figures
    ruled_out: tuple[RuledOut, ...] = ()
    ambiguous_with: tuple[str, ...] = Field((), description="parts that the data cannot tell from this one")
    coverage: float = Field(ge=0, le=1, description="share of the job's hosts that was seen")

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as it appears in the API, in captures and on standard output."""
        return self.model_dump(by_alias=True)


class Incident(Frozen):
    """One fault of one job from its first verdict to its end."""

    id: str
    job: str
    attempt: int = Field(0, ge=0)
    state: Literal["open", "closed"]
    opened_ns: int = Field(ge=0)
    updated_ns: int = Field(ge=0)  # end of the newest window in which its job was evaluated
    closed_ns: int | None = Field(None, ge=0)
    closed_because: str | None = None
    flaps: int = Field(0, ge=0, description="times it went away and came back")
    verdict: Verdict = Field(description="the newest one")
