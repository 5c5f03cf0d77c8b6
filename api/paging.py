"""Long lists in pages: an opaque cursor that says where a page ended, and the Link header that leads on.

A cursor holds the sorting key of the last item, never a count: rows that come in meanwhile move nothing, so whoever
follows `next` to the end sees every item that was there from the beginning exactly once.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

from fastapi import Query, Request, Response
from pydantic import Field

from lockstep.errors import BadInput
from lockstep.verdict import Frozen

MOST = 500  # items of a page: what a person scrolls through and a program reads in one go
USUAL = 100
_LONGEST = 2_000  # characters of a cursor: a key holds two names at most
_INTEGERS = range(-(2**63), 2**63)  # what both databases hold

Item = TypeVar("Item")
Place = tuple[int | str, ...]  # the sorting key of an item

Limit = Annotated[int, Query(ge=1, le=MOST, description="most items of a page")]
Cursor = Annotated[str | None, Query(description="`next` of the page before")]


class Page(Frozen, Generic[Item]):
    """Some items of a list, and where the list goes on."""

    items: tuple[Item, ...]
    next: str | None = Field(None, description="cursor of the following page; None: this was the last")


def cut_page(found: Sequence[Item], limit: int, place_of: Callable[[Item], Place]) -> Page[Item]:
    """Return a page of what was found by asking for one item more than it holds.

    >>> cut_page([1, 2, 3], 3, lambda number: (number,)).next is None
    True
    """
    items = tuple(found[:limit])
    following = write_cursor(place_of(items[-1])) if len(found) > limit and items else None
    return Page(items=items, next=following)


def cut_sorted(
    found: Sequence[Item], limit: int, after: Place | None, place_of: Callable[[Item], Place]
) -> Page[Item]:
    """Return a page of a whole list that is sorted by its places, for lists that are made in one go anyway."""
    rest = found if after is None else [item for item in found if place_of(item) > after]
    return cut_page(rest[: limit + 1], limit, place_of)


def digest_of(item: Frozen) -> str:
    """Return what tells an item from others of the same moment, for lists whose items have no id."""
    return hashlib.sha256(item.model_dump_json().encode()).hexdigest()[:16]


def write_cursor(place: Place) -> str:
    """Return the text that stands for a place; `read_cursor` gives the place back."""
    text = json.dumps(place, ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, *kinds: type) -> Place | None:
    """Return the place that a cursor stands for, None for no cursor, or raise BadInput where it is none of ours.

    >>> read_cursor(write_cursor((5, "h3")), int, str)
    (5, 'h3')
    """
    if cursor is None:
        return None
    try:
        if len(cursor) > _LONGEST:
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


def _can_be_stored(value: int | str) -> bool:
    if isinstance(value, int):
        return value in _INTEGERS
    value.encode()  # a lone half of a pair is no text: it raises a ValueError
    return "\0" not in value
