"""Receivers of alerts for tests, over HTTP and mail: those that keep what they get, and those that misbehave."""

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.http_serving import Quiet, serving


@dataclass(frozen=True)
class Got:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


Behaviour = Callable[[Quiet, Got], None]


def answer(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    return lambda handler, _: handler.reply(status, body, **headers)


def cut_short(handler: Quiet, _: Got) -> None:
    """Promise a hundred bytes and hang up after five."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")
    handler.wfile.flush()
    handler.close_connection = True


def hang_up(handler: Quiet, _: Got) -> None:
    handler.close_connection = True


def garbage(handler: Quiet, _: Got) -> None:
    handler.wfile.write(b"\x00\x01 this is no HTTP\r\n\r\n")
    handler.close_connection = True


@dataclass
class Receiver:
    """A receiver that answers as it is told; `release` lets go those that hang."""

    url: str = ""
    got: list[Got] = field(default_factory=list)
    reply: Behaviour = field(default_factory=lambda: answer(200, b"ok"))
    release: threading.Event = field(default_factory=threading.Event)

    def hang(self, handler: Quiet, _: Got) -> None:
        self.release.wait(120)
        handler.close_connection = True

    def trickle(self, handler: Quiet, _: Got) -> None:
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


def _over_tls(handler: type[Quiet], certificate: Path) -> type[Quiet]:
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
    return [got.document["type"].removeprefix("dev.lockstep.") for got in receiver.got]


USER, PASSWORD = "lockstep", "correct horse battery"


@dataclass
class Mailbox:
    mails: list[Message] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    reply: str = "250 OK"
    refused: str = ""

    async def handle_RCPT(  # noqa: N802  # the server calls it by this name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address == self.refused:
            return "550 nobody of that name"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        if self.reply.startswith("250"):
            assert isinstance(envelope.content, bytes)
            self.mails.append(message_from_bytes(envelope.content))
        return self.reply

    def authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        right = (USER.encode(), PASSWORD.encode())
        is_right = isinstance(data, LoginPassword) and (data.login, data.password) == right
        self.logins += [USER] * is_right
        return AuthResult(success=is_right, handled=False)  # the server answers


@contextmanager
def mail_server(certificate: Path | None = None, *, from_the_start: bool = False) -> Iterator[tuple[Mailbox, int]]:
    """Give a mailbox and its port; with a certificate TLS and a login are demanded, by STARTTLS or from the start."""
    box = Mailbox()
    guarded: dict[str, Any] = {}
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        guarded = {"tls_context": context, "require_starttls": True, "auth_required": True}
        if from_the_start:
            guarded = {"ssl_context": context, "auth_require_tls": False}  # it does not count TLS from the start
        guarded["authenticator"] = box.authenticate
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _OnSocket(listener, box, **guarded)
        server.start()
        try:
            yield box, server.port
        finally:
            server.stop()


class _OnSocket(Controller):
    """Listens on a socket that is open already: the base class wants to know the port beforehand."""

    def __init__(self, listener: socket.socket, box: Mailbox, **guarded: Any) -> None:
        self._listener = listener
        super().__init__(box, hostname="127.0.0.1", port=listener.getsockname()[1], **guarded)

    def _create_server(self) -> Any:  # Any: as the base class has it
        return self.loop.create_server(self._factory_invoker, sock=self._listener, ssl=self.ssl_context)


def make_certificate(folder: Path, name: str) -> Path:
    file = folder / f"{name}.pem"
    subject, names = ["-subj", f"/CN={name}"], ["-addext", f"subjectAltName=DNS:{name}"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    made += [*subject, *names, "-keyout", str(file), "-out", str(folder / "certificate")]
    subprocess.run(made, check=True, capture_output=True)
    file.write_text(file.read_text() + (folder / "certificate").read_text())
    return file
