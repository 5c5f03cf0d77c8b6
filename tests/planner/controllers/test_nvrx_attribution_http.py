"""The launcher's questions over HTTP, asked as its own client asks them."""

from collections.abc import Iterator

import httpx
import pytest

from lockstep.clock import ManualClock
from planner.controllers.nvrx_attribution import Attribution
from planner.controllers.nvrx_attribution_http import serving_attribution
from tests.planner.controllers.test_nvrx_attribution import Server, decision


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    server = Server()
    server.newest = decision("reconfigure", expires_ns=10**19)
    asked = Attribution(server.find, ManualClock(1))
    with serving_attribution(asked, "127.0.0.1", 0) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield client


def test_cycle_is_posted_and_its_answer_fetched(client: httpx.Client) -> None:
    told = {"log_path": "/logs/c 0.log", "user": "ada", "job_id": "17", "analysis_intent": "terminal"}
    posted = client.post("/logs", json=told, headers={"accept": "application/json"})
    assert (posted.status_code, posted.json()["submitted"]) == (200, True)
    answer = client.get("/logs", params={"log_path": "/logs/c 0.log", "wait": False}).json()
    assert (answer["status"], answer["recommendation"]["action"]) == ("completed", "STOP")
    assert client.get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_nonsense_is_refused_with_a_sentence(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/logs", content=body)
    assert answer.status_code == 400
    assert answer.json()["detail"]


def test_submission_beyond_measure_is_not_read(client: httpx.Client) -> None:
    answer = client.post("/logs", content=b" " * 70_000)
    assert (answer.status_code, "at most 65536 bytes" in answer.json()["detail"]) == (400, True)


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/logs"), ("POST", "/other")])
def test_other_questions_have_no_answer(client: httpx.Client, method: str, path: str) -> None:
    assert client.request(method, path).status_code == 404
