"""What Lockstep's advice would have been worth, held against what incidents turned out to be.

Meant for the weeks in which it only observes: how many GPU-hours its cures would have saved, and how many healthy
nodes it would have drained.
"""

from collections.abc import Iterable, Mapping

from pydantic import Field

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.execution import Execution, Outcome
from lockstep.verdict import Frozen, Incident
from planner.decide import cost_of_nothing


class Scorecard(Frozen):
    """The advice of some time in figures; hours are those that were forecast when it was given."""

    advised: int = Field(description="incidents for which something was advised")
    confirmed: int = Field(description="of these, incidents whose outcome is known")
    right: int
    wrong: int
    precision: float | None = Field(description="right ones among those whose outcome is known; None: none is")
    saved_gpu_hours: float = Field(description="by right advice, against doing nothing")
    wasted_gpu_hours: float = Field(description="standstill by wrong advice, for nothing")
    wrongly_drained: tuple[str, ...] = Field(description="nodes that would have been drained, and were healthy")


def score(decisions: Iterable[Decision], outcomes: Mapping[str, Outcome], gpus: Mapping[str, int]) -> Scorecard:
    """Return the score of the newest advice of each incident; `gpus` are those of each decision's job."""
    # What follows from an incident for other jobs, or once its node is back, says nothing about who was at fault.
    advice = [decision for decision in decisions if decision.action != "none" and not _only_shares(decision)]
    newest = {each.incident: each for each in sorted(advice, key=lambda each: (each.created_ns, each.id))}
    known = [(decision, outcomes[name]) for name, decision in newest.items() if name in outcomes]
    right = [decision for decision, outcome in known if outcome.was_right]
    wrong = [decision for decision, outcome in known if not outcome.was_right]
    return Scorecard(
        advised=len(newest),
        confirmed=len(known),
        right=len(right),
        wrong=len(wrong),
        precision=len(right) / len(known) if known else None,
        saved_gpu_hours=round(sum(map(_saved, right)), 2),
        wasted_gpu_hours=round(
            sum(gpus.get(each.job, 0) * (each.cost.downtime_s or 0.0) / 3600 for each in wrong), 2
        ),
        wrongly_drained=tuple(sorted({part.node for each in wrong for part in each.isolate if part.node})),
    )


def _saved(decision: Decision) -> float:
    nothing, chosen = cost_of_nothing(decision).gpu_hours, decision.cost.gpu_hours
    return nothing - chosen if nothing is not None and chosen is not None else 0.0


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
