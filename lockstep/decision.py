"""What the planner says: one action for one incident, its cost, and what every alternative would cost."""

from typing import Any, Literal

from pydantic import AliasChoices, Field

from lockstep.verdict import Frozen, Grade, Verdict

Mode = Literal["observe", "propose", "execute"]
Action = Literal[
    "none",
    "reroute",
    "reattempt",
    "restart_process",
    "recycle",
    "drop_replica",
    "reconfigure",
    "replace",
    "grow",
]

ManualReason = Literal[
    "no_controller",  # nobody is set who could carry it out
    "unable",  # the controller cannot do such an act
    "observed",  # planner.modes leaves the action at observe
    "proposed",  # planner.modes asks a person each time
    "held",  # it would be automatic; held_because says what speaks against it now
]


class Isolation(Frozen):
    """A part to take out of service."""

    component: str
    node: str | None = Field(None, description="the host that is drained for it; None: not known")
    reason: str
    evidence: tuple[str, ...] = Field((), description="ids of the verdicts it rests on")
    until_ns: int | None = Field(
        None, description="when it is tested, and ends if it is healthy; None: when a person ends it"
    )


class Cost(Frozen):
    """What an action costs; None means that nothing is known to estimate it from."""

    downtime_s: float | None = None
    throughput_after: float | None = Field(
        None,
        validation_alias=AliasChoices("throughput_after", "waf_after"),  # its name in decisions stored before
        description="weighted throughput afterwards, 1 is full speed",
    )
    gpu_hours: float | None = Field(None, description="expected to be lost within the decision's horizon")
    money: float | None = Field(
        None, description="the same in the currency of planner.gpu_hour_price; None: no price"
    )
    risk: float | None = Field(None, ge=0, le=1, description="chance that it does not help and more must follow")


class Option(Frozen):
    """An action that was considered."""

    action: Action
    cost: Cost
    reason: str


class Shift(Frozen):
    """What would become of one job, if nodes were shared anew among all."""

    job: str
    nodes_before: int = Field(ge=0)
    nodes_after: int = Field(ge=0)
    change: str
    downtime_s: float = Field(ge=0)


class AllJobs(Frozen):
    """The best sharing of nodes among all jobs after the fault; what follows for a job is a decision of its own."""

    throughput_before: float = Field(
        validation_alias=AliasChoices("throughput_before", "waf_before"),
        description="weighted work a second, in the unit of the jobs' tables",
    )
    throughput_after: float = Field(validation_alias=AliasChoices("throughput_after", "waf_after"))
    reason: str
    shifts: tuple[Shift, ...] = ()


class Decision(Frozen):
    """The answer to one incident, or what follows from one for another job. In mode observe nothing is done."""

    id: str
    job: str
    attempt: int = Field(0, ge=0)
    incident: str = Field(
        description="that it answers; of a job that grows or gives nodes: the one that made nodes scarce"
    )
    generation: int = Field(ge=0, description="fencing: a lease generation lower than the newest is ignored")
    created_ns: int = Field(ge=0)
    weighed_ns: int | None = Field(
        None, description="when its figures were taken: a decision keeps its id while the answer stays the same"
    )
    expires_ns: int = Field(ge=0)
    horizon_s: float = Field(
        3600.0, gt=0, description="over which costs are counted: until a repair or the next fault"
    )
    severity: int = Field(ge=1, le=3)
    mode: Mode = "observe"
    action: Action = Field(description="that is recommended, whether or not it is automatic")
    manual_because: ManualReason | None = Field(
        None, description="why a person has to act; None: it is automatic, or nothing is to be done"
    )
    by_hand: tuple[str, ...] = Field(
        (), description="what a person types instead; empty: nothing is to be done, or nobody here knows the commands"
    )
    inspect: tuple[str, ...] = Field((), description="what a person should inspect, as no action is the answer")
    answered_by: str | None = Field(
        None, description="the decision on another incident of the job that takes this part out too"
    )
    evidence_age_s: float | None = Field(
        None, ge=0, description="time since the fault was last seen, at weighed_ns; None: it rests on no verdict"
    )
    isolate: tuple[Isolation, ...] = ()
    target: dict[str, int] | None = None
    resume: dict[str, str] | None = None
    cost: Cost
    alternatives: tuple[Option, ...] = Field((), description="every other option, doing nothing included")
    verdicts: tuple[str, ...]
    part: str | None = Field(None, description="that its verdict named when it was weighed")
    grade: Grade | None = Field(None, description="of its verdict, when it was weighed")
    reason: str
    all_jobs: AllJobs | None = Field(None, description="None: the jobs' throughput by nodes is not known")
    held_because: str | None = Field(
        None, description="why it is not carried out without a person; None: nothing holds"
    )
    checkpoint_age_s: float | None = Field(None, ge=0, description="work that a restart repeats; None: unknown")
    approved_by: str | None = None
    part_of: str | None = Field(
        None, description="the plan over several jobs it belongs to; each of its decisions is approved on its own"
    )
    after: tuple[str, ...] = Field((), description="decisions of the plan that must be carried out before it")
    advice: str | None = Field(None, description="what would make the next fault cheaper; None: nothing is known to")
    trigger: str | None = Field(None, description="what made the planner look, where that was no incident")
    waits_until_ns: int | None = Field(
        None, description="the next checkpoint, for which it waits once it may be carried out; None: it does not"
    )

    def answers(self, verdict: Verdict) -> bool:
        """Return whether the verdict names the part that it named when this was weighed, and is as certain."""
        return self.part is None or (self.part, self.grade) == (verdict.component, verdict.grade)

    def as_json(self) -> dict[str, Any]:
        """Return the decision as it appears in the API and on standard output."""
        return self.model_dump()
