"""Answers of gpud become events of its host, each second of a component once."""

import json
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from importers.traces.gpud import Answer, check_answer, parse_gpud, statements_of
from importers.traces.readings import TIMELESS
from tests.importers.traces.build import Told, events_of, refusal

T0 = 1_714_550_400_000_000_000  # 2024-05-01T08:00:00Z
REPEATED = "statements were left out, because they had been told before"


def event(message: str = "link is down", time: str = "2024-05-01T08:00:00Z", **told: object) -> Told:
    facts = {"component": "infiniband", "name": "ib_port_drop", "type": "Warning"}
    return {**facts, "time": time, "message": message} | told


def component(*events: Told, name: str = "infiniband", **told: object) -> Told:
    times = {"startTime": "2024-05-01T07:00:00.5Z", "endTime": "2024-05-01T09:00:00Z"}
    return {"component": name, **times, "events": list(events)} | told


def answer(*components: Told, host: str = "h3") -> Answer:
    return Answer(f"{host}.json", host, json.dumps(components).encode())


def events(*components: Told) -> list[Told]:
    return events_of(parse_gpud([answer(*components)]))


def test_event_is_one_of_the_host_that_gpud_runs_on() -> None:
    advice = {"description": "", "repair_actions": ["HARDWARE_INSPECTION", "REBOOT_SYSTEM"]}
    (row,) = events(component(event(suggested_actions=advice)))
    assert row == {
        "host": "h3",
        "ts_ns": T0,
        "source": "gpud",
        "kind": "ib_port_drop",
        "component": "host:h3",
        "severity": "warning",
        "message": "infiniband: ib_port_drop: link is down (advice: HARDWARE_INSPECTION, REBOOT_SYSTEM)",
    }


def test_severity_is_gpud_s_type_in_our_words_and_only_bad_states_are_events() -> None:
    severities = {"Fatal": "critical", "Critical": "error", "Info": "info", "New": "info"}
    assert [events(component(event(type=told)))[0]["severity"] for told in severities] == list(severities.values())
    states = [
        {"time": "2024-05-01T08:00:00Z", "name": "gpu", "health": health, "reason": "why", "error": "what"}
        for health in ("Healthy", "Unhealthy", "Degraded", "Initializing")
    ]
    rows = events({"component": "gpu", "states": states})
    assert [(row["kind"], row["severity"]) for row in rows] == [
        ("gpud_unhealthy", "error"),
        ("gpud_degraded", "warning"),
    ]
    assert rows[0]["message"] == "gpu: gpu Unhealthy: why; what"


def test_events_of_a_second_are_one_statement_and_later_ones_have_greater_numbers() -> None:
    told = [event("c", "2024-05-01T08:00:05Z"), event("b"), event("a")]
    statements = list(statements_of(check_answer("x", answer(component(*told)).data), "h3"))
    assert [len(statement.rows) for statement in statements] == [2, 1]
    assert statements[0].number < statements[1].number
    assert {statement.subject for statement in statements} == {"h3/infiniband/events"}


def test_components_and_hosts_do_not_share_seconds_and_what_tells_no_time_is_counted() -> None:
    both = [component(event()), component(event(), name="nccl")]
    reading = parse_gpud([answer(*both), answer(*both, host="h4"), answer(*both)])
    assert (len(reading.rows["events"]), reading.unread) == (4, {TIMELESS: 0, REPEATED: 2})
    reading = parse_gpud([answer(component(event(), event(time="")))])
    assert (len(reading.rows["events"]), reading.unread) == (1, {TIMELESS: 1})
    assert parse_gpud([answer(component() | {"events": None}, component(name="cpu"))]).rows == {}


def test_garbage_is_refused_with_its_place() -> None:
    refused = {
        b"": "x: is not JSON",
        b"{}": "x: Input should be",
        b'[{"events": []}]': "x: 0.component: ",
        b'[{"component": "a", "events": [{"time": 3}]}]': "x: 0.events.0.time: ",
        b'[{"component": "a", "events": 3}]': "x: 0.events: ",
    }
    for data, sentence in refused.items():
        assert refusal(partial(parse_gpud, [Answer("x", "h", data)])).startswith(sentence)


@given(st.text(max_size=50), st.text(max_size=50), st.text(max_size=10))
def test_whatever_an_event_says_gives_a_row(message: str, name: str, kind: str) -> None:
    (row,) = events(component(event(message, name=name, type=kind)))
    assert len(row["message"]) <= 2000
