"""A process that plays many agents: own token and connection each, as many batches as a collector sends.

Bodies are encoded before the start, so that sending costs little beside the gateway it shares a machine with. Memory:
all bodies of the run, some 20 KB a second and agent.
"""

import asyncio
import gc
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.fleet_head import host_name, plan_host
from benchmarks.fleet_rows import HostRows
from collector.agent import offset_of
from collector.nccl.budget import PERIOD_S
from lockstep.batches import (
    AGENT_HEADER,
    BOOT_HEADER,
    CONTENT_TYPE,
    ENCODING,
    NUMBER_HEADER,
    VERSION_HEADER,
    Receipt,
    encode_batch,
)
from lockstep.clock import NS_PER_S
from lockstep.records import RECORDS_VERSION

_TIMEOUT_S = 10.0  # as the collector's own way to the gateway
_RETRY_S = 1.0
BATCH_SECONDS = round(PERIOD_S)  # whose rows a batch holds


@dataclass(frozen=True)
class Order:
    """What a sender is to do: which agents it plays, for how many seconds, and how long it may take beyond that."""

    port: int
    boot: str
    tokens: Mapping[int, str]  # by number of the host
    first_second: int  # the time that rows of the first batch carry
    seconds: int
    grace_s: float


@dataclass(frozen=True)
class Body:
    """One encoded batch."""

    content: bytes
    rows: int


@dataclass(frozen=True)
class Sent:
    """What became of one batch; moments are of the monotonic clock, which all processes of a machine share."""

    host: int
    number: int
    due_ns: int
    sent_ns: int  # of the first try
    acked_ns: int  # 0: never
    tries: int
    rows: int
    bytes: int


def encode_bodies(host: int, first_second: int, seconds: int) -> Iterator[Body]:
    """Yield one body for each reading of a collector."""
    tables = HostRows(plan_host(host)).tables(first_second, seconds)
    each = {name: rows.num_rows // seconds * BATCH_SECONDS for name, rows in tables.items()}
    for number in range(seconds // BATCH_SECONDS):
        batch = {name: rows.slice(number * each[name], each[name]) for name, rows in tables.items()}
        yield Body(encode_batch(batch), sum(each.values()))


def batch_head(port: int, token: str, agent: str, boot: str, number: int, content: bytes) -> bytes:
    """Return what goes before a batch on a connection to the gateway."""
    fields = {
        "Host": f"127.0.0.1:{port}",
        "Authorization": f"Bearer {token}",
        "Content-Type": CONTENT_TYPE,
        "Content-Encoding": ENCODING,
        "Content-Length": len(content),
        AGENT_HEADER: agent,
        BOOT_HEADER: boot,
        NUMBER_HEADER: number,
        VERSION_HEADER: RECORDS_VERSION,
    }
    lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
    return f"POST /api/v1/ingest HTTP/1.1\r\n{''.join(lines)}\r\n".encode("ascii")


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Return status and body of an answer after all of it has come, and whether the server ends the connection."""
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in lines if b": " in line)
    body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
    return int(status.split(b" ")[1]), body, fields.get(b"connection") == b"close"


class FleetAgent:
    """One agent: waits for its moment, sends, and tries the same batch again until it has the receipt."""

    def __init__(self, order: Order, host: int, bodies: list[Body]) -> None:
        self._order, self._host = order, host
        self._waiting = deque(enumerate(bodies, start=1))
        self._name = plan_host(host).name
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.sent: list[Sent] = []

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._order.port)

    async def play(self, start_ns: int) -> None:
        """Send everything; what has no receipt when the grace is over stays without one."""
        end_ns = start_ns + int((self._order.seconds + self._order.grace_s) * NS_PER_S)
        while self._waiting:
            number, body = self._waiting[0]
            due_ns = start_ns + int((number * BATCH_SECONDS + offset_of(host_name(self._host))) * NS_PER_S)
            await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / NS_PER_S))
            self.sent.append(await self._deliver(number, body, due_ns, end_ns))
            self._waiting.popleft()
        self._disconnect()

    async def _deliver(self, number: int, body: Body, due_ns: int, end_ns: int) -> Sent:
        sent_ns, tries = time.monotonic_ns(), 0
        facts = {"host": self._host, "number": number, "due_ns": due_ns, "sent_ns": sent_ns}
        facts |= {"rows": body.rows, "bytes": len(body.content)}
        while time.monotonic_ns() < end_ns:
            tries += 1
            if await self._try(number, body):
                return Sent(**facts, acked_ns=time.monotonic_ns(), tries=tries)
            await asyncio.sleep(_RETRY_S)
        return Sent(**facts, acked_ns=0, tries=tries)

    async def _try(self, number: int, body: Body) -> bool:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if self._writer is None:
                    await self.connect()
                head = batch_head(
                    self._order.port,
                    self._order.tokens[self._host],
                    self._name,
                    self._order.boot,
                    number,
                    body.content,
                )
                status, answer = await self._exchange(head, body.content)
        except (OSError, EOFError, TimeoutError, ValueError):
            self._disconnect()
            return False
        return status == 200 and Receipt.model_validate_json(answer).watermark >= number

    async def _exchange(self, head: bytes, content: bytes) -> tuple[int, bytes]:
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(head + content)
        await self._writer.drain()
        status, answer, is_last = await read_answer(self._reader)
        if is_last:
            self._disconnect()
        return status, answer

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def play(order: Order, parent: Connection) -> None:
    """Play the agents of one order: tell how many are encoded, start at the moment that comes, tell the outcome."""
    agents = []
    for host in order.tokens:
        agents.append(FleetAgent(order, host, list(encode_bodies(host, order.first_second, order.seconds))))
        parent.send((len(agents), False))
    gc.collect()
    gc.freeze()  # the bodies stay: looking through them again and again would cost what we want to measure
    with asyncio.Runner() as runner:
        for agent in agents:  # one after the other: a thousand at once overflow the listener's queue
            runner.run(agent.connect())
        parent.send((len(agents), True))
        runner.run(_play_all(agents, parent.recv()))
    parent.send([sent for agent in agents for sent in agent.sent])


async def _play_all(agents: list[FleetAgent], start_ns: int) -> None:
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(agent.play(start_ns))
