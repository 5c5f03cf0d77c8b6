"""A fault, the job it hit and what is around: what every way to answer it is weighed from."""

from dataclasses import dataclass, field

from lockstep.verdict import Verdict
from planner.recovery.components import node_of
from planner.recovery.facts import ClusterFacts, Durations, JobFacts

STANDSTILL = ("comm_hang", "noncomm_hang", "crash")  # classes of faults with which a job makes no progress


@dataclass(frozen=True, slots=True)
class Situation:
    """A fault, the job it hit, and what is around."""

    verdict: Verdict
    job: JobFacts
    cluster: ClusterFacts
    durations: Durations = field(default_factory=Durations)
    gpu_hour_price: float | None = None

    @property
    def hosts(self) -> frozenset[str]:
        """All hosts that are known of."""
        return self.cluster.hosts | frozenset(self.job.nodes)

    @property
    def node(self) -> str | None:
        """The node that would be taken away."""
        return node_of(self.verdict.component, self.hosts)

    @property
    def stands_still(self) -> bool:
        return self.verdict.fault_class in STANDSTILL

    @property
    def speed_now(self) -> float:
        """Share of full speed while the fault lasts and nothing is done."""
        ratio = self.verdict.impact.step_time_ratio
        if self.stands_still:
            return 0.0
        return min(1.0, 1.0 / ratio) if ratio and ratio > 0 else 1.0

    @property
    def is_cost_known(self) -> bool:
        return self.stands_still or (self.verdict.impact.step_time_ratio or 0) > 0
