"""One deadline for all, the checked address, no redirects, and a sentence for every way to misbehave."""

from pathlib import Path

import pytest

from api.alerts.posting import Outside, Post, send_post
from lockstep.clock import SystemClock
from lockstep.errors import BadInput, ReceiverAway
from tests.api.alerts.mail_server import make_certificate
from tests.api.alerts.receivers import Reply, answer, cut_short, garbage, hang_up, receiving

POST = {"Content-Type": "text/plain"}


def outside(timeout_s: float = 60.0, **fields: object) -> Outside:
    return Outside(SystemClock(), ("127.0.0.1/32",), timeout_s, **fields)  # type: ignore[arg-type]  # as tests need


def test_answer_comes_back_with_status_headers_and_body() -> None:
    with receiving(answer(418, b"teapot", X_Kind="short")) as receiver:
        got = send_post(Post(f"{receiver.url}/a?b=c", b"hello", POST), outside())
    assert (got.status, got.headers["x-kind"], got.body) == (418, "short", b"teapot")
    assert (receiver.got[0].path, receiver.got[0].body) == ("/a?b=c", b"hello")


@pytest.mark.parametrize("reply", [cut_short, hang_up, garbage])
def test_liar_is_a_receiver_that_did_not_answer_properly(reply: Reply) -> None:
    with receiving(reply) as receiver, pytest.raises(ReceiverAway, match=r"127\.0\.0\.1 did not answer properly"):
        send_post(Post(receiver.url, b"", POST), outside())


@pytest.mark.parametrize("way", ["hang", "trickle"])
def test_receiver_that_takes_its_time_is_left(way: str) -> None:
    with receiving() as receiver:
        receiver.reply = getattr(receiver, way)
        with pytest.raises(ReceiverAway, match=r"did not answer in full within 0\.3 s"):
            send_post(Post(receiver.url, b"", POST), outside(0.3))


def test_endless_answer_is_not_read_to_its_end() -> None:
    with receiving(answer(200, b"x" * (1 << 20))) as receiver:
        got = send_post(Post(receiver.url, b"", POST), outside())
    assert got.status == 200
    assert len(got.body) < 1 << 18


def test_nobody_listening_is_said() -> None:
    with pytest.raises(ReceiverAway, match="did not answer properly"):
        send_post(Post("http://127.0.0.1:1", b"", POST), outside())


def test_connection_goes_to_the_checked_address_with_the_name_in_the_request() -> None:
    with receiving() as receiver:
        port = receiver.url.rpartition(":")[2]
        way = outside(lookup=lambda host, port: ["127.0.0.1"])
        send_post(Post(f"http://receiver.example:{port}/", b"", POST), way)
    assert receiver.got[0].headers["host"] == f"receiver.example:{port}"


def test_address_inside_is_not_connected_to() -> None:
    with receiving() as receiver, pytest.raises(BadInput, match=r"alerts\.allow"):
        send_post(Post(receiver.url, b"", POST), Outside(SystemClock()))
    assert receiver.got == []


def test_certificate_is_checked_against_the_name_and_not_the_address(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "receiver.example")
    way = outside(lookup=lambda host, port: ["127.0.0.1"], ca_file=certificate)
    with receiving(certificate=certificate) as receiver:
        port = receiver.url.rpartition(":")[2]
        assert send_post(Post(f"https://receiver.example:{port}/", b"hello", POST), way).status == 200
        for url, trusted in ((f"https://other.example:{port}/", way), (receiver.url, outside())):
            with pytest.raises(ReceiverAway, match="CERTIFICATE_VERIFY_FAILED"):
                send_post(Post(url, b"", POST), trusted)
    assert [got.body for got in receiver.got] == [b"hello"]


def test_receiver_without_tls_is_not_taken_for_one_that_has_it(tmp_path: Path) -> None:
    with receiving() as receiver, pytest.raises(ReceiverAway, match="did not answer properly"):
        send_post(Post(receiver.url.replace("http:", "https:"), b"", POST), outside())
    with pytest.raises(BadInput, match=r"alerts\.ca_file"):
        outside(ca_file=tmp_path / "none.pem").trust()
