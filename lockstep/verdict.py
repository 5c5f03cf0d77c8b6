"""What the analyzer says: one faulty part, how sure, why, and why not another."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lockstep.clock import NS_PER_S

FaultClass = Literal[
    "comm_slow", "noncomm_slow", "global_slow", "comm_hang", "noncomm_hang", "crash", "software", "telemetry_lost"
]
Side = Literal["tx", "rx"]
Grade = Literal["isolate", "alert", "note"]  # how sure it is, and what that justifies
Severity = Literal["critical", "warning", "info"]  # what it does to the job, however sure the part is

STOPS_JOB: frozenset[FaultClass] = frozenset({"comm_hang", "noncomm_hang", "crash"})  # the job does not go on at all


ALARM_RATIO = 3.0  # steps that take this many times the usual are as bad as a hang (Unicron, section 4)
_WORTH_ACTING = 1.05  # times the usual: what costs less is not worth waking anybody


def judge_severity(stands_still: bool, peak_ratio: float | None) -> Severity:
    """Return how bad a fault is for its job; what nobody knows is worth a look."""
    if stands_still or (peak_ratio is not None and peak_ratio >= ALARM_RATIO):
        return "critical"
    return "info" if peak_ratio is not None and peak_ratio < _WORTH_ACTING else "warning"


class Frozen(BaseModel):
    """Base of the values that travel as JSON: unchangeable, and strict about what they are given."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Impact(Frozen):
    """What the fault costs the job."""

    severity: Severity = Field("warning", description="how bad it is at its worst; `grade` says how sure the part is")
    stands_still: bool = Field(False, description="whether the job does nothing at all, whatever the class")
    step_time_ratio: float | None = Field(None, description="step time now over step time before; None: unknown")
    peak_ratio: float | None = Field(None, description="the largest step_time_ratio so far; None: unknown")
    mean_ratio: float | None = Field(None, description="time since it began over the time its work takes usually")
    usual_step_s: float | None = Field(None, description="step time before it began, in seconds; None: unknown")
    ranks_waiting: int = Field(ge=0, description="ranks held up by the part")
    gpus: int | None = Field(None, ge=0, description="of the job, which all lose the time; None: not recorded")
    gpu_hours: float | None = Field(None, ge=0, description="lost since it began, and never less; None: unknown")


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

    @property
    def stands_still(self) -> bool:
        """Whether the job does nothing while the fault lasts; verdicts of older versions say it by their class."""
        return self.impact.stands_still or self.fault_class in STOPS_JOB

    @property
    def severity(self) -> Severity:
        """How bad it is for the job: one that stands still is critical, however sure the part is."""
        return "critical" if self.stands_still else self.impact.severity

    @property
    def gpus(self) -> int:
        """GPUs that lose the time: all of the job; in older verdicts the part and who waits for it."""
        return self.impact.ranks_waiting + 1 if self.impact.gpus is None else self.impact.gpus

    @property
    def speed(self) -> float | None:
        """Share of its usual speed at which the job goes on; None: unknown."""
        ratio = self.impact.step_time_ratio
        if self.stands_still:
            return 0.0
        return min(1.0, 1.0 / ratio) if ratio and ratio > 0 else None

    @property
    def lost_per_hour(self) -> float | None:
        """GPU-hours that every hour of the fault costs from now on; None: unknown."""
        return None if self.speed is None else self.gpus * (1 - self.speed)

    def lost_gpu_hours(self, now_ns: int | None = None) -> float | None:
        """Return the GPU-hours that the fault has cost so far; None: unknown.

        Older verdicts have no sum of it: there all of the time counts at the rate of its newest moment.
        """
        if self.impact.gpu_hours is not None or self.lost_per_hour is None:
            return self.impact.gpu_hours
        return self.lost_per_hour * max((now_ns or self.last_seen_ns) - self.since_ns, 0) / (3_600 * NS_PER_S)

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
    unseen_since_ns: int | None = Field(
        None, ge=0, description="no telemetry of its part since then; None: it is seen"
    )
    unseen_host: str | None = Field(
        None, description="the host whose telemetry is missing; None: it is seen, or nobody knows"
    )
    unseen_source: str | None = Field(
        None, description="the source on that host that gives no readings; None: nothing comes from the host at all"
    )
    flaps: int = Field(0, ge=0, description="times it went away and came back")
    verdict: Verdict = Field(description="the newest one")
