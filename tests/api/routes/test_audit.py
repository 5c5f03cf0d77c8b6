"""The audit is read from the newest line back, narrowed down by who, what and subject."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.state.documents import record
from tests.api.build import Api, check_problem, running_api
from tests.api.fake_store import FakeStore

LINES = [(who, what) for who in ("ann", "bob", "planner") for what in ("approve", "undo", "isolate", "release")]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("audit"), FakeStore()) as running:
        for number, (who, what) in enumerate(LINES):
            record(running.parts.control, who=who, what=what, subject=f"d{number}", why="told so", now_ns=number)
        running.get("/api/v1/audit")  # makes the reader's token, which is a line too
        yield running


def test_newest_line_comes_first(api: Api) -> None:
    items = api.get("/api/v1/audit").json()["items"]
    assert [line["what"] for line in items[:2]] == ["create_token", "release"]
    assert items[1]["who"] == "planner"
    assert (items[1]["subject"], items[1]["why"]) == ("d11", "told so")


@pytest.mark.parametrize(("query", "count"), [({"who": "ann"}, 4), ({"what": "undo"}, 3), ({"subject": "d5"}, 1)])
def test_lines_are_narrowed_down(api: Api, query: dict[str, str], count: int) -> None:
    items = api.get("/api/v1/audit", query).json()["items"]
    assert len(items) == count
    assert all(line[name] == value for line in items for name, value in query.items())


@settings(max_examples=20, deadline=None)
@given(limit=st.integers(1, 15), who=st.sampled_from([None, "ann", "nobody"]))
def test_pages_together_are_the_whole(api: Api, limit: int, who: str | None) -> None:
    narrowed = {"who": who} if who else {}
    whole = api.get("/api/v1/audit", narrowed).json()["items"]
    seen, cursor = [], ""
    while True:
        page = api.get("/api/v1/audit", {**narrowed, "limit": limit, **({"cursor": cursor} if cursor else {})}).json()
        seen += page["items"]
        assert len(page["items"]) <= limit
        if page["next"] is None:
            break
        cursor = page["next"]
    assert seen == whole


def test_cursor_of_somebody_else_is_refused(api: Api) -> None:
    check_problem(api.get("/api/v1/audit", {"cursor": "x"}), 400, "bad-input")
