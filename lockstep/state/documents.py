"""Whole values as JSON beside the columns that queries need: written over, read back, paged through."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import Column, Connection, Select, Table, func, insert, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from lockstep.errors import BadInput, LockstepError, NotPresent, StoreVersionMismatch
from lockstep.state.database import ControlDatabase
from lockstep.state.tables import AUDIT, AUDIT_CHAIN, AUDIT_LOCK
from lockstep.verdict import Frozen

Document = TypeVar("Document", bound=BaseModel)
Row = dict[str, Any]  # Any: a row's values have the types of its table's columns


def row_of(value: BaseModel, *fields: str, **columns: object) -> Row:
    """Return a value as a row: these fields and columns beside the whole of it as JSON."""
    named = {name: getattr(value, name) for name in fields}
    return {**named, **columns, "document": value.model_dump_json(by_alias=True)}


def insert_into(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an insert that can say what happens on conflict; each database has its own class for it."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def write_over(connection: Connection, table: Table, rows: Iterable[Row]) -> None:
    """Write rows by their id, replacing what is there; of two rows with one id the later stays."""
    newest = {row["id"]: row for row in rows}
    if not newest:
        return
    insert = insert_into(connection, table)
    replaced = {column.name: insert.excluded[column.name] for column in table.c if column.name != "id"}
    # In the order of ids, so that two writers lock rows in the same order and never wait for each other.
    connection.execute(
        insert.on_conflict_do_update(index_elements=["id"], set_=replaced),
        [newest[key] for key in sorted(newest)],
    )


def read_document(model: type[Document], text: str) -> Document:
    """Return the value that was stored, or raise StoreVersionMismatch when this code cannot read it."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise StoreVersionMismatch(
            f"the control database holds {model.__name__} that this version cannot read: "
            f"{error.errors()[0]['msg']} at {error.errors()[0]['loc']} in {text[:200]}"
        ) from error


def read_all(db: ControlDatabase, model: type[Document], query: Select[Any]) -> list[Document]:
    """Return the values of a query that selects documents."""
    with db.read() as connection:
        return [read_document(model, text) for text in connection.scalars(query)]


def read_one(db: ControlDatabase, model: type[Document], table: Table, key: str) -> Document:
    """Return the value with this id, or raise NotPresent."""
    with db.read() as connection:
        text = connection.scalar(select(table.c.document).where(table.c.id == key))
    if text is None:
        raise NotPresent(f"there is no {model.__name__.lower()} {key!r}")
    return read_document(model, text)


def read_by_id(db: ControlDatabase, model: type[Document], query: Select[Any]) -> dict[str, Document]:
    """Return the values of a query that selects ids and documents."""
    with db.read() as connection:
        return {key: read_document(model, text) for key, text in connection.execute(query)}


def matching(query: Select[Any], *wanted: tuple[Column[Any], object | None]) -> Select[Any]:
    """Return the query for rows that have these values in these columns; None stands for any."""
    return query.where(*(column == value for column, value in wanted if value is not None))


def check_limit(limit: int) -> None:
    if limit < 1:
        raise BadInput(f"limit is {limit}, and a page has at least 1 row")


def newest_first(
    query: Select[Any],  # Any: works for whatever the query selects
    timestamp: Column[int],
    key: Column[str],
    limit: int,
    before: tuple[int, str] | None = None,
) -> Select[Any]:
    """Return one page of the query; `before` is (timestamp, key) of the last row of the page above."""
    check_limit(limit)
    if before is not None:
        query = query.where(tuple_(timestamp, key) < before)
    return query.order_by(timestamp.desc(), key.desc()).limit(limit)


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
    """Write one line in the transaction of the act itself: both happen or neither.

    With it goes a digest of the line and of the digest before: whoever changes or removes a line breaks the chain.
    """
    line = {"ts_ns": now_ns, "who": who, "what": what, "subject": subject, "why": why}
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
        connection.execute(select(func.pg_advisory_xact_lock(AUDIT_LOCK)))
    number = connection.execute(insert(AUDIT).values(line).returning(AUDIT.c.id)).scalar_one()
    before = connection.scalar(select(AUDIT_CHAIN.c.digest).order_by(AUDIT_CHAIN.c.id.desc()).limit(1)) or ""
    connection.execute(insert(AUDIT_CHAIN).values(id=number, digest=_chain(before, {"id": number, **line})))


def verify_audit(db: ControlDatabase) -> tuple[int, str]:
    """Return how many lines are as they were written and the newest digest; LockstepError with the first that is not.

    Lines from before there was a chain do not count. That the newest were removed together with their digests shows
    only to who has noted a later digest.
    """
    lines = select(AUDIT, AUDIT_CHAIN.c.digest).outerjoin(AUDIT_CHAIN, AUDIT.c.id == AUDIT_CHAIN.c.id)
    removed = select(func.min(AUDIT_CHAIN.c.id)).where(AUDIT_CHAIN.c.id.not_in(select(AUDIT.c.id)))
    count, digest = 0, ""
    with db.read() as connection:
        first_removed = connection.scalar(removed)
        with connection.execution_options(yield_per=1_000).execute(lines.order_by(AUDIT.c.id)) as rows:
            for row in rows:
                line = dict(row._mapping)
                kept, number = line.pop("digest"), line["id"]
                if first_removed is not None and number > first_removed:
                    break
                if kept is None and count:
                    raise LockstepError(f"line {number} of the audit was written past the chain")
                if kept is not None and kept != _chain(digest, line):
                    raise LockstepError(f"line {number} of the audit, or one before it, is not as it was written")
                count, digest = (count + 1, kept) if kept is not None else (count, digest)
    if first_removed is not None:
        raise LockstepError(f"line {first_removed} of the audit was removed")
    return count, digest


def _chain(before: str, line: Mapping[str, Any]) -> str:  # Any: a row
    names = ("id", "ts_ns", "who", "what", "subject", "why")
    return hashlib.sha256(json.dumps([before, *(line[name] for name in names)]).encode()).hexdigest()


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
    check_limit(limit)
    query = select(AUDIT).order_by(AUDIT.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(AUDIT.c.id < before)
    query = matching(query, (AUDIT.c.who, who), (AUDIT.c.what, what), (AUDIT.c.subject, subject))
    with db.read() as connection:
        return [AuditLine.model_validate(dict(row._mapping)) for row in connection.execute(query)]
