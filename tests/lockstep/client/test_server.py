"""Whatever a server answers, or does not, becomes a value or one sentence."""

import pytest

from lockstep.client.server import Json, Server
from lockstep.errors import BadInput, LockstepError, ServerAway, ServerRefused
from lockstep.verdict import Incident
from tests.cli.answering import answering, unused_address
from tests.lockstep.state.build import incident


def ask(url: str, token: str = "") -> Json:
    with Server(url, token) as server:
        return server.get("/api/v1/incidents", {"job": "a b", "state": None})


def test_answer_is_handed_over_and_what_is_not_asked_for_is_not_sent() -> None:
    with answering(200, b"{}") as url, Server(url) as server:
        with server.answered("GET", "/api/v1/incidents", {"job": "a b", "state": None}) as answer:
            assert answer.request.url.query == b"job=a+b"
        assert server.get("/") == {}


def test_refusal_is_told_with_the_server_s_own_sentence() -> None:
    body = b'{"type": "urn:lockstep:problem:not-found", "detail": "the store knows no job"}'
    with (
        answering(404, body) as url,
        pytest.raises(ServerRefused, match=f"^{url}: the store knows no job$") as caught,
    ):
        ask(url)
    refusal = caught.value
    assert (refusal.status, refusal.kind) == (404, "urn:lockstep:problem:not-found")
    assert refusal.detail == "the store knows no job"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b"", b"null"])
def test_refusal_without_a_sentence_is_told_by_its_status(body: bytes) -> None:
    with answering(502, body) as url, pytest.raises(ServerRefused, match=f"^{url}: answered 502$") as caught:
        ask(url)
    assert (caught.value.kind, caught.value.detail) == ("about:blank", "answered 502")


@pytest.mark.parametrize("body", [b"<html>", b"3", b"", b"null", b'"text"'])
def test_success_of_somebody_else_is_no_answer(body: bytes) -> None:
    with answering(200, body) as url, pytest.raises(ServerRefused, match=f"what answers at {url} is no Lockstep"):
        ask(url)


def test_server_that_is_not_there_is_named() -> None:
    url = unused_address()
    with pytest.raises(ServerAway, match=f"no Lockstep server answers at {url}: ") as caught:
        ask(url)
    assert caught.value.status == 0


@pytest.mark.parametrize("url", ["head:8642", "nonsense", "http://host:port", "ftp://host", ""])
def test_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(LockstepError, match=f"no Lockstep server answers at {url}: "):
        ask(url)


def test_token_that_fits_into_no_header_is_told_and_not_shown() -> None:
    with pytest.raises(BadInput, match="plain ASCII") as caught:
        ask("http://127.0.0.1:1", token="lks_schön")
    assert "schön" not in str(caught.value)


def test_fields_of_a_newer_server_are_left_out() -> None:
    told = incident("i1").model_dump(by_alias=True)
    newer = told | {"colour": "red", "verdict": told["verdict"] | {"mood": "bad"}}
    with Server("http://127.0.0.1:1") as server:
        assert server.understood(Incident, newer) == incident("i1")


def test_document_that_lacks_a_field_is_not_ours() -> None:
    told = incident("i1").model_dump(by_alias=True)
    del told["verdict"]
    with Server("http://127.0.0.1:1") as server, pytest.raises(ServerRefused, match="is no Lockstep server"):
        server.understood(Incident, told)
