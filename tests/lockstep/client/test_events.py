"""Events of a stream are told apart as the HTML standard says, however the stream was cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.server import Event, parse_events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("id: 7\nevent: opened\ndata: {}\n\n", [Event("7", "opened", "{}")]),
        ("data: a\ndata: b\n\n", [Event("", "message", "a\nb")]),
        ("data:a\n\n", [Event("", "message", "a")]),
        ("data:  a\n\n", [Event("", "message", " a")]),
        (": sign of life\n\n: and another\n\n", []),
        ("event: opened\n\ndata: a\n\n", [Event("", "message", "a")]),
        ("id: 1\n\ndata: a\n\ndata: b\n\n", [Event("1", "message", "a"), Event("1", "message", "b")]),
        ("id: 1\ndata: a\n\nid: 2\ndata: lost", [Event("1", "message", "a")]),
        ("data\n\n", [Event("", "message", "")]),
        ("retry: 100\nnonsense\ndata: a\n\n", [Event("", "message", "a")]),
        ("id: a\0b\ndata: a\n\n", [Event("", "message", "a")]),
    ],
)
def test_lines_become_events(text: str, events: list[Event]) -> None:
    assert list(parse_events(text.split("\n"))) == events


_WORD = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=8)


@given(st.lists(st.tuples(_WORD.filter(bool), _WORD.filter(bool), st.lists(_WORD, min_size=1, max_size=3))))
def test_what_was_written_is_read(told: list[tuple[str, str, list[str]]]) -> None:
    lines = [
        line
        for identity, kind, data in told
        for line in (f"id: {identity}", f"event: {kind}", *(f"data: {one}" for one in data), "")
    ]
    assert list(parse_events(lines)) == [Event(i, kind, "\n".join(data)) for i, kind, data in told]
