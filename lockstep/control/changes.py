"""What changed since a number: incidents, decisions and executions in the order in which they were committed.

A row a thing, with the number of its last change and of its first. So a reader that was away gets each thing once, as
it is now, and no reader can miss one: numbers are given out one transaction after the other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, Table, func, select

from lockstep.control.database import ControlDatabase
from lockstep.control.documents import insert_into
from lockstep.control.tables import CHANGES, DECISIONS, EXECUTIONS, INCIDENTS

Kind = Literal["incident", "decision", "execution"]

_TABLES: dict[Kind, Table] = {"incident": INCIDENTS, "decision": DECISIONS, "execution": EXECUTIONS}
_NUMBERING_LOCK = 0x10C4_57EA  # any number will do, as long as every version of Lockstep takes the same


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that changed, as it is now."""

    number: int
    first: int  # number of its first change: a reader that knows less than this has never heard of it
    kind: Kind
    subject: str
    document: str  # JSON, as the thing is stored


def note_changes(connection: Connection, kind: Kind, subjects: Iterable[str]) -> None:
    """Number the changes of these things in the transaction that makes them."""
    wanted = sorted(set(subjects))
    if not wanted:
        return
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
        connection.execute(select(func.pg_advisory_xact_lock(_NUMBERING_LOCK)))
    newest = _newest(connection)
    rows = [
        {"kind": kind, "subject": subject, "first": number, "number": number}
        for number, subject in enumerate(wanted, start=newest + 1)
    ]
    insert = insert_into(connection, CHANGES)
    replaced = {"number": insert.excluded["number"]}
    connection.execute(insert.on_conflict_do_update(index_elements=["kind", "subject"], set_=replaced), rows)


def newest_change(db: ControlDatabase) -> int:
    """Return the number of the last change, 0 before the first."""
    with db.read() as connection:
        return _newest(connection)


def changes_since(db: ControlDatabase, number: int, limit: int) -> list[Change]:
    """Return what changed after this number, the oldest change first."""
    query = select(CHANGES).where(CHANGES.c.number > number).order_by(CHANGES.c.number).limit(limit)
    with db.read() as connection:
        rows = connection.execute(query).all()
        documents = {
            kind: _documents(connection, table, [row.subject for row in rows if row.kind == kind])
            for kind, table in _TABLES.items()
        }
    return [
        Change(row.number, row.first, row.kind, row.subject, documents[row.kind][row.subject])
        for row in rows
        if row.kind in documents and row.subject in documents[row.kind]
    ]


def _documents(connection: Connection, table: Table, subjects: list[str]) -> dict[str, str]:
    if not subjects:
        return {}
    found = connection.execute(select(table.c.id, table.c.document).where(table.c.id.in_(subjects)))
    return {row.id: row.document for row in found}


def _newest(connection: Connection) -> int:
    return connection.scalar(select(func.max(CHANGES.c.number))) or 0
