"""A store that hangs takes a bounded number of threads: incidents, approvals and probes are answered as ever."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from api import sharing
from lockstep.clock import SystemClock
from lockstep.config import Settings
from lockstep.sections import ApiSettings
from lockstep.state.decisions import save_decisions, save_isolated
from lockstep.state.incidents import save_incidents
from tests.api.build import Api, batch_headers, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore, away
from tests.lockstep.state.build import decision, incident
from tests.lockstep.state.test_executions import isolated
from tests.waiting import eventually

HUNG = 60
EIGHT = [f"/api/v1/jobs?job=j{number}" for number in range(8)]  # as many questions: equal ones would be one


class FakeHangingStore(FakeStore):
    """A fake that answers nothing until it is let go, and counts who waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self._counting = threading.Lock()
        self.waiting = self.most_waiting = 0

    def query(self, sql: str, parameters: object = None) -> pa.Table:
        with self._counting:
            self.waiting += 1
            self.most_waiting = max(self.most_waiting, self.waiting)
        self.go.wait(60)
        with self._counting:
            self.waiting -= 1
        raise away()


@contextmanager
def hung_readers(api: Api, store: FakeHangingStore, paths: list[str]) -> Iterator[list[httpx.Response]]:
    """Ask for each path from a thread of its own; their answers are in the list at the end."""
    reader, answers = bearer(api.make_token("read")), list[httpx.Response]()

    def ask(path: str) -> None:
        answers.append(api.client.get(path, headers=reader))

    asking = [threading.Thread(target=ask, args=(path,)) for path in paths]
    for each in asking:
        each.start()
    try:
        yield answers
    finally:
        store.go.set()
        for each in asking:
            each.join()


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Api, FakeHangingStore]]:
    """An app over a store that hangs, which waits a moment for a slot, with an incident and a decision."""
    monkeypatch.setattr(sharing, "WAIT_S", 0.05)
    store, settings = FakeHangingStore(), Settings(api=ApiSettings(requests_per_s=0, store_reads=8))
    with running_api(tmp_path, store, settings=settings, clock=SystemClock()) as api:
        now_ns = api.parts.clock.now_ns()
        save_incidents(api.parts.control, [incident("i1")], None)
        made = decision("d1", incident="i1", created_ns=now_ns)
        save_decisions(api.parts.control, [made.model_copy(update={"expires_ns": now_ns + 10**12})], None)
        try:
            yield api, store
        finally:
            store.go.set()


def test_sixty_hung_reads_stop_neither_incidents_nor_approvals(hanging: tuple[Api, FakeHangingStore]) -> None:
    api, store = hanging
    actor = bearer(api.make_token("act"))
    paths = [f"/api/v1/jobs/j{number}{('', '/steps')[number % 2]}" for number in range(HUNG)]
    with hung_readers(api, store, paths) as answers:
        eventually(lambda: len(answers) == HUNG - 8)
        assert (store.waiting, {answer.status_code for answer in answers}) == (8, {503})
        assert api.get("/api/v1/incidents").json()["items"][0]["id"] == "i1"
        assert api.get("/api/v1/incidents/i1").status_code == 200
        assert api.client.get("/healthz").status_code == 200
        approved = api.client.post("/api/v1/decisions/d1/approve", json={"why": "sure"}, headers=actor)
        assert approved.status_code == 202, approved.text
        undone = api.client.post("/api/v1/decisions/d1/undo", json={"why": "not sure"}, headers=actor)
        assert undone.status_code == 202, undone.text
    assert store.most_waiting == 8


def test_who_gets_no_slot_is_told_to_come_again_and_shown_what_is_known_without_the_store(
    hanging: tuple[Api, FakeHangingStore],
) -> None:
    api, store = hanging
    save_isolated(api.parts.control, isolated(node="h0", component="gpu:h0/1"), api.lease("planner"))
    html = bearer(api.make_token("read")) | {"Accept": "text/html"}
    with hung_readers(api, store, EIGHT):
        eventually(lambda: store.waiting == 8)
        refused = api.get("/api/v1/hosts")
        assert "as many requests as may wait for it do so already" in check_problem(refused, 503, "store-away")
        assert refused.headers["Retry-After"] == "1"
        check_problem(api.client.get("/api/v1/hosts"), 401, "no-token")
        for path in ("/", "/incidents/i1"):
            shown = api.client.get(path, headers=html)
            assert (shown.status_code, "as may wait for it" in shown.text) == (200, True)
        page = api.client.get("/job?job=a", headers=html)
        assert (page.status_code, "Not available now" in page.text) == (503, True)
        word: dict[str, Any] = {"why": "sparks", "part": {"serial": "s1"}}
        told = api.client.post("/api/v1/isolated/h0/rma", json=word, headers=bearer(api.make_token("act")))
        assert told.status_code == 202, "a person's word on a node does not wait for the store"
        agent = batch_headers(api.make_token("ingest", "h0"))
        assert api.client.post("/api/v1/ingest", headers=agent, content=b"x").status_code == 400, "it was looked at"


def test_slot_is_free_again_after_each_answer(hanging: tuple[Api, FakeHangingStore]) -> None:
    api, store = hanging
    store.go.set()
    assert {api.get("/api/v1/jobs").status_code for _ in range(20)} == {503}
    store.go.clear()
    with hung_readers(api, store, EIGHT):
        eventually(lambda: store.waiting == 8)
