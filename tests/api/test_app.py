"""Whether all is there is asked once a second, and a busy machine is not called broken while it works that out."""

import threading
from collections.abc import Callable

import pytest

from api import app as app_module
from api.app import remember_check
from lockstep.clock import ManualClock
from lockstep.errors import StoreAway
from lockstep.state.incidents import save_incidents
from tests.api.build import Api, bearer, check_problem
from tests.builders import T0
from tests.lockstep.state.build import incident

PATIENCE_S = 60


class Check:
    """Says what it is told to say, when it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.trouble: StoreAway | None = None
        self.began, self.go = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self) -> None:
        self.asked += 1
        self.began.set()
        assert self.go.wait(PATIENCE_S)
        if self.trouble is not None:
            raise self.trouble


def while_somebody_asks(check: Check, ready: Callable[[], None], act: Callable[[], None]) -> None:
    check.began.clear()
    check.go.clear()
    other = threading.Thread(target=ready)
    other.start()
    try:
        assert check.began.wait(PATIENCE_S)
        act()
    finally:
        check.go.set()
        other.join()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_PATIENCE_S", 0.01)


def test_answer_holds_for_a_second_and_while_the_next_is_worked_out_unless_nothing_is_known() -> None:
    clock, check = ManualClock(T0), Check()
    ready = remember_check(check, clock)
    ready()
    ready()
    assert check.asked == 1
    check.trouble = StoreAway("the store is away")
    clock.advance(1.0)
    for _ in range(2):
        with pytest.raises(StoreAway, match="the store is away"):
            ready()
    assert check.asked == 2
    clock, check = ManualClock(T0), Check()
    ready = remember_check(check, clock)
    ready()
    clock.advance(4.0)
    while_somebody_asks(check, ready, ready)

    def refused(ready: Callable[[], None]) -> None:
        with pytest.raises(StoreAway, match="still waits for an answer"):
            ready()

    clock, check = ManualClock(T0), Check()
    ready = remember_check(check, clock)
    while_somebody_asks(check, ready, lambda: refused(ready))
    clock.advance(5.0)
    while_somebody_asks(check, ready, lambda: refused(ready))


LIST = "/api/v1/incidents"


def test_list_that_others_have_asked_for_is_refused_to_strangers_and_the_revoked(api: Api) -> None:
    secret, admin = api.make_token("read"), bearer(api.make_token("admin"))
    assert api.client.get(LIST, headers=bearer(secret)).status_code == 200
    assert api.client.delete(f"/api/v1/tokens/{secret.split('_')[1]}", headers=admin).status_code < 300
    check_problem(api.client.get(LIST, headers=bearer(secret)), 401, "unknown-token")
    check_problem(api.client.get(LIST), 401, "no-token")
    agent = api.make_token("ingest", "h0")
    check_problem(api.client.get(LIST, headers=bearer(agent)), 403, "wrong-scope")


def test_second_answer_is_as_the_first(api: Api) -> None:
    save_incidents(api.parts.control, [incident(f"i{number}") for number in range(3)], None)
    asked = {"": 200, "?limit=1": 200, "?state=open&limit=2": 200, "?job=x": 200, "?limit=x": 422}
    for query, status in asked.items():
        first, second = (api.get(LIST + query) for _ in range(2))
        assert first.status_code == second.status_code == status
        assert second.json() == first.json()
        for each in (first, second):
            del each.headers["date"], each.headers["x-request-id"]
        assert first.headers == second.headers
