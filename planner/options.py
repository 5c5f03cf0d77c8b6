"""How a site decides: its policy, how long things take there, and what they cost."""

from dataclasses import dataclass, field

from planner.recovery.decide import Policy
from planner.recovery.facts import Durations
from planner.recovery.ladder import LadderOptions


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """How this site decides."""

    policy: Policy = field(default_factory=Policy)
    durations: Durations = field(default_factory=Durations)
    ladder: LadderOptions = field(default_factory=LadderOptions)
    gpu_hour_price: float | None = None
    settle_s: float = 60.0  # after an execution has ended, before its job gets another decision
    look_s: float = 30.0  # between two looks at all jobs, at their nodes and their checkpoints
