"""Probes need no token, and readiness names what is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from api.routes.health import health_app
from lockstep import __version__
from lockstep.clock import NS_PER_S
from lockstep.errors import ControlAway, LockstepError
from lockstep.state.leases import take_lease
from lockstep.store.migrations import Layout
from lockstep.store.store import Store
from tests.api.build import Api, batch_headers, check_problem, open_client, running_api, served
from tests.api.fake_store import AwayStore, FakeStore, away
from tests.api.ingest.build import batch
from tests.waiting import eventually


def test_whole_process_is_alive_and_ready_and_says_its_version(api: Api) -> None:
    answer = api.client.get("/healthz")
    assert (answer.status_code, answer.text) == (200, "ok\n")
    assert api.client.get("/version").json() == {"version": __version__}
    answer = api.client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ready": True})
    headers = batch_headers(api.make_token("ingest", "metrics"), agent="metrics")
    api.client.post("/api/v1/ingest", content=batch("a", host="metrics"), headers=headers)
    answer = api.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert 'lockstep_ingest_batches_total{result="accepted"} 1.0' in answer.text


@pytest.mark.parametrize("is_away", [True, False], ids=["away", "never migrated"])
def test_process_whose_store_cannot_be_used_is_not_ready_but_alive(
    tmp_path: Path, shared_store: Store, is_away: bool
) -> None:
    reason = "the store at nowhere does not answer" if is_away else "run `lockstep store migrate` first"
    store = AwayStore() if is_away else shared_store
    with running_api(tmp_path, store, layout=None if is_away else Layout("never_migrated")) as api:
        answer = api.client.get("/readyz")
        assert (answer.status_code, answer.json()["ready"], reason in answer.json()["reason"]) == (503, False, True)
        assert api.client.get("/healthz").status_code == 200


def test_process_whose_control_database_is_away_is_not_ready(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def fail() -> Iterator[None]:
        raise ControlAway("the control database is gone")
        yield

    monkeypatch.setattr(api.parts.control, "read", fail)
    answer = api.client.get("/readyz")
    assert (answer.status_code, answer.json()["reason"]) == (503, "the control database is gone")


def test_process_is_not_ready_while_nobody_does_one_of_its_duties(tmp_path: Path, shared_store: Store) -> None:
    with running_api(tmp_path, shared_store, duties=("alerts",)) as api:
        answer = api.client.get("/readyz")
        assert (answer.status_code, answer.json()["reason"]) == (503, "nobody holds the lease of: alerts")
        take_lease(api.parts.control, "alerts", "another", 15 * NS_PER_S, api.parts.clock.now_ns())
        eventually(lambda: api.client.get("/readyz").status_code == 200)


def test_process_whose_batches_pile_up_is_not_ready_until_they_are_taken(tmp_path: Path, shared_store: Store) -> None:
    behind = FakeStore(fault=away())
    with running_api(tmp_path, shared_store, gateway_store=behind) as api:
        api.client.post("/api/v1/ingest", content=batch("a"), headers=batch_headers(api.make_token("ingest", "h0")))
        eventually(lambda: api.client.get("/readyz").status_code == 503)
        assert api.client.get("/readyz").json()["reason"] == "the store at nowhere does not answer"
        behind.fault = None
        eventually(lambda: api.client.get("/readyz").status_code == 200)


def test_service_without_an_api_answers_the_same_probes() -> None:
    registry, trouble = CollectorRegistry(), list[str]()
    Counter("lockstep_windows", "Windows analysed", registry=registry)

    def check_ready() -> None:
        if trouble:
            raise LockstepError(trouble[0])

    with served(health_app(check_ready, [registry])) as url, open_client(url) as client:
        assert client.get("/healthz").text == "ok\n"
        assert client.get("/readyz").status_code == 200
        assert "lockstep_windows_total 0.0" in client.get("/metrics").text
        trouble.append("the store is away")
        assert client.get("/readyz").json() == {"ready": False, "reason": "the store is away"}
        check_problem(client.get("/api/v1/incidents"), 404, "not-found")
