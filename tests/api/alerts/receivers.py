"""Receivers of alerts for tests: one that keeps what it gets, and those that misbehave."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.http_serving import Quiet, serving


@dataclass(frozen=True)
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


Behaviour = Callable[[BaseHTTPRequestHandler, Got], None]


def answer(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    """Return a reply with this status and body."""

    def reply(handler: BaseHTTPRequestHandler, _: Got) -> None:
        handler.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return reply


def cut_short(handler: BaseHTTPRequestHandler, _: Got) -> None:
    """Promise a hundred bytes and hang up after five."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")
    handler.wfile.flush()
    handler.close_connection = True


def hang_up(handler: BaseHTTPRequestHandler, _: Got) -> None:
    """Say nothing at all."""
    handler.close_connection = True


def garbage(handler: BaseHTTPRequestHandler, _: Got) -> None:
    handler.wfile.write(b"\x00\x01 this is no HTTP\r\n\r\n")
    handler.close_connection = True


@dataclass
class Receiver:
    """A receiver that answers as it is told; `release` lets go those that hang."""

    url: str = ""
    got: list[Got] = field(default_factory=list)
    reply: Behaviour = field(default_factory=lambda: answer(200, b"ok"))
    release: threading.Event = field(default_factory=threading.Event)

    def hang(self, handler: BaseHTTPRequestHandler, _: Got) -> None:
        self.release.wait(120)
        handler.close_connection = True

    def trickle(self, handler: BaseHTTPRequestHandler, _: Got) -> None:
        """Send a header that never ends, a byte at a time."""
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not self.release.wait(0.02):
            handler.wfile.write(b"x")
            handler.wfile.flush()


@contextmanager
def receiving(reply: Behaviour | None = None, certificate: Path | None = None) -> Iterator[Receiver]:
    """Give a receiver on loopback; with a certificate it speaks TLS."""
    receiver = Receiver()
    if reply:
        receiver.reply = reply

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            got = Got(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            receiver.got.append(got)
            receiver.reply(self, got)

    with serving(Handler if certificate is None else _over_tls(Handler, certificate)) as url:
        receiver.url = url if certificate is None else url.replace("http:", "https:")
        try:
            yield receiver
        finally:
            receiver.release.set()


def _over_tls(handler: type[BaseHTTPRequestHandler], certificate: Path) -> type[BaseHTTPRequestHandler]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    class Encrypted(handler):  # type: ignore[misc, valid-type]  # made at run time
        def setup(self) -> None:
            self.request: ssl.SSLSocket = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def finish(self) -> None:
            super().finish()
            self.request.close()

    return Encrypted


def kinds(receiver: Receiver) -> list[str]:
    """Return what a webhook was told of, in order."""
    return [got.document["type"].removeprefix("dev.lockstep.") for got in receiver.got]
