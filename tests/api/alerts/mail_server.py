"""A mail server on loopback for tests: with or without TLS and a password, and with a bad temper."""

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

USER, PASSWORD = "lockstep", "correct horse battery"


@dataclass
class Mailbox:
    """What was taken, and what is said to the next one."""

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
        is_right = isinstance(data, LoginPassword) and (data.login, data.password) == (
            USER.encode(),
            PASSWORD.encode(),
        )
        if is_right:
            self.logins.append(USER)
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
    """Return a file with a key and a certificate for this name, signed by itself."""
    file = folder / f"{name}.pem"
    subject, names = ["-subj", f"/CN={name}"], ["-addext", f"subjectAltName=DNS:{name}"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run(
        [*made, *subject, *names, "-keyout", file, "-out", folder / "certificate"], check=True, capture_output=True
    )
    file.write_text(file.read_text() + (folder / "certificate").read_text())
    return file
