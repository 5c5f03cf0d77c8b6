"""Every error has the same shape, each kind its status, and none of them shows the insides of the server."""

import pytest
from structlog.testing import capture_logs

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

    monkeypatch.setattr("api.reading.incidents.IncidentPages.find", fail)
    answer = shared_api.get(INCIDENTS)
    assert "said" in check_problem(answer, status, slug)
    assert ("Retry-After" in answer.headers) == (status == 503)


def test_error_that_nobody_foresaw_shows_nothing_and_is_in_the_log(
    shared_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("password=correct-horse")

    monkeypatch.setattr("api.reading.incidents.IncidentPages.find", fail)
    with capture_logs() as lines:
        answer = shared_api.get(INCIDENTS)
    sentence = check_problem(answer, 500, "failed")
    assert sentence == "this should not have happened; the server's log says more"
    assert "horse" not in answer.text
    assert "RuntimeError" not in answer.text
    assert [(line["event"], line["path"], str(line["exc_info"])) for line in lines] == [
        ("request failed", INCIDENTS, "password=correct-horse")
    ]
