"""Decisions: what is proposed, what a person says to it and to isolated nodes, and what it was worth."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from api.auth import Actor, Reader
from api.dependencies import Held, KnownParameters, Parts, parts_of
from api.views.returned import sightings_at
from lockstep.decision import Decision
from lockstep.errors import BadInput, StoreAway
from lockstep.execution import Isolated, NodeOrder, NodeOrderKind, Order, Outcome, PartIdentity
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
from lockstep.verdict import Frozen
from planner.scorecard import find_downtimes, score

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


def _check_approvable(control: ControlDatabase, found: Decision) -> None:
    """Raise BadInput where nothing would follow an approval."""
    if found.action == "none":
        raise BadInput(f"decision {found.id} is to do nothing, so there is nothing to approve")
    if found.trigger is None and get_incident(control, found.incident).state == "closed":
        raise BadInput(f"incident {found.incident} is over, so decision {found.id} is not carried out any more")
    newest = list_decisions(control, incident=found.incident, job=found.job, limit=1)[0]
    if newest.id != found.id:
        raise BadInput(f"decision {found.id} was followed by {newest.id}: approve that one")


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
