"""A batch reaches the gateway under its name and number, and every answer but a receipt is told apart."""

import re

import pytest

from collector.shipping import Batch, GatewayClient
from lockstep.batches import DetailRequest, encode_batch
from lockstep.errors import BadInput, DestinationAway, ServerRefused
from lockstep.records import Event
from tests.builders import T0, make, rows
from tests.collector.fake_gateway import Answer, FakeGateway

BODY = encode_batch({"events": rows(make(Event))})


def send(gateway: FakeGateway, number: int = 1) -> None:
    client = GatewayClient(gateway.url, "lks_secret", agent="h0")
    try:
        client.send(Batch("b1", number, BODY, rows=1))
    finally:
        client.close()


def test_batch_carries_agent_boot_number_and_token() -> None:
    with FakeGateway() as gateway:
        send(gateway, number=7)
    (batch,) = gateway.received
    assert (batch.agent, batch.boot, batch.number, batch.token) == ("h0", "b1", 7, "Bearer lks_secret")
    assert batch.body == BODY


def test_receipt_brings_watermark_and_detail_requests() -> None:
    request = DetailRequest(id="w1", host="h0", kind="probe", details={"dst": "h1"}, expires_ns=T0)
    with FakeGateway() as gateway:
        gateway.requests = (request,)
        client = GatewayClient(gateway.url, "t", agent="h0")
        receipt = client.send(Batch("b1", 3, BODY, rows=1))
        client.close()
    assert (receipt.watermark, receipt.requests) == (3, (request,))


@pytest.mark.parametrize("status", [400, 401, 413, 500, 503])
def test_refusal_carries_the_status_and_the_server_s_sentence(status: int) -> None:
    with FakeGateway() as gateway:
        gateway.answers.append(status)
        with pytest.raises(ServerRefused, match="told to say no") as caught:
            send(gateway)
    assert caught.value.status == status


@pytest.mark.parametrize("answer", [b"<html>please log in</html>", b"{}", b'{"watermark": -1}', b""])
def test_answer_that_is_no_receipt_is_a_refusal(answer: Answer) -> None:
    with FakeGateway() as gateway:
        gateway.answers.append(answer)
        with pytest.raises(ServerRefused, match="the server's receipt makes no sense") as caught:
            send(gateway)
    assert caught.value.status == 200


def test_receipt_of_a_newer_server_may_hold_more_than_we_know() -> None:
    with FakeGateway() as gateway:
        request = '{"id": "w", "host": "h0", "kind": "probe", "details": {}, "expires_ns": 1, "priority": 1}'
        gateway.answers.append(f'{{"watermark": 1, "requests": [{request}], "shard": "a"}}'.encode())
        send(gateway)


def test_lost_reply_is_an_error_of_the_transport() -> None:
    with FakeGateway() as gateway:
        gateway.answers.append("lost")
        with pytest.raises(DestinationAway, match="does not answer"):
            send(gateway)


@pytest.mark.parametrize(("token", "host"), [("lks_ü", "h0"), ("t", "hôte")])
def test_token_and_host_that_do_not_fit_into_a_header_are_refused_at_once(token: str, host: str) -> None:
    with pytest.raises(
        BadInput, match=re.escape(f"the token and the name of the host, {host!r}, must be plain ASCII")
    ):
        GatewayClient("http://127.0.0.1:1", token, agent=host)


@pytest.mark.parametrize("server", ["", "head", "head:8642", "ftp://head", "http://", "http://head:port"])
def test_address_that_no_gateway_can_have_is_refused_at_once(server: str) -> None:
    with pytest.raises(BadInput, match=f"{server!r} is not the address of a gateway.*; expected http"):
        GatewayClient(server, "t", agent="h0")
