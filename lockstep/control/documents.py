"""Whole values as JSON beside the columns that queries need: written over, read back, paged through."""

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Column, Connection, Select, Table, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from lockstep.errors import BadInput, StoreVersionMismatch

Document = TypeVar("Document", bound=BaseModel)
Row = dict[str, Any]  # Any: a row's values have the types of its table's columns


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


def newest_first(
    query: Select[Any],  # Any: works for whatever the query selects
    moment: Column[int],
    key: Column[str],
    limit: int,
    before: tuple[int, str] | None,
) -> Select[Any]:
    """Return one page of the query; `before` is (moment, key) of the last row of the page above."""
    if limit < 1:
        raise BadInput(f"limit is {limit}, and a page has at least 1 row")
    if before is not None:
        query = query.where(tuple_(moment, key) < before)
    return query.order_by(moment.desc(), key.desc()).limit(limit)
