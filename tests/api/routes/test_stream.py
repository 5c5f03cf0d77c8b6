"""The stream tells what happens as it happens, and after a break what happened meanwhile."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from lockstep.config import Settings
from lockstep.control.decisions import save_decisions
from lockstep.control.executions import save_execution
from lockstep.control.incidents import save_incidents
from lockstep.control.leases import take_lease
from lockstep.control.tokens import revoke_token
from lockstep.execution import Execution
from lockstep.sections import ApiSettings
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.lockstep.control.build import decision, incident
from tests.waiting import eventually

PATH = "/api/v1/incidents/stream"


class Heard(NamedTuple):
    """One event as a browser would get it."""

    number: int
    name: str
    subject: str


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("stream"), FakeStore()) as running:
        yield running


@contextmanager
def listening(
    api: Api, after: int | str | None = None, query: str = "", token: str = ""
) -> Iterator[Iterator[Heard]]:
    headers = bearer(token or api.make_token("read")) | ({"Last-Event-ID": str(after)} if after is not None else {})
    with api.client.stream("GET", PATH + query, headers=headers, timeout=60) as answer:
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
        lines = answer.iter_lines()
        assert next(lines) == "retry: 2000"
        yield _events(lines)


def _events(lines: Iterator[str]) -> Iterator[Heard]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "data" in fields:
            thing = json.loads(fields["data"])
            yield Heard(int(fields["id"]), fields["event"], thing.get("decision") or thing["id"])
            fields = {}


def save(api: Api, name: str, state: str = "open", job: str = "train") -> None:
    save_incidents(api.parts.control, [incident(name, state=state, job=job)], None)  # type: ignore[arg-type]  # a plain word


def test_incident_is_told_from_its_opening_to_its_end(api: Api) -> None:
    told = []
    with listening(api) as events:
        for state in ("open", "open", "closed"):
            save(api, "i-life", state)
            told.append(next(events)[1:])
    assert told == [(f"incident.{word}", "i-life") for word in ("opened", "updated", "closed")]


def test_decisions_and_executions_are_told_too(api: Api) -> None:
    control = api.parts.control
    with listening(api) as events:
        save(api, "i-act")
        save_decisions(control, [decision("d-act", incident="i-act")], None)
        lease = take_lease(control, "planner", "test", 10**18, api.parts.clock.now_ns())
        assert lease is not None
        save_execution(control, run_of("d-act", "i-act"), lease)
        assert [next(events)[1:] for _ in range(3)] == [
            ("incident.opened", "i-act"),
            ("decision.made", "d-act"),
            ("execution.changed", "d-act"),
        ]


def run_of(decision_id: str, incident_id: str) -> Execution:
    return Execution(
        decision=decision_id,
        incident=incident_id,
        job="train",
        action="replace",
        component="nic:h3/eth1",
        state="executing",
        generation=1,
        approved_by="ann",
        began_ns=5,
    )


def test_listener_goes_on_where_it_broke_off(api: Api) -> None:
    with listening(api) as events:
        save(api, "i-before")
        last = next(events).number
    save(api, "i-meanwhile-1")
    save(api, "i-before", "closed")
    save(api, "i-meanwhile-2")
    with listening(api, after=last) as events:
        heard = [next(events) for _ in range(3)]
    assert [event[1:] for event in heard] == [
        ("incident.opened", "i-meanwhile-1"),
        ("incident.closed", "i-before"),
        ("incident.opened", "i-meanwhile-2"),
    ]
    assert [event.number for event in heard] == sorted(event.number for event in heard)


def test_listener_to_one_job_hears_of_no_other(api: Api) -> None:
    with listening(api, query="?job=mine") as events:
        save(api, "i-other", job="other")
        save(api, "i-mine", job="mine")
        assert next(events).subject == "i-mine"


def test_two_listeners_hear_the_same(api: Api) -> None:
    with listening(api) as one, listening(api) as other:
        save(api, "i-both")
        assert next(one) == next(other)


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30])
def test_id_that_we_never_gave_is_refused(api: Api, last: str) -> None:
    answer = api.client.get(PATH, headers=bearer(api.make_token("read")) | {"Last-Event-ID": last})
    assert "this server's are numbers" in check_problem(answer, 400, "bad-input")


def test_listeners_beyond_the_bound_are_asked_to_come_again(tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore(), settings=Settings(api=ApiSettings(max_listeners=1))) as api:
        headers = bearer(api.make_token("read"))
        with listening(api):
            answer = api.client.get(PATH, headers=headers)
            expected = "1 listen already, which is as many as api.max_listeners allows"
            assert check_problem(answer, 503, "too-many-listeners") == expected
            assert answer.headers["Retry-After"] == "1"
        eventually(lambda: _status(api, headers) == 200)


def _status(api: Api, headers: dict[str, str]) -> int:
    with api.client.stream("GET", PATH, headers=headers) as answer:
        return answer.status_code


def test_stream_of_a_revoked_token_ends_with_the_next_heartbeat(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.feed.ChangeFeed.follow.__defaults__", (0.01,))
    token = api.make_token("read")
    with listening(api, token=token) as events:
        revoke_token(api.parts.control, token.split("_")[1], 1)
        assert list(events) == [], "nothing more, and an end"
