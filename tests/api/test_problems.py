"""Every error has the same shape, each kind its status, and none of them shows the insides of the server."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

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
from tests.api.build import Api, check_problem

INCIDENTS = "/api/v1/incidents"


@pytest.mark.parametrize("path", ["/nowhere", "/api/v1/nowhere", "/docs", "/redoc"])
def test_path_that_does_not_exist_is_a_problem(shared_api: Api, path: str) -> None:
    check_problem(shared_api.client.get(path), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("POST", INCIDENTS, "GET"), ("GET", "/api/v1/ingest", "POST")]
)
def test_method_that_is_not_allowed_is_a_problem_and_says_which_is(
    shared_api: Api, method: str, path: str, allowed: str
) -> None:
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


def test_error_that_nobody_foresaw_shows_nothing_and_is_in_the_log(
    shared_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("password=correct-horse")

    monkeypatch.setattr("api.views.incidents.IncidentPages.find", fail)
    with capture_logs() as lines:
        answer = shared_api.get(INCIDENTS)
    sentence = check_problem(answer, 500, "failed")
    assert sentence == "this should not have happened; the server's log says more"
    assert "horse" not in answer.text
    assert "RuntimeError" not in answer.text
    assert [(line["event"], line["path"], str(line["exc_info"])) for line in lines] == [
        ("request failed", INCIDENTS, "password=correct-horse")
    ]


COPY = Path(__file__).parents[2] / "docs" / "openapi.json"
SHORT = {"/api/v1/webhooks"}  # receivers of alerts are made by hand, a dozen at most
PROBLEMS = {"400", "401", "403", "404", "422", "429", "500", "503"}


@pytest.fixture(scope="module")
def document(shared_api: Api) -> dict[str, Any]:
    found: dict[str, Any] = shared_api.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_copy_in_docs_is_the_description_that_is_served(document: dict[str, Any], update_golden: bool) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if update_golden:
        COPY.write_text(text, encoding="utf-8")
    assert COPY.read_text(encoding="utf-8") == text, "run this test with --update-golden"


def test_description_is_openapi_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert "RFC 9457" in document["info"]["description"]


def test_every_operation_has_a_summary_an_id_of_its_own_and_problem_documents(document: dict[str, Any]) -> None:
    every = operations(document)
    assert len({operation["operationId"] for _, _, operation in every}) == len(every)
    for method, path, operation in every:
        place = f"{method} {path}"
        assert operation.get("summary"), place
        assert operation["operationId"] == name_operation(method, path)
        assert not PROBLEMS - set(operation["responses"]), place
        for status in PROBLEMS:
            assert "application/problem+json" in operation["responses"][status]["content"], f"{place} {status}"


def test_every_answer_of_a_read_has_a_model(document: dict[str, Any]) -> None:
    ours = ("/api/v1/jobs", "/api/v1/hosts", "/api/v1/gpus", "/api/v1/nics", "/api/v1/agents", "/api/v1/parts")
    reads = [(path, each) for method, path, each in operations(document) if method == "get" and path.startswith(ours)]
    assert len(reads) >= 12
    for path, operation in reads:
        (content,) = operation["responses"]["200"]["content"].values()
        assert "$ref" in content["schema"] or content["schema"].get("format") == "binary", path


def test_every_list_has_a_limit_and_a_cursor(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for method, path, operation in operations(document):
        content = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
        model = schemas.get(content.get("schema", {}).get("$ref", "").rpartition("/")[2], {})
        if method == "get" and path not in SHORT and {"items", "next"} <= set(model.get("properties", {})):
            asked = {parameter["name"] for parameter in operation.get("parameters", ())}
            assert {"limit", "cursor"} <= asked, path
