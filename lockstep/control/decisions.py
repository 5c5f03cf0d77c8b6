"""Decisions as the planner left them: written whole, read by id, by incident, by job and newest first."""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from lockstep.control.changes import note_changes
from lockstep.control.database import ControlDatabase
from lockstep.control.documents import Row, newest_first, read_document, write_over
from lockstep.control.leases import Lease, refuse_stale
from lockstep.control.tables import DECISIONS, INCIDENTS
from lockstep.decision import Decision
from lockstep.errors import NotPresent


def save_decisions(db: ControlDatabase, decisions: Sequence[Decision], lease: Lease | None) -> None:
    """Write all decisions or none, each replacing the one with its id; their incidents must be saved already.

    With a lease, LeaseLost is raised and nothing written once another holder has taken it.
    """
    with db.begin() as connection:
        if lease is not None:
            refuse_stale(connection, lease)
        _check_incidents(connection, decisions)
        write_over(connection, DECISIONS, map(_row, decisions))
        note_changes(connection, "decision", (decision.id for decision in decisions))


def list_decisions(
    db: ControlDatabase,
    *,
    incident: str | None = None,
    job: str | None = None,
    limit: int = 100,
    before: tuple[int, str] | None = None,
) -> list[Decision]:
    """Return the newest decisions first; `before` is (created_ns, id) of the last one of the page above."""
    query = select(DECISIONS.c.document)
    if incident is not None:
        query = query.where(DECISIONS.c.incident == incident)
    if job is not None:
        query = query.where(DECISIONS.c.job == job)
    query = newest_first(query, DECISIONS.c.created_ns, DECISIONS.c.id, limit, before)
    with db.read() as connection:
        return [read_document(Decision, text) for text in connection.scalars(query)]


def get_decision(db: ControlDatabase, decision_id: str) -> Decision:
    """Return the decision with this id, or raise NotPresent."""
    with db.read() as connection:
        text = connection.scalar(select(DECISIONS.c.document).where(DECISIONS.c.id == decision_id))
    if text is None:
        raise NotPresent(f"there is no decision {decision_id!r}")
    return read_document(Decision, text)


def _check_incidents(connection: Connection, decisions: Sequence[Decision]) -> None:
    wanted = {decision.incident for decision in decisions}
    known = set(connection.scalars(select(INCIDENTS.c.id).where(INCIDENTS.c.id.in_(wanted))))
    for decision in decisions:
        if decision.incident not in known:
            raise NotPresent(f"decision {decision.id!r} answers incident {decision.incident!r}, which is not here")


def _row(decision: Decision) -> Row:
    return {
        "id": decision.id,
        "incident": decision.incident,
        "job": decision.job,
        "created_ns": decision.created_ns,
        "document": decision.model_dump_json(by_alias=True),
    }
