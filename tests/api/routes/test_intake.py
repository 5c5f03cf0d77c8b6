"""What other systems tell becomes events once, however often they tell it; a token tells only what it may."""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.ingest.log import Entry
from lockstep.clock import NS_PER_S, rfc3339
from lockstep.config import Settings
from lockstep.errors import GatewayFull
from lockstep.sections import GatewaySettings
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.conftest import REPO
from tests.waiting import HastyClock, eventually

ALERTS, GPUD = "/api/v1/intake/alertmanager", "/api/v1/intake/gpud"
Told = dict[str, Any]  # Any: JSON
SMALL = Settings(gateway=GatewaySettings(max_batch_mb=1))


@pytest.fixture
def light_api(tmp_path: Path) -> Iterator[Api]:
    with running_api(tmp_path, FakeStore(), settings=SMALL) as running:
        yield running


def alert(name: str = "NodeDown", *, host: str = "h3", ends: str | None = None, **told: object) -> Told:
    """An alert as Alertmanager writes it, resolved where it has an end."""
    return {
        "status": "resolved" if ends else "firing",
        "labels": {"alertname": name, "instance": f"{host}:9100", "severity": "critical"},
        "annotations": {"summary": f"{host} does not answer"},
        "startsAt": "2024-05-01T08:00:00.5Z",
        "endsAt": ends or "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": f"{name}-{host}",
    } | told


def notification(*alerts: Told) -> Told:
    return {"version": "4", "groupKey": "{}:{}", "status": "firing", "receiver": "lockstep", "alerts": list(alerts)}


def post(api: Api, path: str, body: object, token: str, **query: str) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return api.client.post(path, content=data, params=query, headers=bearer(token))


def post_alerts(api: Api, *alerts: Told) -> httpx.Response:
    return post(api, ALERTS, notification(*alerts), api.make_token("ingest", "intake:alertmanager"))


def stored_messages(api: Api) -> list[str]:
    """Close the gateway, which stores everything it has, and return what is in the store."""
    api.parts.gateway.close()
    api.parts.gateway.close = lambda: None  # type: ignore[method-assign]  # the app would close it once more
    store = api.parts.store
    assert isinstance(store, FakeStore)
    return [str(message) for message in store.column("events", "message")]


def test_alert_is_acknowledged_and_can_be_queried(api: Api) -> None:
    answer = post_alerts(api, alert(host="queried"))
    assert (answer.status_code, answer.json()) == (200, {"events": 1, "too_young": 0, "left_out": 0})

    def arrived() -> list[Told]:
        told = "ts_ns, source, kind, component, severity"
        return list(api.parts.store.query(f"SELECT {told} FROM events WHERE host = 'queried'").to_pylist())

    eventually(arrived)
    (row,) = arrived()
    assert row.pop("ts_ns") == 1_714_550_400_500_000_000
    assert list(row.values()) == ["alertmanager", "alert", "host:queried", "critical"]


def test_retries_repeats_and_grown_groups_store_each_news_once_and_older_news_not(light_api: Api) -> None:
    first, second = alert(host="h1"), alert(host="h2")
    for group in ([first], [first], [first, second], [second, first]):
        assert post_alerts(light_api, *group).json()["events"] == len(group)
    over = alert(ends="2024-05-01T08:05:00Z")
    again = alert(startsAt="2024-05-01T08:10:00Z")
    for news in (alert(), over, over, alert(), again, again):
        post_alerts(light_api, news)
    told = stored_messages(light_api)
    assert sorted(told[:2]) == [
        f"NodeDown is firing: {host} does not answer (instance={host}:9100 severity=critical)"
        for host in ("h1", "h2")
    ]
    assert [message.split()[2] for message in told[2:]] == ["firing:", "resolved:", "firing:"]


def test_what_was_heard_is_known_after_a_restart(tmp_path: Path) -> None:
    store = FakeStore()
    for _ in range(2):
        with running_api(tmp_path, store) as api:
            assert post_alerts(api, alert(), alert(host="h4")).json()["events"] == 2
    assert len(store.column("events", "message")) == 2


def test_who_was_told_to_come_again_loses_and_doubles_nothing(
    light_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, calls = light_api.parts.gateway.submit, 0

    def full_at_the_second(entry: Entry) -> "Future[int]":
        nonlocal calls
        calls += 1
        if calls != 2:
            return submit(entry)
        refused: Future[int] = Future()
        refused.set_exception(GatewayFull("stands for a log that is full for a moment"))
        return refused

    monkeypatch.setattr(light_api.parts.gateway, "submit", full_at_the_second)
    alerts = [alert(host=f"h{n}") for n in range(3)]
    answer = post_alerts(light_api, *alerts)
    check_problem(answer, 503, "busy")
    assert answer.headers["Retry-After"] == "1"
    assert post_alerts(light_api, *alerts).status_code == 200
    assert len(stored_messages(light_api)) == 3


def test_token_of_a_host_tells_of_that_host_only(light_api: Api) -> None:
    token = light_api.make_token("ingest", "h3")
    assert post(light_api, ALERTS, notification(alert(host="h3")), token).status_code == 200
    mixed = notification(alert(host="h3", startsAt="2024-05-01T09:00:00Z"), alert(host="h4"))
    refused = post(light_api, ALERTS, mixed, token)
    assert "this token is for h3, the event is about h4" in check_problem(refused, 403, "wrong-host")
    mine = alert(host="h3", fingerprint="NodeDown-h4", startsAt="2024-05-01T09:00:00Z")
    post(light_api, ALERTS, notification(mine), token)
    post_alerts(light_api, alert(host="h4"))
    assert len(stored_messages(light_api)) == 3, "nobody silences an alert of another host by its fingerprint"


def test_garbage_large_bodies_and_news_of_other_hosts_are_refused_with_a_sentence(light_api: Api) -> None:
    token = light_api.make_token("ingest", "intake:alertmanager")
    for body, sentence in {
        b"{": "the notification: is not JSON",
        b"\xff": "the notification: is not JSON",
        b'{"version": "3", "alerts": []}': "the notification: version: ",
        b'{"version": "4"}': "the notification: alerts: ",
        b'{"version": "4", "alerts": [{"status": "odd"}]}': "the notification: alerts.0.status: ",
    }.items():
        assert check_problem(post(light_api, ALERTS, body, token), 400, "bad-input").startswith(sentence)
    mine = light_api.make_token("ingest", "h3")
    for path in (ALERTS, GPUD):
        large = post(light_api, path, b" " * ((1 << 20) + 1), mine)
        assert check_problem(large, 413, "too-large") == "a batch may have 1 MiB"
    for host in ("a/b", "a b", "x" * 254):
        answer = post(light_api, GPUD, [], light_api.make_token("ingest", "intake:gpud"), host=host)
        assert "is no name of a host" in check_problem(answer, 400, "bad-input")
    answer = post(light_api, GPUD, [component(xid())], mine, host="h4")
    assert "this token is for h3" in check_problem(answer, 403, "wrong-host")
    later = rfc3339(light_api.parts.clock.now_ns() + 10 * 86_400 * NS_PER_S)
    answer = post_alerts(light_api, alert(startsAt=later), alert(host="h5", startsAt="soon"), alert(host="h6"))
    assert answer.json() == {"events": 1, "too_young": 0, "left_out": 2}


def component(*events: Told, name: str = "accelerator-nvidia-error-xid") -> Told:
    times = {"startTime": "2024-05-01T07:00:00Z", "endTime": "2024-05-01T08:00:00Z"}
    return {"component": name, **times, "events": list(events)}


def xid(message: str = "XID 79", time: str = "2024-05-01T07:59:00Z", **told: object) -> Told:
    return {"time": time, "name": "error_xid", "type": "Critical", "message": message} | told


def test_overlapping_answers_of_gpud_store_each_event_and_bad_state_once(light_api: Api) -> None:
    token = light_api.make_token("ingest", "h3")
    later, when = xid("XID 48", "2024-05-01T07:59:10Z"), {"time": "2024-05-01T07:59:00Z"}
    for events in ([xid(), xid("XID 13")], [later, xid("XID 13"), xid()], [later]):
        assert post(light_api, GPUD, [component(*events)], token).json()["events"] == len(events)
    bad = when | {"name": "ib", "health": "Unhealthy", "reason": "1 port down"}
    states = [bad, when | {"name": "gpu", "health": "Healthy", "reason": "ok"}]
    assert post(light_api, GPUD, [{"component": "infiniband", "states": states}], token).json()["events"] == 1
    told = [f"accelerator-nvidia-error-xid: error_xid: XID {number}" for number in (79, 13, 48)]
    assert stored_messages(light_api) == [*told, "infiniband: ib Unhealthy: 1 port down"]


def test_event_whose_second_may_not_be_over_is_taken_from_a_later_answer(light_api: Api) -> None:
    clock = light_api.parts.clock
    assert isinstance(clock, HastyClock)
    young = [component(xid(time=rfc3339(clock.now_ns() + 1000 * NS_PER_S)))]
    token = light_api.make_token("ingest", "h3")
    assert post(light_api, GPUD, young, token).json() == {"events": 0, "too_young": 1, "left_out": 0}
    clock.skip(2000)
    assert post(light_api, GPUD, young, token).json() == {"events": 1, "too_young": 0, "left_out": 0}
    assert len(stored_messages(light_api)) == 1


def test_one_token_may_tell_of_all_hosts_that_it_names(light_api: Api) -> None:
    token = light_api.make_token("ingest", "intake:gpud")
    for host in ("h1", "h2"):
        assert post(light_api, GPUD, [component(xid())], token, host=host).json()["events"] == 1
    nameless = post(light_api, GPUD, [component(xid())], token)
    assert "add ?host=" in check_problem(nameless, 400, "bad-input")
    store = light_api.parts.store
    assert len(stored_messages(light_api)) == 2
    assert isinstance(store, FakeStore)
    assert sorted(map(str, store.column("events", "host"))) == ["h1", "h2"]


def test_way_in_is_described_with_an_example_that_is_taken(light_api: Api) -> None:
    paths = json.loads((REPO / "docs" / "openapi.json").read_text(encoding="utf-8"))["paths"]
    for path, name in ((ALERTS, "intake:alertmanager"), (GPUD, "h3")):
        operation = paths[path]["post"]
        assert "authorization" in operation["description"].lower()
        example = operation["requestBody"]["content"]["application/json"]["example"]
        assert post(light_api, path, example, light_api.make_token("ingest", name)).json()["events"] == 1
