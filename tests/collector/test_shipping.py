"""The queue is bounded, keeps its order, and counts what it had to drop."""

import threading
from collections.abc import Iterator
from contextlib import closing
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.shipping import Batch, GatewayClient, MemoryQueue, Shipper, StoreClient, open_store_client
from lockstep.batches import DetailRequest, Receipt, encode_batch
from lockstep.errors import BadInput, DestinationAway, ServerRefused
from lockstep.records import Event, NicCounter
from lockstep.store.store import Store
from tests.builders import T0, make, rows
from tests.collector.fake_gateway import Answer, FakeGateway

LIMIT = 100


def batch(number: int, size: int = 10, rows: int = 1) -> Batch:
    return Batch("boot", number, b"x" * size, rows)


BODY = encode_batch({"events": rows(make(Event))})


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as serving:
        yield serving


def send(gateway: FakeGateway, number: int = 1) -> Receipt:
    with closing(GatewayClient(gateway.url, "lks_secret", agent="h0")) as client:
        return client.send(Batch("b1", number, BODY, rows=1))


def test_batch_carries_agent_boot_number_and_token_and_brings_watermark_and_requests(gateway: FakeGateway) -> None:
    gateway.requests = (DetailRequest(id="w1", host="h0", kind="probe", details={"dst": "h1"}, expires_ns=T0),)
    receipt = send(gateway, number=7)
    (batch,) = gateway.received
    assert (batch.agent, batch.boot, batch.number, batch.token) == ("h0", "b1", 7, "Bearer lks_secret")
    assert batch.body == BODY
    assert (receipt.watermark, receipt.requests) == (7, gateway.requests)
    request = '{"id": "w", "host": "h0", "kind": "probe", "details": {}, "expires_ns": 1, "priority": 1}'
    gateway.answers.append(f'{{"watermark": 1, "requests": [{request}], "shard": "a"}}'.encode())
    assert [request.id for request in send(gateway).requests] == ["w"], "a newer server may say more"


def test_refusal_carries_the_status_and_the_server_s_sentence_and_a_lost_receipt_or_store_is_away(
    gateway: FakeGateway,
) -> None:
    refusals: list[tuple[Answer, int, str]] = [(status, status, "told to say no") for status in (400, 503)]
    refusals += [(body, 200, "receipt makes no sense") for body in (b"<html>", b"{}", b'{"watermark": -1}', b"")]
    for answer, status, sentence in refusals:
        gateway.answers.append(answer)
        with pytest.raises(ServerRefused, match=sentence) as caught:
            send(gateway)
        assert caught.value.status == status
    gateway.answers.append("lost")
    with pytest.raises(DestinationAway, match="does not answer"):
        send(gateway)
    store = open_store_client("http://user@127.0.0.1:1/lockstep", "", "h0")
    with closing(store), pytest.raises(DestinationAway, match="the store does not take rows"):
        store.send(Batch("b1", 1, BODY, rows=1))


def test_header_or_address_that_cannot_be_is_refused_at_once() -> None:
    for token, host in (("lks_ü", "h0"), ("t", "hôte")):
        with pytest.raises(BadInput, match=f"the host, {host!r}, must be plain ASCII"):
            GatewayClient("http://h:1", token, agent=host)
    for server in ("", "head", "head:8642", "ftp://head", "http://", "http://head:port"):
        with pytest.raises(BadInput, match=f"{server!r} is not the address of a gateway.*; expected http"):
            GatewayClient(server, "t", agent="h0")


def test_batch_sent_twice_is_there_once_in_every_table(embedded_store: Store) -> None:
    tables = {"events": rows(make(Event, message="a")), "nic_counters": rows(make(NicCounter, nic="eth0"))}
    client = StoreClient(embedded_store, "h0")
    for number in (1, 1, 2, 1):
        assert client.send(Batch("b1", number, encode_batch(tables), rows=2)).watermark == number
    for table in tables:
        assert embedded_store.query(f"SELECT count() AS n FROM {table}")["n"].to_pylist() == [2], table


STEPS = st.lists(st.tuples(st.sampled_from(["put", "remove", "refuse"]), st.integers(0, 2 * LIMIT)), max_size=40)


@given(STEPS)
def test_queue_holds_what_a_plain_list_with_its_rules_does_whatever_is_put_removed_and_refused(
    steps: list[tuple[str, int]],
) -> None:
    queue, ever, expected, dropped = MemoryQueue(LIMIT), list[Batch](), list[Batch](), 0
    for what, number in steps:
        if what == "put" or not ever:
            ever.append(batch(len(ever) + 1, size=number, rows=number % 10))
            queue.put(ever[-1])
            expected.append(ever[-1])
            while sum(len(kept.body) for kept in expected) > LIMIT and len(expected) > 1:
                dropped += expected.pop(0).rows
        else:
            chosen = ever[number % len(ever)] if number % 2 else (expected or ever)[0]
            (queue.remove if what == "remove" else queue.refuse)(chosen)
            if expected[:1] == [chosen]:
                dropped += expected.pop(0).rows * (what == "refuse")
        assert queue.first() == (expected[0] if expected else None)
        assert queue.bytes == sum(len(kept.body) for kept in expected)
        assert queue.dropped_rows == dropped


def test_failures_are_repeated_ever_later_and_a_receipt_forgets_them() -> None:
    queue, stop, waits = MemoryQueue(1 << 20), threading.Event(), list[float]()
    queue.put(Batch("b1", 1, BODY, rows=1))
    queue.put(Batch("b1", 2, BODY, rows=1))
    away = DestinationAway("the gateway does not answer")
    destination = Mock(send=Mock(side_effect=[*[away] * 5, Receipt(watermark=1), *[away] * 2]))

    def wait(_: threading.Event, timeout_s: float) -> None:
        waits.append(timeout_s)
        if len(waits) == 7:
            stop.set()

    Shipper("h0", queue, destination, Mock(wait=wait)).ship(stop)
    for waited_s, longest_s in zip(waits, (1, 2, 4, 8, 10, 1, 2), strict=True):
        assert longest_s / 2 <= waited_s <= longest_s
