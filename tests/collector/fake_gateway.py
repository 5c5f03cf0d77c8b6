"""A gateway over real HTTP that keeps what it gets and answers as it is told."""

from collections import deque
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

import pyarrow as pa

from lockstep.batches import AGENT_HEADER, BOOT_HEADER, NUMBER_HEADER, DetailRequest, Receipt, decode_batch
from tests.http_serving import Quiet, serving

# A status with a problem document, a whole body with status 200, or a connection that ends without an answer.
Answer = int | bytes | Literal["lost"]


@dataclass(frozen=True)
class Received:
    """One batch as it came in."""

    number: int
    boot: str
    agent: str
    token: str
    body: bytes
    tables: dict[str, pa.Table]

    def column(self, table: str, name: str) -> list[Any]:
        """Return the values of a column, none when the batch does not hold the table."""
        return list(self.tables[table][name].to_pylist()) if table in self.tables else []


class FakeGateway:
    """Serves as long as its block lasts; answers with receipts, after those that `answers` holds."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: deque[Answer] = deque()
        self.requests: tuple[DetailRequest, ...] = ()
        self._serving = serving(_handler_for(self))

    @property
    def numbers(self) -> list[int]:
        return [batch.number for batch in self.received]

    def all_of(self, table: str, column: str) -> list[Any]:
        """Return the values of a column over all batches, in the order they came."""
        return [value for batch in list(self.received) for value in batch.column(table, column)]

    def answer_to(self, batch: Received) -> Answer:
        self.received.append(batch)
        try:
            return self.answers.popleft()
        except IndexError:
            return Receipt(watermark=batch.number, requests=self.requests).model_dump_json().encode()

    def __enter__(self) -> "FakeGateway":
        self.url = self._serving.__enter__()
        self.port = int(self.url.rpartition(":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__(None, None, None)


def _handler_for(gateway: FakeGateway) -> type[Quiet]:
    class Handler(Quiet, BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as the real server does

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = gateway.answer_to(
                Received(
                    number=int(self.headers[NUMBER_HEADER]),
                    boot=self.headers[BOOT_HEADER],
                    agent=self.headers[AGENT_HEADER],
                    token=self.headers["Authorization"],
                    body=body,
                    tables=decode_batch(body, 1 << 30, 1 << 30),
                )
            )
            if answer == "lost":
                self.close_connection = True
            elif isinstance(answer, int):
                self.reply(answer, b'{"detail": "told to say no"}')
            elif isinstance(answer, bytes):
                self.reply(200, answer)

    return Handler
