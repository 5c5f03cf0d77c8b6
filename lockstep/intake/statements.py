"""What other systems tell again and again: events, each with what makes it the same one when it comes again.

A system that is not sure whether it was heard repeats itself, and some repeat on principle. A statement has a subject
and a number that only grows for that subject: of a subject, a number no greater than one heard before is old.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from lockstep.clock import NS_PER_S
from lockstep.intake.readings import Reading, Row, fill_unknown
from lockstep.tables import TABLE_BY_NAME

MOST_MESSAGE_CHARS = 2000
TIMELESS = "events were left out, because they do not tell when they happened"
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?([Zz]|[+-]\d\d:\d\d)")


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


def parse_moment(text: str) -> int | None:
    """Return the UNIX time in nanoseconds that RFC 3339 tells; None for none, or one before 1970 or after 2262.

    >>> parse_moment("2018-08-03T09:52:26.739266876+02:00"), parse_moment("0001-01-01T00:00:00Z")
    (1533282746739266876, None)
    """
    parts = _MOMENT.fullmatch(text)
    if parts is None:
        return None
    try:
        whole = datetime.fromisoformat(parts[1] + ("+00:00" if parts[3] in "Zz" else parts[3])).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    seconds = (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    moment_ns = seconds * NS_PER_S + int((parts[2] or "0").ljust(9, "0")[:9])
    return moment_ns if 0 <= moment_ns < 1 << 63 else None
