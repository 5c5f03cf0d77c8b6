"""What was said of an incident before: a line whenever its state, part, class, side or grade became another."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field
from sqlalchemy import Connection, func, insert, select

from lockstep.control.database import ControlDatabase
from lockstep.control.documents import read_document
from lockstep.control.tables import VERDICT_CHANGES
from lockstep.incident import Incident
from lockstep.verdict import FaultClass, Frozen, Grade, Side


class VerdictChange(Frozen):
    """What an incident was taken for from a moment on."""

    incident: str
    ts_ns: int = Field(ge=0)
    state: Literal["open", "closed"]
    fault_class: FaultClass = Field(alias="class")
    component: str
    side: Side | None = None
    grade: Grade
    confidence: float = Field(ge=0, le=1)
    reason: str = Field(description="of the verdict; of a closed incident, why it was closed")

    @property
    def mark(self) -> tuple[str | None, ...]:
        """Return what makes another one news: figures alone do not."""
        return self.state, self.fault_class, self.component, self.side, self.grade


def note_verdicts(connection: Connection, incidents: Iterable[Incident]) -> None:
    """Add a line for each incident of which something else is said than before, in the writer's transaction."""
    changes = [_change(incident) for incident in incidents]
    before = _newest(connection, {change.incident for change in changes})
    for change in changes:
        if change.incident not in before or before[change.incident].mark != change.mark:
            row = {"incident": change.incident, "document": change.model_dump_json(by_alias=True)}
            connection.execute(insert(VERDICT_CHANGES).values(row))
            before[change.incident] = change


def list_verdict_changes(db: ControlDatabase, incident: str) -> list[VerdictChange]:
    """Return what was said of an incident, in the order in which it was written."""
    query = select(VERDICT_CHANGES.c.document).where(VERDICT_CHANGES.c.incident == incident)
    with db.read() as connection:
        rows = connection.scalars(query.order_by(VERDICT_CHANGES.c.id))
        return [read_document(VerdictChange, text) for text in rows]


def _newest(connection: Connection, incidents: set[str]) -> dict[str, VerdictChange]:
    lines = VERDICT_CHANGES
    last = select(func.max(lines.c.id)).where(lines.c.incident.in_(incidents)).group_by(lines.c.incident)
    rows = connection.execute(select(lines.c.incident, lines.c.document).where(lines.c.id.in_(last)))
    return {incident: read_document(VerdictChange, text) for incident, text in rows}


def _change(incident: Incident) -> VerdictChange:
    verdict = incident.verdict
    is_closed = incident.state == "closed"
    return VerdictChange(
        incident=incident.id,
        ts_ns=incident.updated_ns,
        state=incident.state,
        fault_class=verdict.fault_class,
        component=verdict.component,
        side=verdict.side,
        grade=verdict.grade,
        confidence=verdict.confidence,
        reason=(incident.closed_because or "") if is_closed else verdict.reason,
    )
