"""What a parser of somebody else's recordings gives: rows of our tables, and what it could not read, counted."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.tables import TABLE_BY_NAME, Column, Table, columns_of

Kind = TypeVar("Kind", bound=BaseModel)
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


def first_problem(error: ValidationError) -> str:
    """Return where the first thing wrong is, and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    location = ".".join(map(str, first["loc"]))
    return f"{location}: {first['msg']}" if location else first["msg"]


def decoded(location: str, data: bytes) -> str:
    """Return the text, or raise BadInput."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{location}: byte {error.start} is not text") from None


def parse_json(location: str, data: str | bytes) -> Any:  # Any: JSON of any shape
    """Return the value in JSON, or raise BadInput."""
    try:
        return from_json(data)
    except ValueError as error:
        raise BadInput(f"{location}: is not JSON: {str(error).splitlines()[0]}") from None


def validated(kind: type[Kind], value: object, location: str, context: Any = None) -> Kind:  # Any: as pydantic has it
    """Return the value as this kind of record, or raise BadInput with the first thing that is wrong in it."""
    try:
        return kind.model_validate(value, context=context)
    except ValidationError as error:
        raise BadInput(f"{location}: {first_problem(error)}") from None


def refuse_twice(ranks: Iterable[tuple[int, str]]) -> None:
    """Raise BadInput when two files say that they are of the same rank."""
    seen: dict[int, str] = {}
    for rank, name in ranks:
        if rank in seen:
            raise BadInput(f"{name}: is of rank {rank}, and so is {seen[rank]}")
        seen[rank] = name


def count_sentences(unread: Mapping[str, int]) -> list[str]:
    """Return one sentence per kind of thing that could not be read."""
    return [f"{count} {words}" for words, count in unread.items() if count]


def _values(column: Column, rows: Sequence[Row]) -> list[object]:
    given = [row.get(column.name) for row in rows]
    if None not in given:
        return given
    unknown = "" if column.kind == "str" and not column.nullable else None
    return [unknown if value is None else value for value in given]


MOST_MESSAGE_CHARS = 2000
TIMELESS = "events were left out, because they do not tell when they happened"
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?([Zz]|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Statement:
    """Events about one host that were told together and are heard together, or not at all."""

    host: str
    subject: str
    number: int
    ts_ns: int
    rows: tuple[Row, ...]


def event_rows(statements: Iterable[Statement]) -> pa.Table:
    """Return the events of these statements as rows."""
    return fill_unknown(TABLE_BY_NAME["events"], [row for statement in statements for row in statement.rows])


def without_repeats(statements: Iterable[Statement], unread: Mapping[str, int]) -> Reading:
    """Return the events of statements, each once however often it was told; `unread` was left out before."""
    reading = Reading(unread=Counter(unread))
    seen: set[tuple[str, int]] = set()
    for statement in statements:
        if (statement.subject, statement.number) in seen:
            reading.unread["statements were left out, because they had been told before"] += 1
            continue
        seen.add((statement.subject, statement.number))
        for row in statement.rows:
            reading.add("events", row)
    return reading


def parse_timestamp(text: str) -> int | None:
    """Return the UNIX time in nanoseconds that RFC 3339 tells; None for none, or one before 1970 or after 2262.

    >>> parse_timestamp("2018-08-03T09:52:26.739266876+02:00"), parse_timestamp("0001-01-01T00:00:00Z")
    (1533282746739266876, None)
    """
    parts = _TIMESTAMP.fullmatch(text)
    if parts is None:
        return None
    try:
        whole = datetime.fromisoformat(parts[1] + ("+00:00" if parts[3] in "Zz" else parts[3])).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    seconds = (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    timestamp_ns = seconds * NS_PER_S + int((parts[2] or "0").ljust(9, "0")[:9])
    return timestamp_ns if 0 <= timestamp_ns < 1 << 63 else None
