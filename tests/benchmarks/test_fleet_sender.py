"""A simulated agent keeps the protocol: in order, one at a time, the same number again until it has the receipt."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from benchmarks import fleet_sender
from benchmarks.fleet_sender import Body, FleetAgent, Order, Sent
from lockstep.clock import NS_PER_S

Answer = Callable[[int, int], str | None]  # number and how often it came -> status line and receipt; None: hang up


class FakeGateway:
    """Answers as it is told, and remembers what came: the real one cannot be made to fail on purpose."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.came: list[int] = []
        self.heads: list[dict[str, str]] = []
        self.connections = 0
        self._talks: list[asyncio.Task[None] | None] = []

    async def serve(self, work: Callable[[int], Awaitable[None]]) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        async with server:
            await work(server.sockets[0].getsockname()[1])
            await asyncio.gather(*filter(None, self._talks))  # they end with their connections

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._talks.append(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.split(": ", 1) for line in head.decode().splitlines()[1:] if line)
                await reader.readexactly(int(fields["Content-Length"]))
                number = int(fields["Lockstep-Number"])
                self.came.append(number)
                self.heads.append(fields)
                answer = self._answer(number, self.came.count(number))
                if answer is None:
                    break
                status, text = answer.split("|")
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        except asyncio.IncompleteReadError:
            pass
        writer.close()
        await writer.wait_closed()


def _play(answer: Answer, bodies: int = 3, grace_s: float = 300.0) -> tuple[FakeGateway, list[Sent]]:
    gateway = FakeGateway(answer)
    sent: list[Sent] = []

    async def play(port: int) -> None:
        order = Order(port, "boot-1", {5: "lks_token"}, 1_000, bodies, grace_s)
        agent = FleetAgent(order, 5, [Body(b"x" * 100, 7)] * bodies)
        await agent.play(time.monotonic_ns() - 100 * NS_PER_S)  # long ago: everything is due
        sent.extend(agent.sent)

    asyncio.run(gateway.serve(play))
    return gateway, sent


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_sender, "_RETRY_S", 0.01)


def _take(number: int, _: int) -> str:
    return f'200 OK|{{"watermark": {number}}}'


def test_batches_go_in_order_over_one_connection_with_token_host_boot_and_number() -> None:
    gateway, sent = _play(_take)
    assert (gateway.came, gateway.connections) == ([1, 2, 3], 1)
    assert {head["Authorization"] for head in gateway.heads} == {"Bearer lks_token"}
    assert {(head["Lockstep-Agent"], head["Lockstep-Boot"]) for head in gateway.heads} == {("h00005", "boot-1")}
    assert [(one.number, one.tries, one.rows, one.bytes) for one in sent] == [(n, 1, 7, 100) for n in (1, 2, 3)]
    assert all(one.acked_ns > one.sent_ns for one in sent)


def test_a_batch_that_was_refused_lost_or_not_receipted_comes_again_before_the_next() -> None:
    gateway, sent = _play(lambda number, time: "503 Full|{}" if number == 2 and time < 3 else _take(number, time))
    assert gateway.came == [1, 2, 2, 2, 3]
    assert [one.tries for one in sent] == [1, 3, 1]
    gateway, sent = _play(lambda number, time: None if number == 1 and time == 1 else _take(number, time))
    assert (gateway.came, gateway.connections) == ([1, 1, 2, 3], 2)
    assert sent[0].tries == 2
    gateway, _ = _play(lambda number, time: '200 OK|{"watermark": 0}' if time == 1 else _take(number, time), bodies=1)
    assert gateway.came == [1, 1]


def test_when_the_grace_is_over_what_has_no_receipt_stays_without() -> None:
    _, sent = _play(lambda *_: "503 Full|{}", bodies=2, grace_s=50.0)
    assert [one.acked_ns for one in sent] == [0, 0]
