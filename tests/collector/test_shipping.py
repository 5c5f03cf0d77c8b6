"""The queue is bounded, keeps its order, and counts what it had to drop."""

import threading
from collections.abc import Iterator
from contextlib import closing
from unittest.mock import Mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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


@pytest.fixture(scope="module")
def serving() -> Iterator[FakeGateway]:
    with FakeGateway() as gateway:
        yield gateway


@pytest.fixture
def gateway(serving: FakeGateway) -> FakeGateway:
    """The same gateway for all, empty for each."""
    serving.received.clear()
    serving.answers.clear()
    serving.requests = ()
    return serving


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


def test_receipt_of_a_newer_server_may_hold_more_and_a_lost_one_is_an_error_of_the_transport(
    gateway: FakeGateway,
) -> None:
    request = '{"id": "w", "host": "h0", "kind": "probe", "details": {}, "expires_ns": 1, "priority": 1}'
    gateway.answers.append(f'{{"watermark": 1, "requests": [{request}], "shard": "a"}}'.encode())
    assert [request.id for request in send(gateway).requests] == ["w"]
    gateway.answers.append("lost")
    with pytest.raises(DestinationAway, match="does not answer"):
        send(gateway)


@pytest.mark.parametrize(
    ("answer", "status", "sentence"),
    [
        *((status, status, "told to say no") for status in (400, 503)),
        *((body, 200, "receipt makes no sense") for body in (b"<html>", b"{}", b'{"watermark": -1}', b"")),
    ],
)
def test_refusal_carries_the_status_and_the_server_s_sentence(
    gateway: FakeGateway, answer: Answer, status: int, sentence: str
) -> None:
    gateway.answers.append(answer)
    with pytest.raises(ServerRefused, match=sentence) as caught:
        send(gateway)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("server", "token", "host", "complaint"),
    [
        ("http://h:1", *pair, f"the host, {pair[1]!r}, must be plain ASCII")
        for pair in (("lks_ü", "h0"), ("t", "hôte"))
    ]
    + [
        (server, "t", "h0", f"{server!r} is not the address of a gateway.*; expected http")
        for server in ("", "head", "head:8642", "ftp://head", "http://", "http://head:port")
    ],
)
def test_header_or_address_that_cannot_be_is_refused_at_once(
    server: str, token: str, host: str, complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        GatewayClient(server, token, agent=host)


def test_batch_sent_twice_is_there_once_in_every_table(embedded_store: Store) -> None:
    tables = {"events": rows(make(Event, message="a")), "nic_counters": rows(make(NicCounter, nic="eth0"))}
    client = StoreClient(embedded_store, "h0")
    for number in (1, 1, 2, 1):
        assert client.send(Batch("b1", number, encode_batch(tables), rows=2)).watermark == number
    for table in tables:
        assert embedded_store.query(f"SELECT count() AS n FROM {table}")["n"].to_pylist() == [2], table


def test_store_that_is_away_leaves_the_batch_where_it_is() -> None:
    client = open_store_client("http://user@127.0.0.1:1/lockstep", "", "h0")
    with pytest.raises(DestinationAway, match="the store does not take rows"):
        client.send(Batch("b1", 1, encode_batch({"events": rows(make(Event))}), rows=1))
    client.close()


class QueueAgainstAList(RuleBasedStateMachine):
    """Whatever is put, removed and refused, the queue holds what a plain list with the same rules holds."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = MemoryQueue(LIMIT)
        self.expected: list[Batch] = []
        self.ever: list[Batch] = []
        self.dropped = 0

    @rule(size=st.integers(0, 2 * LIMIT), rows=st.integers(0, 9))
    def put(self, size: int, rows: int) -> None:
        new = batch(len(self.ever) + 1, size, rows)
        self.ever.append(new)
        self.expected.append(new)
        self.queue.put(new)
        while sum(len(kept.body) for kept in self.expected) > LIMIT and len(self.expected) > 1:
            self.dropped += self.expected.pop(0).rows

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        done = data.draw(st.sampled_from(self.ever))
        self.queue.remove(done)
        if self.expected[:1] == [done]:
            self.expected.pop(0)

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        refused = data.draw(st.sampled_from(self.ever))
        self.queue.refuse(refused)
        if self.expected[:1] == [refused]:
            self.dropped += self.expected.pop(0).rows

    @invariant()
    def agrees(self) -> None:
        assert self.queue.first() == (self.expected[0] if self.expected else None)
        assert self.queue.bytes == sum(len(kept.body) for kept in self.expected)
        assert self.queue.bytes <= LIMIT or len(self.expected) == 1
        assert self.queue.dropped_rows == self.dropped


TestQueueAgainstAList = QueueAgainstAList.TestCase
TestQueueAgainstAList.settings = settings(stateful_step_count=20)


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
