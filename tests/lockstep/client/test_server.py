"""Whatever a server answers, or does not, becomes a value, events or one sentence."""

import pytest

from lockstep.client.server import Event, Json, Server, parse_events
from lockstep.errors import BadInput, LockstepError, ServerAway, ServerRefused
from lockstep.verdict import Incident
from tests.cli.answering import answering, unused_address
from tests.lockstep.state.build import incident


def ask(url: str, token: str = "") -> Json:
    with Server(url, token) as server:
        return server.get("/api/v1/incidents", {"job": "a b", "state": None})


def test_answer_is_handed_over_and_success_of_somebody_else_is_none() -> None:
    with answering(200, b"{}") as url, Server(url) as server:
        with server.answered("GET", "/api/v1/incidents", {"job": "a b", "state": None}) as answer:
            assert answer.request.url.query == b"job=a+b"
        assert server.get("/") == {}
    for body in (b"<html>", b"3", b"", b"null", b'"text"'):
        with answering(200, body) as url, pytest.raises(ServerRefused, match=f"what answers at {url} is no Lockstep"):
            ask(url)


def test_refusal_is_told_with_the_server_s_own_sentence_or_by_its_status() -> None:
    body = b'{"type": "urn:lockstep:problem:not-found", "detail": "the store knows no job"}'
    with (
        answering(404, body) as url,
        pytest.raises(ServerRefused, match=f"^{url}: the store knows no job$") as caught,
    ):
        ask(url)
    refusal = caught.value
    assert (refusal.status, refusal.kind) == (404, "urn:lockstep:problem:not-found")
    assert refusal.detail == "the store knows no job"
    for body in (b"<html>", b"[]", b"{}", b"", b"null"):
        with answering(502, body) as url, pytest.raises(ServerRefused, match=f"^{url}: answered 502$") as caught:
            ask(url)
        assert (caught.value.kind, caught.value.detail) == ("about:blank", "answered 502")


def test_who_brought_no_token_is_told_where_to_get_one() -> None:
    refusing = b'{"detail": "this needs a token"}'
    with answering(401, refusing) as url:
        with pytest.raises(ServerRefused, match=r"this needs a token; set LOCKSTEP_TOKEN \(`lockstep token create"):
            ask(url)
        with pytest.raises(ServerRefused, match=r"this needs a token$"):
            ask(url, token="lks_wrong")


def test_server_that_is_not_there_is_named() -> None:
    url = unused_address()
    with pytest.raises(ServerAway, match=f"no Lockstep server answers at {url}: ") as caught:
        ask(url)
    assert (caught.value.status, caught.value.is_passing) == (0, True)
    for wrong in ("head:8642", "nonsense", "http://host:port", "ftp://host", ""):
        with pytest.raises(LockstepError, match=f"no Lockstep server answers at {wrong}: "):
            ask(wrong)


def test_token_that_fits_into_no_header_is_told_and_not_shown() -> None:
    with pytest.raises(BadInput, match="plain ASCII") as caught:
        ask("http://127.0.0.1:1", token="lks_schön")
    assert "schön" not in str(caught.value)


def test_fields_of_a_newer_server_are_left_out_and_none_may_be_missing() -> None:
    document = incident("i1").model_dump(by_alias=True)
    newer = document | {"colour": "red", "verdict": document["verdict"] | {"mood": "bad"}}
    with Server("http://127.0.0.1:1") as server:
        assert server.understood(Incident, newer) == incident("i1")
        del document["verdict"]
        with pytest.raises(ServerRefused, match="is no Lockstep server"):
            server.understood(Incident, document)


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("id: 7\nevent: opened\ndata: {}\n\n", [Event("7", "opened", "{}")]),
        ("data: a\ndata: b\n\n", [Event("", "message", "a\nb")]),
        ("data:a\n\n", [Event("", "message", "a")]),
        ("data:  a\n\n", [Event("", "message", " a")]),
        (": sign of life\n\n: and another\n\n", []),
        ("event: opened\n\ndata: a\n\n", [Event("", "message", "a")]),
        ("id: 1\n\ndata: a\n\ndata: b\n\n", [Event("1", "message", "a"), Event("1", "message", "b")]),
        ("id: 1\ndata: a\n\nid: 2\ndata: lost", [Event("1", "message", "a")]),
        ("data\n\n", [Event("", "message", "")]),
        ("retry: 100\nnonsense\ndata: a\n\n", [Event("", "message", "a")]),
        ("id: a\0b\ndata: a\n\n", [Event("", "message", "a")]),
    ],
)
def test_lines_become_events(text: str, events: list[Event]) -> None:
    assert list(parse_events(text.split("\n"))) == events
