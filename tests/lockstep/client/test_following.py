"""Notifications come as they happen, and a connection that breaks costs none and repeats none."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from itertools import islice
from pathlib import Path

import pytest

from lockstep.client import Client
from lockstep.clock import ManualClock
from lockstep.errors import ServerRefused
from lockstep.state.decisions import save_decisions
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from lockstep.verdict import Incident
from tests.api.build import running_api
from tests.http_serving import Quiet, serving
from tests.lockstep.state.build import decision, incident


def test_news_of_the_real_app_are_understood(tmp_path: Path, embedded_store: Store) -> None:
    with (
        running_api(tmp_path, embedded_store) as api,
        Client(str(api.client.base_url), api.make_token("read")) as client,
    ):
        save_incidents(api.parts.control, [incident("i1")], None)
        save_decisions(api.parts.control, [decision("d1")], None)
        stop = threading.Event()
        news = client.follow("0", stop=stop)
        first, second = islice(news, 2)
        save_incidents(api.parts.control, [incident("i1", state="closed", updated_ns=900)], None)
        third = next(news)
        stop.set()
        save_incidents(api.parts.control, [incident("i2", job="b")], None)
        assert next(client.follow("0", job="b")).thing.id == "i2"  # type: ignore[union-attr] # it is an incident

    assert [first.kind, second.kind, third.kind] == ["incident.opened", "decision.made", "incident.closed"]
    assert (first.thing, second.thing) == (incident("i1"), decision("d1"))
    assert isinstance(third.thing, Incident)
    assert third.thing.closed_because == "the NIC was replaced"


def event(number: int, kind: str = "incident.opened") -> bytes:
    return f"id: {number}\nevent: {kind}\ndata: {incident(f'i{number}').model_dump_json(by_alias=True)}\n\n".encode()


@contextmanager
def streaming(answers: Sequence[tuple[int, bytes]]) -> Iterator[tuple[str, list[str | None]]]:
    """Give the address of a server that gives these answers, one a connection, and after what each was asked for."""
    waiting, asked = list(answers), list[str | None]()

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Last-Event-ID"])
            self.reply(*waiting.pop(0))

    with serving(Handler) as url:
        yield url, asked


def test_broken_connection_goes_on_after_the_last_event_with_pauses_that_grow_and_begin_anew_with_news() -> None:
    clock, half = ManualClock(), event(3)[:20]
    answers = [(503, b"")] * 3 + [
        (200, event(1) + event(2) + half),
        (503, b""),
        (200, b": still here\n\n" + event(3)),
    ]
    with streaming(answers) as (url, asked), Client(url, clock=clock) as client:
        news = client.follow()
        found = [(each.id, clock.now_ns() / 1e9) for each in islice(news, 3)]

    assert found == [("1", 3.5), ("2", 3.5), ("3", 5.0)], "after 0.5, 1 and 2 s, and then after 0.5 and 1 s again"
    assert asked == [None] * 4 + ["2", "2"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, b'{"detail": "this token is unknown or revoked"}'), "or revoked"),
        ((200, b"event: incident.opened\ndata: {}\n\n"), "no Lockstep"),
    ],
)
def test_refusal_and_nonsense_are_not_waited_for(answer: tuple[int, bytes], message: str) -> None:
    with streaming([answer]) as (url, _), Client(url) as client, pytest.raises(ServerRefused, match=message):
        next(client.follow())


def test_unknown_kinds_are_passed_over_and_a_stop_ends_it() -> None:
    stop = threading.Event()
    with streaming([(200, event(0, "weather.changed") + event(1) + event(2))]) as (url, _), Client(url) as client:
        news = client.follow(stop=stop)
        assert next(news).id == "1"
        stop.set()
        assert list(news) == []
