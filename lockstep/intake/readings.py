"""What a parser of somebody else's recordings gives: rows of our tables, and what it could not read, counted."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from lockstep.arrow import schema_of
from lockstep.errors import BadInput
from lockstep.tables import TABLE_BY_NAME, Column, Table, columns_of

Row = dict[str, object]  # a record before it has passed the schema; what it does not name is unknown


def _check_text(text: str) -> str:
    """Refuse halves of characters: pickles can hold them, tables cannot."""
    text.encode()
    return text


Text = Annotated[str, AfterValidator(_check_text)]


class Loose(BaseModel):
    """Something recorded elsewhere: newer recorders may say more than we know."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


@dataclass
class Reading:
    """Rows by table; `unread` counts what was left out, under the words that follow the count in a sentence."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)

    def add(self, table: str, row: Row) -> None:
        self.rows.setdefault(table, []).append(row)

    def tables(self) -> dict[str, pa.Table]:
        """Return the rows as Arrow tables in the exact schemas."""
        return {name: fill_unknown(TABLE_BY_NAME[name], rows) for name, rows in self.rows.items()}


def fill_unknown(table: Table, rows: Sequence[Row]) -> pa.Table:
    """Return rows in which the unknown is null, or an empty text where null is not allowed.

    A number that may not be null has to be known: leaving it out is the parser's mistake, not the file's.
    """
    columns = {name: _values(column, rows) for name, column in columns_of(table).items()}
    return pa.table(columns, schema=schema_of(table))


def place_of(error: ValidationError) -> str:
    """Return where the first thing wrong is, and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def refuse_twice(names: Iterable[tuple[object, str]], what: str) -> None:
    """Raise BadInput when two files say that they are the same thing."""
    seen: dict[object, str] = {}
    for thing, name in names:
        if thing in seen:
            raise BadInput(f"{name}: is of {what} {thing}, and so is {seen[thing]}")
        seen[thing] = name


def count_sentences(unread: Mapping[str, int]) -> list[str]:
    """Return one sentence per kind of thing that could not be read."""
    return [f"{count} {words}" for words, count in unread.items() if count]


def _values(column: Column, rows: Sequence[Row]) -> list[object]:
    given = [row.get(column.name) for row in rows]
    if None not in given:
        return given
    unknown = "" if column.kind == "str" and not column.nullable else None
    return [unknown if value is None else value for value in given]
