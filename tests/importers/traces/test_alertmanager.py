"""Notifications of Alertmanager become events of the hosts that their labels name, each news once."""

import json
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from importers.traces.alertmanager import Saved, check_notification, host_of, parse_alertmanager, statements_of
from importers.traces.readings import TIMELESS, parse_timestamp
from tests.importers.traces.build import Told, events_of, refusal

REPEATED = "statements were left out, because they had been told before"


def alert(status: str = "firing", labels: Told | None = None, **told: object) -> Told:
    whole: Told = {"status": status, "labels": {"alertname": "GpuHot", "Hostname": "h3", "gpu": "2"} | (labels or {})}
    whole |= {"annotations": {"description": "it is hot"}, "fingerprint": "f1", "generatorURL": "http://p"}
    whole |= {"startsAt": "2024-05-01T08:00:00.123456789Z", "endsAt": "2024-05-01T09:00:00Z"}
    return whole | told


def notification(*alerts: Told) -> bytes:
    return json.dumps({"version": "4", "groupKey": "g", "truncatedAlerts": 0, "alerts": alerts}).encode()


def events(*alerts: Told) -> list[Told]:
    return events_of(parse_alertmanager([Saved("a.json", notification(*alerts))]))


def test_firing_alert_is_an_event_when_it_began() -> None:
    (event,) = events(alert(labels={"severity": "page"}))
    assert event == {
        "host": "h3",
        "ts_ns": 1_714_550_400_123_456_789,
        "source": "alertmanager",
        "kind": "alert",
        "component": "gpu:h3/2",
        "severity": "critical",
        "message": "GpuHot is firing: it is hot (Hostname=h3 gpu=2 severity=page)",
    }


def test_severity_and_component_are_those_of_the_labels_in_our_words() -> None:
    for told, severity in {"warn": "warning", "High": "error", "purple": "warning", "": "warning"}.items():
        fired, resolved = events(alert(labels={"severity": told}), alert("resolved", labels={"severity": told}))
        assert fired["severity"] == severity
        about = (resolved["ts_ns"], resolved["kind"], resolved["severity"])
        assert about == (1_714_554_000_000_000_000, "alert_resolved", "info")
    for name, value, component in (
        ("gpu", "all", "host:h3"),
        ("switch", "leaf1", "switch:leaf1"),
        ("Hostname", "", ""),
    ):
        assert events(alert(labels={name: value}))[0]["component"] == component


HOSTS: list[tuple[dict[str, str], str]] = [
    *(({"instance": address}, "h1") for address in ("h1:9100", "h1")),
    ({"instance": "[fe80::1]:9100"}, "fe80::1"),
    ({"instance": "https://h1.example/x?y"}, "h1.example"),
    ({"instance": "10.0.0.1:9400", "node": "h2"}, "h2"),
    ({"node": "h2", "Hostname": "h3"}, "h3"),
    *((labels, "alertmanager") for labels in ({"instance": "[", "host": ""}, {"nodename": "x" * 254}, {})),
]


def test_host_is_the_one_that_labels_name() -> None:
    for labels, host in HOSTS:
        assert host_of(labels) == host


def test_same_news_is_one_event_and_what_does_not_tell_when_is_counted() -> None:
    one = json.dumps(json.loads(notification(alert())), indent=2).encode()  # which spans lines
    lines = notification(alert()) + b"\n" + notification(alert(), alert("resolved")) + b"\n"
    reading = parse_alertmanager([Saved("a", one), Saved("b", lines)])
    assert [row["kind"] for row in reading.rows["events"]] == ["alert", "alert_resolved"]
    assert reading.unread == {TIMELESS: 0, REPEATED: 2}
    timeless = [alert("resolved", endsAt="0001-01-01T00:00:00Z"), alert(startsAt="now")]
    reading = parse_alertmanager([Saved("a", notification(alert(), *timeless))])
    assert (len(reading.rows["events"]), reading.unread) == (1, {TIMELESS: 2})
    old = [alert(fingerprint=""), alert(fingerprint=""), alert(labels={"gpu": "3"}, fingerprint="")]
    assert len(events(*old)) == 2, "an alert of an old release is known by its labels"
    ends_at_once = alert("resolved", endsAt="2024-05-01T08:00:00.123456789Z")
    news = [alert(), ends_at_once, alert(startsAt="2024-05-01T08:00:01Z")]
    told = [next(statements_of(check_notification("n", notification(one)))) for one in news]
    assert len({one.subject for one in told}) == 1
    assert [one.number for one in told] == sorted({one.number for one in told}), "they grow with its news"


def test_garbage_is_refused_with_its_place() -> None:
    refused = {
        b"": "a.json: is not JSON",
        b"[]": "a.json: Input should be",
        b'{"version": "4", "alerts": [{"status": "odd"}]}': "a.json: alerts.0.status: ",
        notification(alert()) + b"\n{}\n": "a.json, line 2: version: ",
        json.dumps(json.loads(notification(alert())), indent=2).encode()[:-1]: "a.json: is not JSON",
    }
    for data, sentence in refused.items():
        assert refusal(partial(parse_alertmanager, [Saved("a.json", data)])).startswith(sentence)


@given(st.text(max_size=40))
def test_moments_are_read_to_the_nanosecond_and_whatever_else_stands_there_is_none(text: str) -> None:
    moments = {
        "1970-01-01T00:00:00Z": 0,
        "2024-05-01T08:00:00+02:00": 1_714_543_200_000_000_000,
        "2024-05-01T08:00:00.5Z": 1_714_550_400_500_000_000,
        "2024-05-01T08:00:00.1234567891Z": 1_714_550_400_123_456_789,
    }
    others = ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "2262-04-12T00:00:00Z", "2024-13-01T08:00:00Z")
    for moment, expected_ns in (moments | dict.fromkeys((*others, "2024-05-01T08:00:00", ""))).items():
        assert parse_timestamp(moment) == expected_ns
    timestamp_ns = parse_timestamp(text)
    assert timestamp_ns is None or 0 <= timestamp_ns < 1 << 63


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=30), max_size=5))
def test_whatever_labels_an_alert_has_gives_a_row_with_a_bounded_message(labels: dict[str, str]) -> None:
    (event,) = events(alert(labels=labels, annotations={"summary": "x" * 10_000}))
    assert len(event["message"]) == 2000
