"""Decisions: what is proposed, what a person says to it and to isolated nodes, and what it was worth.

The scorecard holds advice against what incidents turned out to be. It is meant for the weeks in which Lockstep only
observes: how many GPU-hours its cures would have saved, and how many healthy nodes it would have drained.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from api.auth import Actor, Reader
from api.dependencies import Held, KnownParameters, Parts, parts_of
from api.views.returned import sightings_at
from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.errors import BadInput, StoreAway
from lockstep.execution import Execution, Isolated, NodeOrder, NodeOrderKind, Order, Outcome, PartIdentity
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import (
    find_execution,
    find_isolated,
    get_decision,
    give_node_order,
    give_order,
    list_decisions,
    list_executions,
    list_isolated,
    list_node_orders,
    list_orders,
    list_outcomes,
    save_outcome,
)
from lockstep.state.incidents import get_incident, list_incidents
from lockstep.verdict import Frozen, Incident
from planner.decide import cost_of_nothing

router = APIRouter(prefix="/api/v1", dependencies=[KnownParameters])

Json = dict[str, Any]
_MOST = 500  # decisions and incidents that scorecard and ledger look back on


class Word(Frozen):
    """Why somebody wants something."""

    why: str = Field("", max_length=1000)


class NodeWord(Word):
    """What somebody wants of a node, and of an rma: which part was sent back."""

    part: PartIdentity = PartIdentity()


class Confirmation(Frozen):
    """What an incident turned out to be."""

    was_right: bool
    part: str | None = Field(None, max_length=200)
    why: str = Field("", max_length=1000)


@router.get("/decisions", dependencies=[Reader])
def decisions(
    parts: Held,
    incident: str | None = None,
    job: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Json:
    """Return the newest decisions first, each with how far it was carried out."""
    control = parts.control
    found = list_decisions(control, incident=incident, job=job, limit=limit)
    runs = {run.decision: run.state for run in list_executions(control, job=job, limit=_MOST)}
    return {"items": [decision.as_json() | {"execution": runs.get(decision.id)} for decision in found]}


@router.get("/decisions/{decision_id}", dependencies=[Reader])
def decision(parts: Held, decision_id: str) -> Json:
    """Return one decision with what persons said to it and every step that was done."""
    control = parts.control
    found, run = get_decision(control, decision_id), find_execution(control, decision_id)
    orders = [order.model_dump() for order in list_orders(control, decision_id)]
    return found.as_json() | {"orders": orders, "execution": run.model_dump() if run else None}


@router.post("/decisions/{decision_id}/{kind}", status_code=202)
def order(
    parts: Held, decision_id: str, kind: Literal["approve", "reject", "undo"], word: Word, actor: Actor
) -> Json:
    """Approve, reject or undo a decision; the planner follows within a second, and an undo holds."""
    now_ns, found = parts.clock.now_ns(), get_decision(parts.control, decision_id)
    if kind == "approve" and found.expires_ns <= now_ns:
        raise BadInput(f"decision {decision_id} has expired: it rests on what was seen too long ago")
    if kind == "approve":
        _check_approvable(parts.control, found)
    given = Order(decision=decision_id, kind=kind, who=actor, why=word.why, ts_ns=now_ns)
    give_order(parts.control, given)
    return given.model_dump()


@router.put("/incidents/{incident_id}/outcome")
def confirm(request: Request, incident_id: str, confirmation: Confirmation, actor: Actor) -> Json:
    """Write down what an incident turned out to be, for the scorecard."""
    parts = parts_of(request)
    outcome = Outcome(incident=incident_id, **dict(confirmation), who=actor, ts_ns=parts.clock.now_ns())
    save_outcome(parts.control, outcome)
    request.app.state.incident_pages.forget()  # whoever said it sees it
    return outcome.model_dump()


@router.get("/isolated", dependencies=[Reader])
def isolated(parts: Held) -> Json:
    """Return the nodes that were taken out of service, how far each is on its way back, and what persons said."""
    control = parts.control
    return {
        "items": [
            each.model_dump() | {"orders": ([order.model_dump() for order in list_node_orders(control, each)])}
            for each in list_isolated(control)
        ]
    }


@router.post("/isolated/{node}/{kind}", status_code=202)
def order_node(parts: Held, node: str, kind: NodeOrderKind, word: NodeWord, actor: Actor) -> Json:
    """Say what is to become of an isolated node: test, return, rma or repaired; the planner follows."""
    found = find_isolated(parts.control, node)
    given = NodeOrder(
        decision=found.decision,
        node=node,
        kind=kind,
        who=actor,
        why=word.why,
        part=_identify(parts, found, word.part) if kind == "rma" else None,
        ts_ns=parts.clock.now_ns(),
    )
    give_node_order(parts.control, given)
    return given.model_dump(exclude={"number"})


@router.get("/scorecard", dependencies=[Reader])
def scorecard(parts: Held) -> Json:
    """Return what the advice of late would have been worth, against outcomes that are confirmed."""
    control = parts.control
    found = list_decisions(control, limit=_MOST)
    ranks = {incident.job: incident.verdict.gpus for incident in list_incidents(control, limit=_MOST)}
    return score(found, list_outcomes(control), ranks).model_dump()


@router.get("/downtime", dependencies=[Reader])
def downtime(parts: Held, job: str | None = None) -> Json:
    """Return where the time of faults went that were answered by a restart, in four rows each."""
    control = parts.control
    runs = list_executions(control, job=job, limit=_MOST)
    known = {run.decision: get_decision(control, run.decision) for run in runs}
    incidents = {run.incident: get_incident(control, run.incident) for run in runs}
    rows = find_downtimes(runs, known, incidents)
    return {"items": [row.model_dump() | {"total_s": row.total_s} for row in rows]}


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
        _measure_downtime(run, decisions[run.decision], incidents[run.incident])
        for run in sorted(answered, key=lambda run: (run.began_ns, run.decision))
        if run.decision in decisions and run.incident in incidents and not _only_shares(decisions[run.decision])
    ]


def _check_approvable(control: ControlDatabase, found: Decision) -> None:
    """Raise BadInput where nothing would follow an approval."""
    if found.action == "none":
        raise BadInput(f"decision {found.id} is to do nothing, so there is nothing to approve")
    if found.trigger is None and get_incident(control, found.incident).state == "closed":
        raise BadInput(f"incident {found.incident} is over, so decision {found.id} is not carried out any more")
    newest = list_decisions(control, incident=found.incident, job=found.job, limit=1)[0]
    if newest.id != found.id:
        raise BadInput(f"decision {found.id} was followed by {newest.id}: approve that one")


def _identify(parts: Parts, isolated: Isolated, reported: PartIdentity) -> PartIdentity:
    """Return the part as it was told, with the UUID that telemetry knows of a GPU where the person gave none."""
    kind, _, name = isolated.component.partition(":")
    host, _, slot = name.partition("/")
    if reported.uuid or kind != "gpu" or not slot:
        return reported
    try:
        there = [seen for seen in sightings_at(parts.store, [host]) if seen.component == isolated.component]
    except StoreAway:
        return reported  # what a person says must not wait for telemetry
    newest = max(there, key=lambda seen: seen.last_ns, default=None)
    return reported.model_copy(update={"uuid": newest.gpu_uuid}) if newest else reported


def _saved(decision: Decision) -> float:
    nothing, chosen = cost_of_nothing(decision).gpu_hours, decision.cost.gpu_hours
    return nothing - chosen if nothing is not None and chosen is not None else 0.0


def _only_shares(decision: Decision) -> bool:
    return decision.part_of is not None and not decision.isolate


def _measure_downtime(run: Execution, decision: Decision, incident: Incident) -> Downtime:
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
