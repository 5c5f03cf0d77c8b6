"""Who did what to which part and why; lines are only ever added."""

from pydantic import Field
from sqlalchemy import Connection, insert, select

from lockstep.control.database import ControlDatabase
from lockstep.control.tables import AUDIT
from lockstep.errors import BadInput
from lockstep.verdict import Frozen


class AuditLine(Frozen):
    """One thing that was done."""

    id: int = Field(description="goes up with each line; a gap means that a line was removed")
    ts_ns: int = Field(description="when, UNIX time")
    who: str = Field(description="a person, a token's name or a service")
    what: str = Field(description="the act, such as create_token")
    subject: str = Field(description="what it was done to")
    why: str = Field(description="the reason that was given, empty when none was")


def record(db: ControlDatabase, *, who: str, what: str, subject: str, why: str, now_ns: int) -> None:
    """Write one line in a transaction of its own."""
    with db.begin() as connection:
        record_within(connection, who=who, what=what, subject=subject, why=why, now_ns=now_ns)


def record_within(connection: Connection, *, who: str, what: str, subject: str, why: str, now_ns: int) -> None:
    """Write one line in the transaction of the act itself: both happen or neither."""
    line = {"ts_ns": now_ns, "who": who, "what": what, "subject": subject, "why": why}
    connection.execute(insert(AUDIT).values(line))


def list_audit(
    db: ControlDatabase,
    limit: int,
    *,
    before: int | None = None,
    who: str | None = None,
    what: str | None = None,
    subject: str | None = None,
) -> list[AuditLine]:
    """Return the newest lines first; `before` is the id of the last one of the page above."""
    if limit < 1:
        raise BadInput(f"limit is {limit}, and a page has at least 1 row")
    query = select(AUDIT).order_by(AUDIT.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(AUDIT.c.id < before)
    for column, wanted in ((AUDIT.c.who, who), (AUDIT.c.what, what), (AUDIT.c.subject, subject)):
        if wanted is not None:
            query = query.where(column == wanted)
    with db.read() as connection:
        return [AuditLine.model_validate(dict(row._mapping)) for row in connection.execute(query)]
