"""Server-sent events out of the lines of a stream, as the HTML standard defines them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its id for resuming, its kind, and what it says."""

    id: str
    kind: str
    data: str


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """Yield each event once its blank line has come; what a broken connection left unfinished is not one.

    >>> list(parse_events(["id: 7", "event: opened", "data: {}", "", "data: lost"]))
    [Event(id='7', kind='opened', data='{}')]
    """
    last_id, kind, data = "", "", list[str]()
    for line in lines:
        if line:
            name, _, value = line.partition(":")  # a line that begins with a colon is a sign of life: no name
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "event":
                kind = value
            elif name == "id" and "\0" not in value:
                last_id = value
        else:
            if data:
                yield Event(last_id, kind or "message", "\n".join(data))
            kind, data = "", []
