"""Hands a mail to a server: encrypted unless the address says otherwise, to the address that was checked, in time."""

import smtplib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from typing import Any
from urllib.parse import urlsplit

from api.alerts.guard import find_address
from api.alerts.posting import Outside
from api.alerts.retrying import Said
from lockstep.errors import BadInput, ReceiverAway

_PORTS = {"smtp": 587, "smtps": 465, "smtp-plain": 25}


def send_mail(url: str, username: str, password: str, mail: EmailMessage, outside: Outside) -> Said:
    """Return what the server said; it has taken the mail for all its recipients, or it counts as failed."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    if username and parts.scheme == "smtp-plain":
        raise BadInput(f"no password is sent to {host} in the open: use smtp:// or smtps://")
    address = find_address(host, port, outside.allow, outside.lookup)
    try:
        with _connected(parts.scheme, host, port, address, outside) as server:
            if username:
                server.login(username, password)
            refused = server.send_message(mail)
    except smtplib.SMTPResponseException as error:
        said = f"{error.smtp_code} {_text(error.smtp_error)}"
        return Said("failed", f"{host} said {said}"[:300], error.smtp_code)
    except smtplib.SMTPRecipientsRefused as error:
        return Said("failed", f"{host} refuses {', '.join(sorted(error.recipients))}"[:300])
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise ReceiverAway(f"{host} did not take the mail: {str(error) or type(error).__name__}") from None
    if refused:  # the others have it; trying again would send it to them twice, so it is said and left at that
        return Said("delivered", f"{host} refuses {', '.join(sorted(refused))}, the others have it", 250)
    return Said("delivered", "the server took it", 250)


@contextmanager
def _connected(scheme: str, host: str, port: int, address: str, outside: Outside) -> Iterator[smtplib.SMTP]:
    """Give a session; when the time is over its socket is shut, whatever the server trickles."""
    server = _Server(scheme, host, address, outside)
    timer = threading.Timer(outside.timeout_s, server.shut)
    timer.daemon = True
    timer.start()
    try:
        server.connect(host, port)
        if scheme == "smtp":
            server.starttls(context=outside.trust())
        yield server
        with suppress(smtplib.SMTPException, OSError):
            server.quit()
    finally:
        timer.cancel()
        server.close()


class _Server(smtplib.SMTP):
    """A session with the host by its checked address; certificates are checked against its name."""

    def __init__(self, scheme: str, host: str, address: str, outside: Outside) -> None:
        self._address = address
        self._context = outside.trust() if scheme == "smtps" else None
        self._raw: socket.socket | None = None
        self._is_over = False
        super().__init__(timeout=outside.timeout_s)
        self._host = host  # what STARTTLS and smtplib's own class for TLS compare certificates with

    def _get_socket(self, host: str, port: int, timeout: float) -> Any:  # Any: as the base class has it
        self._raw = socket.create_connection((self._address, port), timeout)
        if self._context:
            self._raw = self._context.wrap_socket(self._raw, server_hostname=host)
        if self._is_over:  # before there was a socket to shut
            self._raw.close()
            raise TimeoutError("the time was over before the server answered")
        return self._raw

    def shut(self) -> None:
        self._is_over = True
        if self._raw is not None:
            with suppress(OSError):
                self._raw.shutdown(socket.SHUT_RDWR)


def _text(said: bytes | str) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said
