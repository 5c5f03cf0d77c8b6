"""What readers ask of incidents: pages of them as they are stored, their outcomes, and who was told of one."""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import JSON, ColumnElement, Connection, cast, func, or_, select, type_coerce

from lockstep.control.database import ControlDatabase
from lockstep.control.deliveries import Delivery, Tries
from lockstep.control.documents import newest_first, read_document
from lockstep.control.tables import AUDIT, CHANGES, DELIVERIES, INCIDENTS, OUTCOMES
from lockstep.execution import Outcome

_MOST_DELIVERIES = 1_000  # that one incident is shown with: what it would take to tell a thousand receivers


# An outcome is written with a line in the audit.
_STATE = select(select(func.max(CHANGES.c.number)).scalar_subquery(), select(func.max(AUDIT.c.id)).scalar_subquery())


class StoredIncident(NamedTuple):
    """An incident as its row has it: whoever shows many of them need not read all documents anew."""

    opened_ns: int
    id: str
    document: str


def page_incidents(
    db: ControlDatabase,
    *,
    job: str | None = None,
    state: str | None = None,
    fault_class: str | None = None,
    component: str | None = None,
    limit: int = 100,
    before: tuple[int, str] | None = None,
) -> list[StoredIncident]:
    """Return stored incidents, the newest first; `before` is (opened_ns, id) of the last one of the page above."""
    query = select(INCIDENTS.c.opened_ns, INCIDENTS.c.id, INCIDENTS.c.document)
    for column, value in ((INCIDENTS.c.job, job), (INCIDENTS.c.state, state)):
        query = query if value is None else query.where(column == value)
    page = newest_first(query, INCIDENTS.c.opened_ns, INCIDENTS.c.id, limit, before)
    with db.read() as connection:
        for name, value in (("class", fault_class), ("component", component)):
            page = page if value is None else page.where(_said(connection, name) == value)
        return [StoredIncident(*row) for row in connection.execute(page)]


def state_of_incidents(db: ControlDatabase) -> tuple[int, int]:
    """Return two numbers, of which one grows whenever an incident is written or an outcome confirmed."""
    with db.read() as connection:
        row = connection.execute(_STATE).one()
    return row[0] or 0, row[1] or 0


def outcomes_of(db: ControlDatabase, incidents: Collection[str]) -> dict[str, Outcome]:
    """Return what these incidents turned out to be, by their ids; those nobody confirmed are left out."""
    if not incidents:
        return {}
    query = select(OUTCOMES.c.id, OUTCOMES.c.document).where(OUTCOMES.c.id.in_(incidents))
    with db.read() as connection:
        return {incident: read_document(Outcome, text) for incident, text in connection.execute(query)}


def deliveries_about(db: ControlDatabase, incident: str) -> list[Delivery]:
    """Return the messages that told somebody of an incident, oldest first, also those that told of others with it."""
    named = DELIVERIES.c.document.contains(f'"subject":"{incident}"', autoescape=True)
    query = select(DELIVERIES).where(or_(DELIVERIES.c.thread == incident, named))
    with db.read() as connection:
        rows = connection.execute(query.order_by(DELIVERIES.c.number).limit(_MOST_DELIVERIES)).mappings().all()
    return [
        Delivery(
            **{name: value for name, value in row.items() if name != "document"},
            tries=read_document(Tries, row["document"]),
        )
        for row in rows
    ]


def _said(connection: Connection, name: str) -> ColumnElement[str]:
    """Return a field of the verdict in an incident's document; each database reads JSON text in its own way."""
    text = INCIDENTS.c.document
    document = cast(text, JSON) if connection.dialect.name == "postgresql" else type_coerce(text, JSON)
    field: ColumnElement[str] = document["verdict", name].as_string()
    return field
