"""What routes depend on: the parts of this process, and what requests ask with: bounded names, times, and pages."""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Path, Query, Request, Response
from fastapi.dependencies.models import Dependant
from pydantic import Field

from analyzer.windows.window import Window
from api.alerts.notifier import DeliveryCounts
from api.ingest.gateway import Gateway
from lockstep.clock import NS_PER_S, Clock, rfc3339
from lockstep.config import Settings
from lockstep.errors import BadInput
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import read_analysis
from lockstep.store.migrations import Layout
from lockstep.store.store import Store
from lockstep.topology import Topology
from lockstep.verdict import Frozen
from lockstep.words import analysis_words

_LATEST_NS = 253_402_300_799 * 10**9  # the last second of the year 9999, beyond which no date is written

MOST = 500  # items of a page: what a person scrolls through and a program reads in one go
USUAL = 100
_LONGEST_CURSOR = 2_000  # characters of a cursor: a key holds two names at most
_INTEGERS = range(-(2**63), 2**63)  # what both databases hold
Item = TypeVar("Item")
SortKey = tuple[int | str, ...]  # the sorting key of an item
Limit = Annotated[int, Query(ge=1, le=MOST, description="most items of a page")]
Cursor = Annotated[str | None, Query(description="`next` of the page before")]

_LONGEST_NAME = 300  # characters of a name
_NO_NUL = r"^[^\x00]*$"
_LAST_NS = 2**63 - 1
_MOST_COMM = 2**64

JobName = Annotated[str, Path(min_length=1, max_length=_LONGEST_NAME, pattern=_NO_NUL, description="id of the job")]
HostName = Annotated[str, Path(min_length=1, max_length=_LONGEST_NAME, pattern=_NO_NUL)]
Identity = Annotated[str, Path(min_length=1, max_length=_LONGEST_NAME, pattern=_NO_NUL)]
Wanted = Annotated[str | None, Query(min_length=1, max_length=_LONGEST_NAME, pattern=_NO_NUL)]
Attempt = Annotated[int | None, Query(ge=0, le=65_535, description="of the job; the newest where none is given")]
Timestamp = Annotated[int | None, Query(ge=0, le=_LAST_NS, description="UNIX time in nanoseconds")]
Comm = Annotated[
    str | None, Query(pattern=r"^[0-9]{1,20}$", description="communicator; all of them where none is given")
]
SinceS = Annotated[int, Query(ge=1, le=30 * 86_400, description="how far to look back, in seconds")]


@dataclass(frozen=True)
class Parts:
    """The services behind the routes."""

    settings: Settings
    store: Store
    layout: Layout
    control: ControlDatabase
    gateway: Gateway
    clock: Clock
    topology: Topology | None = None
    duties: tuple[str, ...] = ()  # that this process does whenever no other does them
    notice: str = field(default="")  # a sentence for the first page, such as that this is a demo
    delivered: DeliveryCounts = field(default_factory=DeliveryCounts)  # by the alerts of this process

    def analysis(self) -> str:
        """Return how far behind the analysis is, as a sentence; empty where it keeps up."""
        known = read_analysis(self.control)
        return analysis_words(known.until_ns if known else None, self.clock.now_ns())

    def second_ns(self) -> int:
        """Return when this second ends: all who ask within it ask the same, and miss nothing that is there."""
        return (self.clock.now_ns() // NS_PER_S + 1) * NS_PER_S


def parts_of(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


async def hold_parts(request: Request) -> Parts:  # async: else it would need a thread, and readers may have all
    return parts_of(request)


Held = Annotated[Parts, Depends(hold_parts)]


def show_timestamp(timestamp_ns: int | None) -> str | None:
    """Return a moment as a person reads it; None stays None, and so does what is no date."""
    return None if timestamp_ns is None or not 0 <= timestamp_ns <= _LATEST_NS else rfc3339(timestamp_ns)


def check_range(start_ns: int, end_ns: int, longest_ns: int) -> None:
    """Raise BadInput unless the stretch goes forward and is not too long to answer about."""
    if not 0 <= start_ns < end_ns:
        raise BadInput(f"from_ns {start_ns} has to be before to_ns {end_ns}")
    if end_ns - start_ns > longest_ns:
        raise BadInput(f"from {start_ns} to {end_ns} is more than {longest_ns // 10**9} s, the most that is answered")


class Page(Frozen, Generic[Item]):
    """Some items of a list, and where the list goes on."""

    items: tuple[Item, ...]
    next: str | None = Field(None, description="cursor of the following page; None: this was the last")


def cut_page(found: Sequence[Item], limit: int, sort_key: Callable[[Item], SortKey]) -> Page[Item]:
    """Return a page of what was found by asking for one item more than it holds.

    >>> cut_page([1, 2, 3], 3, lambda number: (number,)).next is None
    True
    """
    items = tuple(found[:limit])
    following = write_cursor(sort_key(items[-1])) if len(found) > limit and items else None
    return Page(items=items, next=following)


def cut_sorted(
    found: Sequence[Item], limit: int, after: SortKey | None, sort_key: Callable[[Item], SortKey]
) -> Page[Item]:
    """Return a page of a whole list that is sorted by its places, for lists that are made in one go anyway."""
    rest = found if after is None else [item for item in found if sort_key(item) > after]
    return cut_page(rest[: limit + 1], limit, sort_key)


def digest_of(item: Frozen) -> str:
    """Return what tells an item from others of the same moment, for lists whose items have no id."""
    return hashlib.sha256(item.model_dump_json().encode()).hexdigest()[:16]


def write_cursor(key: SortKey) -> str:
    """Return the text that stands for a key; `read_cursor` gives the key back."""
    text = json.dumps(key, ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, *kinds: type) -> SortKey | None:
    """Return the key that a cursor stands for, None for no cursor, or raise BadInput where it is none of ours.

    >>> read_cursor(write_cursor((5, "h3")), int, str)
    (5, 'h3')
    """
    if cursor is None:
        return None
    try:
        if len(cursor) > _LONGEST_CURSOR:
            raise ValueError
        padded = cursor + "=" * (-len(cursor) % 4)
        values = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
        is_ours = isinstance(values, list) and [type(value) for value in values] == list(kinds)
        if not is_ours or not all(_can_be_stored(value) for value in values):
            raise ValueError
    except (binascii.Error, ValueError, RecursionError):
        raise BadInput(f"{cursor[:100]!r} is not a cursor that this server gave") from None
    return tuple(values)


def add_link(request: Request, response: Response, page: Page[Item]) -> Page[Item]:
    """Return the page, with the Link header (RFC 8288) of the following one in the response."""
    if page.next:
        response.headers["Link"] = f'<{request.url.include_query_params(cursor=page.next)}>; rel="next"'
    return page


async def refuse_unknown(request: Request) -> None:
    """Raise BadInput for a parameter that the route does not have: a mistyped filter would show all."""
    known = _parameters_of(request.scope["route"].dependant)
    for name in request.query_params:
        if name not in known:
            close = get_close_matches(name, known, 1)
            guess = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known)) or 'none'}"
            raise BadInput(f"there is no parameter {name[:100]!r} here{guess}")


KnownParameters = Depends(refuse_unknown)


@dataclass(frozen=True)
class Paging:
    """Which page of a list is asked for; the answer gets the link to the following one."""

    request: Request
    response: Response
    limit: int
    cursor: str | None

    def after(self, *kinds: type) -> SortKey | None:
        """Return where the page before ended, None for the first page, or raise BadInput."""
        return read_cursor(self.cursor, *kinds)

    def cut(self, found: Sequence[Item], sort_key: Callable[[Item], SortKey]) -> Page[Item]:
        """Return the page, of one item more than it holds."""
        return add_link(self.request, self.response, cut_page(found, self.limit, sort_key))

    def cut_sorted(
        self, found: Sequence[Item], after: SortKey | None, sort_key: Callable[[Item], SortKey]
    ) -> Page[Item]:
        """Return the page, of the whole list."""
        return add_link(self.request, self.response, cut_sorted(found, self.limit, after, sort_key))


async def read_paging(request: Request, response: Response, limit: Limit = USUAL, cursor: Cursor = None) -> Paging:
    return Paging(request, response, limit, cursor)


Paged = Annotated[Paging, Depends(read_paging)]


def read_comm(comm: str | None) -> int | None:
    """Return the number of a communicator, or raise BadInput where none has such a number."""
    if comm is not None and int(comm) >= _MOST_COMM:
        raise BadInput(f"{comm} is no communicator: its number has more than 64 bits")
    return None if comm is None else int(comm)


def read_window(from_ns: int | None, to_ns: int | None, longest_ns: int) -> Window | None:
    """Return the stretch of time that is asked for, None where none is, or raise BadInput."""
    if from_ns is None and to_ns is None:
        return None
    if from_ns is None or to_ns is None:
        raise BadInput("from_ns and to_ns come together: one of them is missing")
    check_range(from_ns, to_ns, longest_ns)
    return Window(from_ns, to_ns)


def _parameters_of(dependant: Dependant) -> set[str]:
    return {field.alias for field in dependant.query_params}.union(*map(_parameters_of, dependant.dependencies))


def _can_be_stored(value: int | str) -> bool:
    if isinstance(value, int):
        return value in _INTEGERS
    value.encode()  # a lone half of a pair is no text: it raises a ValueError
    return "\0" not in value
