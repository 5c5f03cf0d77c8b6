"""Incidents as the analyzer left them: written whole, read by id, by state and newest first."""

from collections.abc import Iterable
from typing import Any, Literal

from sqlalchemy import Select, select

from lockstep.control.changes import note_changes
from lockstep.control.database import ControlDatabase
from lockstep.control.documents import Row, newest_first, read_document, write_over
from lockstep.control.leases import Lease, refuse_stale
from lockstep.control.tables import INCIDENTS
from lockstep.control.verdict_changes import note_verdicts
from lockstep.errors import NotPresent
from lockstep.incident import Incident

State = Literal["open", "closed"]


def save_incidents(db: ControlDatabase, incidents: Iterable[Incident], lease: Lease | None) -> None:
    """Write all incidents or none, each replacing the one with its id.

    With a lease, LeaseLost is raised and nothing written once another holder has taken it.
    """
    with db.begin() as connection:
        if lease is not None:
            refuse_stale(connection, lease)
        told = list(incidents)
        write_over(connection, INCIDENTS, map(_row, told))
        note_changes(connection, "incident", (incident.id for incident in told))
        note_verdicts(connection, told)


def list_incidents(
    db: ControlDatabase,
    *,
    job: str | None = None,
    state: State | None = None,
    limit: int = 100,
    before: tuple[int, str] | None = None,
) -> list[Incident]:
    """Return the newest incidents first; `before` is (opened_ns, id) of the last one of the page above."""
    query = newest_first(_query(job, state), INCIDENTS.c.opened_ns, INCIDENTS.c.id, limit, before)
    with db.read() as connection:
        return [read_document(Incident, text) for text in connection.scalars(query)]


def open_incidents(db: ControlDatabase, job: str | None = None) -> list[Incident]:
    """Return every incident that is still open, newest first."""
    query = _query(job, "open").order_by(INCIDENTS.c.opened_ns.desc(), INCIDENTS.c.id.desc())
    with db.read() as connection:
        return [read_document(Incident, text) for text in connection.scalars(query)]


def get_incident(db: ControlDatabase, incident_id: str) -> Incident:
    """Return the incident with this id, or raise NotPresent."""
    with db.read() as connection:
        text = connection.scalar(select(INCIDENTS.c.document).where(INCIDENTS.c.id == incident_id))
    if text is None:
        raise NotPresent(f"there is no incident {incident_id!r}")
    return read_document(Incident, text)


def _query(job: str | None, state: State | None) -> Select[Any]:
    query = select(INCIDENTS.c.document)
    if job is not None:
        query = query.where(INCIDENTS.c.job == job)
    if state is not None:
        query = query.where(INCIDENTS.c.state == state)
    return query


def _row(incident: Incident) -> Row:
    return {
        "id": incident.id,
        "job": incident.job,
        "state": incident.state,
        "opened_ns": incident.opened_ns,
        "document": incident.model_dump_json(by_alias=True),
    }
