"""Commands that ask a running Lockstep say in one sentence why they got no answer."""

import pytest

from cli.client import answered
from lockstep.errors import BadInput, LockstepError, ServerRefused
from tests.cli.answering import answering, unused_address


def ask(server: str, token: str = "") -> bytes:
    with answered(server, token, "/api/v1/incidents", {"job": "a b"}) as answer:
        assert answer.request.url.query == b"job=a+b"
        return answer.read()


def test_answer_is_handed_over() -> None:
    with answering(200, b"{}") as server:
        assert ask(server) == b"{}"


def test_refusal_is_told_with_the_server_s_own_sentence() -> None:
    with (
        answering(404, b'{"detail": "the store knows no job"}') as server,
        pytest.raises(ServerRefused, match=f"^{server}: the store knows no job$") as caught,
    ):
        ask(server)
    assert caught.value.status == 404


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b""])
def test_refusal_without_a_sentence_is_told_by_its_status(body: bytes) -> None:
    with answering(502, body) as server, pytest.raises(ServerRefused, match=f"^{server}: answered 502$"):
        ask(server)


def test_server_that_is_not_there_is_named() -> None:
    server = unused_address()
    with pytest.raises(ServerRefused, match=f"no Lockstep server answers at {server}: "):
        ask(server)


@pytest.mark.parametrize("server", ["head:8642", "nonsense", "http://host:port", "ftp://host", ""])
def test_address_that_is_none_is_told(server: str) -> None:
    with pytest.raises(LockstepError, match=f"no Lockstep server answers at {server}: "):
        ask(server)


def test_token_that_fits_into_no_header_is_told_and_not_shown() -> None:
    with pytest.raises(BadInput, match="plain ASCII") as caught:
        ask("http://127.0.0.1:1", token="lks_schön")
    assert "schön" not in str(caught.value)
