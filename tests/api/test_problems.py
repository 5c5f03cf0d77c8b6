"""Every error and every page of a list has the same shape, and none of them shows the insides of the server."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st

from api.app import create_app
from api.dependencies import Page, SortKey, cut_page, cut_sorted, digest_of, read_cursor, refuse_unknown, write_cursor
from api.problems import name_operation
from lockstep.errors import (
    BadInput,
    BadSettings,
    ControlAway,
    GatewayFull,
    LeaseLost,
    LockstepError,
    NotPresent,
    StoreAway,
    StoreBusy,
    StoreRefused,
    StoreVersionMismatch,
)
from lockstep.verdict import Frozen
from tests.api.build import Api, check_problem

INCIDENTS = "/api/v1/incidents"


def test_path_that_does_not_exist_and_method_that_is_not_allowed_are_problems(shared_api: Api) -> None:
    for path in ("/nowhere", "/api/v1/nowhere", "/docs", "/redoc"):
        check_problem(shared_api.client.get(path), 404, "not-found")
    for method, path, allowed in (("POST", INCIDENTS, "GET"), ("GET", "/api/v1/ingest", "POST")):
        answer = shared_api.client.request(method, path)
        check_problem(answer, 405, "method-not-allowed")
        assert answer.headers["Allow"] == allowed


@pytest.mark.parametrize(
    ("error", "status", "slug"),
    [
        (BadInput("said"), 400, "bad-input"),
        (BadSettings(["said"]), 400, "bad-input"),
        (NotPresent("said"), 404, "not-found"),
        (GatewayFull("said"), 503, "busy"),
        (StoreAway("said"), 503, "store-away"),
        (ControlAway("said"), 503, "control-away"),
        (StoreBusy("said"), 502, "store-refused"),
        (StoreRefused("said", 47), 502, "store-refused"),
        (StoreVersionMismatch("said"), 502, "store-refused"),
        (LeaseLost("said"), 500, "failed"),
        (LockstepError("said"), 500, "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_of_our_errors_has_its_status_and_keeps_its_sentence(
    shared_api: Api, monkeypatch: pytest.MonkeyPatch, error: LockstepError, status: int, slug: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("api.views.incidents.IncidentPages.find", fail)
    answer = shared_api.get(INCIDENTS)
    assert "said" in check_problem(answer, status, slug)
    assert ("Retry-After" in answer.headers) == (status == 503)


def test_parameter_that_a_route_does_not_have_is_refused_and_not_ignored(shared_api: Api) -> None:
    mistyped = shared_api.get(INCIDENTS, {"stat": "open"})
    assert check_problem(mistyped, 400, "bad-input") == "there is no parameter 'stat' here; did you mean 'state'?"
    strange = shared_api.get("/api/v1/hosts", {"xyz": "1"})
    assert "there is no parameter 'xyz' here; known are cursor, " in check_problem(strange, 400, "bad-input")
    assert shared_api.get(INCIDENTS, {"limit": 1, "state": "open", "class": "crash"}).status_code == 200
    routes = [route for route in create_app(shared_api.parts).routes if isinstance(route, APIRoute)]
    ours = [route for route in routes if route.path.startswith("/api/v1/")]
    careless = {
        each.path for each in ours if refuse_unknown not in [inner.call for inner in each.dependant.dependencies]
    }
    assert careless == {"/api/v1/ingest", *(path for path in careless if path.startswith("/api/v1/intake/"))}


COPY = Path(__file__).parents[2] / "docs" / "openapi.json"
SHORT = {"/api/v1/webhooks"}  # receivers of alerts are made by hand, a dozen at most
PROBLEMS = {"400", "401", "403", "404", "422", "429", "500", "503"}


@pytest.fixture(scope="module")
def document(shared_api: Api) -> dict[str, Any]:
    found: dict[str, Any] = shared_api.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, each) for path, methods in document["paths"].items() for method, each in methods.items()]


def test_copy_in_docs_is_the_description_that_is_served(document: dict[str, Any], update_golden: bool) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if update_golden:
        COPY.write_text(text, encoding="utf-8")
    assert COPY.read_text(encoding="utf-8") == text, "run this test with --update-golden"


def test_operations_have_a_summary_an_id_problems_models_and_pages(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert "RFC 9457" in document["info"]["description"]
    every = operations(document)
    assert len({operation["operationId"] for _, _, operation in every}) == len(every)
    for method, path, operation in every:
        place = f"{method} {path}"
        assert operation.get("summary"), place
        assert operation["operationId"] == name_operation(method, path)
        assert not PROBLEMS - set(operation["responses"]), place
        for status in PROBLEMS:
            assert "application/problem+json" in operation["responses"][status]["content"], f"{place} {status}"
    ours = ("/api/v1/jobs", "/api/v1/hosts", "/api/v1/gpus", "/api/v1/nics", "/api/v1/agents", "/api/v1/parts")
    reads = [(path, each) for method, path, each in operations(document) if method == "get" and path.startswith(ours)]
    assert len(reads) >= 12
    for path, operation in reads:
        (content,) = operation["responses"]["200"]["content"].values()
        assert "$ref" in content["schema"] or content["schema"].get("format") == "binary", path
    schemas = document["components"]["schemas"]
    for method, path, operation in operations(document):
        content = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
        model = schemas.get(content.get("schema", {}).get("$ref", "").rpartition("/")[2], {})
        if method == "get" and path not in SHORT and {"items", "next"} <= set(model.get("properties", {})):
            asked = {parameter["name"] for parameter in operation.get("parameters", ())}
            assert {"limit", "cursor"} <= asked, path


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


PLACES = st.tuples(st.integers(0, 5) | st.integers(-(2**63), 2**63 - 1), NAMES)


@given(st.sets(PLACES, max_size=20), st.lists(PLACES, max_size=10), st.integers(1, 5))
def test_items_that_arrive_hide_none_and_double_none(items: set[Key], arriving: list[Key], limit: int) -> None:
    seen = follow(list(items), limit, arriving)
    assert seen == sorted(seen)
    assert len(seen) == len(set(seen))
    assert items <= set(seen)


def test_page_that_holds_all_has_no_next_and_too_long_a_cursor_is_refused() -> None:
    assert cut_page([(1, "a"), (2, "b")], 2, key_of) == Page(items=((1, "a"), (2, "b")), next=None)
    assert cut_page([], 2, key_of).next is None
    with pytest.raises(BadInput, match="is not a cursor"):
        read_cursor(write_cursor((1, "x" * 5000)), int, str)

    class Item(Frozen):
        what: str

    assert digest_of(Item(what="a")) == digest_of(Item(what="a")) != digest_of(Item(what="b"))


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
