"""The description of the API is complete, its ids are stable, and the copy in docs/ is the one that is served."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.openapi import name_operation
from tests.api.build import Api

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
