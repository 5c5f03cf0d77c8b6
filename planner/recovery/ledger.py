"""Where the time of a fault went, in the four rows in which C4 counts it."""

from collections.abc import Iterable, Mapping

from pydantic import Field

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.execution import Execution
from lockstep.incident import Incident
from lockstep.verdict import Frozen


class Downtime(Frozen):
    """One fault of one job, from the last checkpoint until the job ran again."""

    job: str
    incident: str
    decision: str
    post_checkpoint_s: float | None = Field(
        description="work since the checkpoint that was done again; None: unknown"
    )
    detection_s: float = Field(description="from the fault to the incident")
    diagnosis_s: float = Field(description="from the incident until something was done: decision, waiting, approval")
    reinitialisation_s: float = Field(description="until the job ran again")

    @property
    def total_s(self) -> float:
        return (self.post_checkpoint_s or 0.0) + self.detection_s + self.diagnosis_s + self.reinitialisation_s


def find_downtimes(
    executions: Iterable[Execution], decisions: Mapping[str, Decision], incidents: Mapping[str, Incident]
) -> list[Downtime]:
    """Return the downtime of each fault that was answered by starting a job again, oldest first.

    A job that only lends or gets back nodes (part of a plan, nothing isolated) was not down by the fault.
    """
    answered = [run for run in executions if run.state == "done" and any(step.act == "restart" for step in run.steps)]
    return [
        _measure(run, decisions[run.decision], incidents[run.incident])
        for run in sorted(answered, key=lambda run: (run.began_ns, run.decision))
        if run.decision in decisions and run.incident in incidents and not _only_shares(decisions[run.decision])
    ]


def _only_shares(decision: Decision) -> bool:
    return decision.part_of is not None and not decision.isolate


def _measure(run: Execution, decision: Decision, incident: Incident) -> Downtime:
    since_ns = incident.verdict.since_ns
    age_s = decision.checkpoint_age_s
    # A decision keeps its id, and the time it was made first, while the answer stays the same; its figures are newer.
    # What does not say of when they are is taken to be of the moment that it was begun: nothing is counted twice.
    weighed_ns = decision.weighed_ns if decision.weighed_ns is not None else run.began_ns
    return Downtime(
        job=run.job,
        incident=run.incident,
        decision=run.decision,
        # Only what lies between the checkpoint and the fault was good work that is done again.
        post_checkpoint_s=None if age_s is None else max(age_s - _between_s(since_ns, weighed_ns), 0.0),
        detection_s=_between_s(since_ns, incident.opened_ns),
        diagnosis_s=_between_s(incident.opened_ns, run.began_ns),
        reinitialisation_s=_between_s(run.began_ns, run.ended_ns or run.began_ns),
    )


def _between_s(start_ns: int, end_ns: int) -> float:
    return max(end_ns - start_ns, 0) / NS_PER_S
