"""Whoever follows the cursor to the end sees every item once and in order, whatever comes in meanwhile."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.query import Page, SortKey, cut_page, cut_sorted, digest_of, read_cursor, write_cursor
from lockstep.errors import BadInput
from lockstep.verdict import Frozen

INTEGERS = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50)
Key = tuple[int, str]


def key_of(item: Key) -> SortKey:
    return item


def follow(items: list[Key], limit: int, arriving: list[Key]) -> list[Key]:
    """Return what a reader sees who asks page by page while items arrive in between, one by one."""
    here, seen, cursor = sorted(items), list[Key](), None
    for number in range(len(items) + len(arriving) + 2):
        page = cut_sorted(here, limit, read_cursor(cursor, int, str), key_of)
        assert len(page.items) <= limit
        seen += page.items
        cursor = page.next
        if cursor is None:
            return seen
        here = sorted({*here, *arriving[: number + 1]})
    raise AssertionError("the list does not end")


@given(st.tuples(INTEGERS, NAMES))
def test_cursor_gives_its_place_back(place: tuple[int, str]) -> None:
    assert read_cursor(write_cursor(place), int, str) == place


@given(st.sets(st.tuples(st.integers(0, 5), NAMES), max_size=30), st.integers(1, 8))
def test_every_item_is_seen_once_and_in_order(items: set[Key], limit: int) -> None:
    assert follow(list(items), limit, []) == sorted(items)


@given(
    st.sets(st.tuples(st.integers(0, 5), NAMES), max_size=20),
    st.lists(st.tuples(st.integers(0, 5), NAMES), max_size=10),
    st.integers(1, 5),
)
def test_items_that_arrive_meanwhile_hide_none_and_double_none(
    items: set[Key], arriving: list[Key], limit: int
) -> None:
    seen = follow(list(items), limit, arriving)
    assert seen == sorted(seen)
    assert len(seen) == len(set(seen))
    assert items <= set(seen)


def test_page_that_holds_all_has_no_next() -> None:
    assert cut_page([(1, "a"), (2, "b")], 2, key_of) == Page(items=((1, "a"), (2, "b")), next=None)
    assert cut_page([], 2, key_of).next is None


@given(st.text(max_size=80))
def test_text_that_is_no_cursor_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(BadInput) as refusal:  # no text this short and arbitrary holds a number and a name
        read_cursor(text, int, str)
    assert str(refusal.value) == f"{text[:100]!r} is not a cursor that this server gave"


@pytest.mark.parametrize(
    "values", [[1], [1, "a", 2], ["a", 1], [2**63, "a"], [1, "\0"], [1, "\ud800"], [True, "a"], [1.0, "a"], {"a": 1}]
)
def test_cursor_of_another_list_is_refused(values: object) -> None:
    cursor = base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
    with pytest.raises(BadInput, match="is not a cursor that this server gave"):
        read_cursor(cursor, int, str)


def test_cursor_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadInput, match="is not a cursor"):
        read_cursor(write_cursor((1, "x" * 5000)), int, str)


def test_digest_tells_items_of_one_moment_apart() -> None:
    class Item(Frozen):
        what: str

    assert digest_of(Item(what="a")) == digest_of(Item(what="a")) != digest_of(Item(what="b"))
