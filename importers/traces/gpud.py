"""What gpud, a health daemon for GPU hosts, tells of its host: answers of /v1/events and /v1/states, as events.

An answer does not name the host, so whoever hands it over has to. gpud's types and states become severities: Fatal is
critical, Critical and Unhealthy are errors, Warning and Degraded warnings. Healthy components are left out.

gpud keeps a window of events and tells all of it each time. Of a component, what was told for a second is told as a
whole: the events of that second are one statement, and a later answer adds nothing to it. So an event counts only
when its second is long enough over for gpud to have written down all of it; until then it is too young.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field, RootModel

from importers.traces.readings import (
    MOST_MESSAGE_CHARS,
    TIMELESS,
    Loose,
    Reading,
    Row,
    Statement,
    Text,
    parse_json,
    parse_timestamp,
    validated,
    without_repeats,
)
from lockstep.clock import NS_PER_S

SOURCE = "gpud"
SETTLED_S = 30  # gpud writes events down as it sees them; checks that run each minute stamp them when they end
MOST_EVENTS = 5_000
_SEVERITIES = {"Fatal": "critical", "Critical": "error", "Warning": "warning", "Info": "info", "Unknown": "info"}
_HEALTH = {"Unhealthy": "error", "Degraded": "warning"}

LongText = Annotated[str, BeforeValidator(lambda text: "" if text is None else text), Field(max_length=100_000)]


class Actions(Loose):
    """What gpud suggests to do."""

    repair_actions: tuple[Text, ...] | None = None


class Event(Loose):
    """Something that a component noticed."""

    time: str = Field(max_length=40)
    name: Text = ""
    type: str = ""
    message: LongText = ""
    suggested_actions: Actions | None = None


class State(Loose):
    """How a component found its part of the host when it last looked."""

    time: str = Field(max_length=40)
    name: Text = ""
    health: str = ""
    reason: LongText = ""
    error: LongText = ""
    suggested_actions: Actions | None = None


class Component(Loose):
    """What one component tells; events or states, whichever was asked for."""

    component: Text = Field(min_length=1, max_length=200)
    events: tuple[Event, ...] | None = Field(None, max_length=MOST_EVENTS)
    states: tuple[State, ...] | None = Field(None, max_length=MOST_EVENTS)


class _Components(RootModel[tuple[Component, ...]]):
    """A whole answer."""


@dataclass(frozen=True)
class Answer:
    """A saved answer of a host's gpud."""

    file: str
    host: str
    data: bytes


def parse_gpud(answers: Sequence[Answer]) -> Reading:
    """Return the events of saved answers, each once however many of them tell it."""
    given = [(check_answer(answer.file, answer.data), answer.host) for answer in answers]
    timeless = sum(count_timeless(components) for components, _ in given)
    statements = (statement for components, host in given for statement in statements_of(components, host))
    return without_repeats(statements, {TIMELESS: timeless})


def check_answer(location: str, data: bytes) -> tuple[Component, ...]:
    """Return what gpud answered, or raise BadInput with the place of the first thing that is wrong."""
    return validated(_Components, parse_json(location, data), location).root


def statements_of(components: Sequence[Component], host: str) -> Iterator[Statement]:
    """Yield a statement per component and second in which something was noticed, the earliest first."""
    given = [
        (ts_ns, f"{host}/{one.component}/events", row) for one in components for ts_ns, row in _event_rows(one, host)
    ]
    given += [
        (ts_ns, f"{host}/{one.component}/states", row) for one in components for ts_ns, row in _state_rows(one, host)
    ]
    together: dict[tuple[int, str], list[Row]] = {}
    for ts_ns, subject, row in given:
        together.setdefault((ts_ns // NS_PER_S, subject), []).append(row)
    for (second, subject), rows in sorted(together.items(), key=lambda item: item[0]):
        yield Statement(host, subject, second + 1, second * NS_PER_S, tuple(rows))


def count_timeless(components: Sequence[Component]) -> int:
    """Return how many events and states do not tell when they were."""
    timestamps = [event.time for one in components for event in one.events or ()]
    timestamps += [state.time for one in components for state in one.states or ()]
    return sum(parse_timestamp(timestamp) is None for timestamp in timestamps)


def _event_rows(component: Component, host: str) -> Iterator[tuple[int, Row]]:
    for event in component.events or ():
        ts_ns = parse_timestamp(event.time)
        if ts_ns is not None:
            message = _sentence(component.component, event.name, event.message, event.suggested_actions)
            kind = "_".join(event.name.split())[:100] or "gpud_event"
            yield ts_ns, _row(component, host, ts_ns, kind, _SEVERITIES.get(event.type, "info"), message)


def _state_rows(component: Component, host: str) -> Iterator[tuple[int, Row]]:
    for state in component.states or ():
        ts_ns = parse_timestamp(state.time)
        if ts_ns is not None and state.health in _HEALTH:
            given = "; ".join(filter(None, (state.reason, state.error)))
            message = _sentence(component.component, f"{state.name} {state.health}", given, state.suggested_actions)
            kind = f"gpud_{state.health.lower()}"
            yield ts_ns, _row(component, host, ts_ns, kind, _HEALTH[state.health], message)


def _row(component: Component, host: str, ts_ns: int, kind: str, severity: str, message: str) -> Row:
    row: Row = {"host": host, "ts_ns": ts_ns, "source": SOURCE, "kind": kind, "component": f"host:{host}"}
    return row | {"severity": severity, "message": message}


def _sentence(component: str, name: str, given: str, actions: Actions | None) -> str:
    advice = ", ".join(actions.repair_actions or ()) if actions else ""
    sentence = f"{component}: {name.strip()}{': ' if given else ''}{given}{f' (advice: {advice})' if advice else ''}"
    return sentence[:MOST_MESSAGE_CHARS]
