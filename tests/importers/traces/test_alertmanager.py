"""Notifications of Alertmanager become events of the hosts that their labels name, each news once."""

import json

import pytest
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


@pytest.mark.parametrize(
    ("told", "severity"), [("warn", "warning"), ("High", "error"), ("purple", "warning"), ("", "warning")]
)
def test_severity_is_the_label_s_in_our_words_while_it_fires(told: str, severity: str) -> None:
    assert events(alert(labels={"severity": told}))[0]["severity"] == severity
    (event,) = events(alert("resolved", labels={"severity": told}))
    assert (event["ts_ns"], event["kind"], event["severity"]) == (1_714_554_000_000_000_000, "alert_resolved", "info")


@pytest.mark.parametrize(
    ("labels", "host"),
    [
        ({"instance": "h1:9100"}, "h1"),
        ({"instance": "h1"}, "h1"),
        ({"instance": "[fe80::1]:9100"}, "fe80::1"),
        ({"instance": "https://h1.example/x?y"}, "h1.example"),
        ({"instance": "[", "host": ""}, "alertmanager"),
        ({"instance": "10.0.0.1:9400", "node": "h2"}, "h2"),
        ({"node": "h2", "Hostname": "h3"}, "h3"),
        ({"nodename": "x" * 254}, "alertmanager"),
        ({}, "alertmanager"),
    ],
)
def test_host_is_the_one_that_labels_name(labels: dict[str, str], host: str) -> None:
    assert host_of(labels) == host


@pytest.mark.parametrize(
    ("labels", "component"),
    [({"gpu": "all"}, "host:h3"), ({"switch": "leaf1"}, "switch:leaf1"), ({"Hostname": ""}, "")],
)
def test_component_is_the_part_that_labels_name(labels: Told, component: str) -> None:
    assert events(alert(labels=labels))[0]["component"] == component


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


def test_numbers_of_an_alert_grow_with_its_news() -> None:
    news = [
        alert(),
        alert("resolved", endsAt="2024-05-01T08:00:00.123456789Z"),  # it ends as it begins
        alert(startsAt="2024-05-01T08:00:01Z"),
    ]
    told = [next(statements_of(check_notification("n", notification(one)))) for one in news]
    assert len({one.subject for one in told}) == 1
    assert [one.number for one in told] == sorted({one.number for one in told})


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "a.json: is not JSON"),
        (b"[]", "a.json: Input should be"),
        (b'{"version": "4", "alerts": [{"status": "odd"}]}', "a.json: alerts.0.status: "),
        (notification(alert()) + b"\n{}\n", "a.json, line 2: version: "),
        (json.dumps(json.loads(notification(alert())), indent=2).encode()[:-1], "a.json: is not JSON"),
    ],
)
def test_garbage_is_refused_with_its_place(data: bytes, sentence: str) -> None:
    assert refusal(lambda: parse_alertmanager([Saved("a.json", data)])).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "timestamp_ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-05-01T08:00:00+02:00", 1_714_543_200_000_000_000),
        ("2024-05-01T08:00:00.5Z", 1_714_550_400_500_000_000),
        ("2024-05-01T08:00:00.1234567891Z", 1_714_550_400_123_456_789),
        ("0001-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("2262-04-12T00:00:00Z", None),
        ("2024-13-01T08:00:00Z", None),
        ("2024-05-01T08:00:00", None),
        ("", None),
    ],
)
def test_moments_are_read_to_the_nanosecond(text: str, timestamp_ns: int | None) -> None:
    assert parse_timestamp(text) == timestamp_ns


@given(st.text(max_size=40))
def test_whatever_stands_for_a_moment_is_one_or_none(text: str) -> None:
    timestamp_ns = parse_timestamp(text)
    assert timestamp_ns is None or 0 <= timestamp_ns < 1 << 63


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=30), max_size=5))
def test_whatever_labels_an_alert_has_gives_a_row_with_a_bounded_message(labels: dict[str, str]) -> None:
    (event,) = events(alert(labels=labels, annotations={"summary": "x" * 10_000}))
    assert len(event["message"]) == 2000
