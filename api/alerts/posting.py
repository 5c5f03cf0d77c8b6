"""Posts to a receiver over HTTP: to the address that was checked, without redirects, within one deadline for all.

A receiver may trickle its answer a byte at a time. So every read has what is left of the whole time, not a time of
its own, and no more than the beginning of an answer is read.
"""

import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpcore

from api.alerts.guard import Lookup, find_address, look_up
from api.alerts.retrying import Answer
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import BadInput, ReceiverAway

_MOST_BYTES = 64 << 10  # of an answer: a sentence is enough
_USER_AGENT = "Lockstep"


@dataclass(frozen=True, slots=True)
class Post:
    """What is sent."""

    url: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Outside:
    """The way to receivers: which addresses are allowed, who signs certificates, how long it may take."""

    clock: Clock
    allow: tuple[str, ...] = ()
    timeout_s: float = 15.0
    ca_file: Path | None = None
    lookup: Lookup = look_up

    def trust(self) -> ssl.SSLContext:
        """Return what certificates are checked with: the system's authorities, and those of the site."""
        context = ssl.create_default_context()
        if self.ca_file:
            try:
                context.load_verify_locations(self.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise BadInput(f"cannot read authorities from {self.ca_file} (alerts.ca_file): {error}") from error
        return context


def send_post(post: Post, outside: Outside) -> Answer:
    """Return what the receiver answered; ReceiverAway where it did not, or not whole, or not in time."""
    parts = urlsplit(post.url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    address = find_address(host, port, outside.allow, outside.lookup)
    until_ns = outside.clock.monotonic_ns() + round(outside.timeout_s * NS_PER_S)
    wire = _TimedBackend(address, until_ns, outside.clock)
    context = outside.trust() if parts.scheme == "https" else None
    try:
        with httpcore.ConnectionPool(ssl_context=context, network_backend=wire, retries=0) as pool:
            return _exchange(pool, post)
    except httpcore.TimeoutException:
        raise ReceiverAway(f"{host} did not answer in full within {outside.timeout_s:g} s") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol, OSError) as error:
        raise ReceiverAway(f"{host} did not answer properly: {str(error) or type(error).__name__}") from None


def _exchange(pool: httpcore.ConnectionPool, post: Post) -> Answer:
    named = {"User-Agent": _USER_AGENT, "Connection": "close", **post.headers}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    with pool.stream("POST", post.url, headers=headers, content=post.body) as response:
        body = bytearray()
        for piece in response.iter_stream():
            body += piece
            if len(body) > _MOST_BYTES:
                break
        names = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return Answer(response.status, names, bytes(body))


class _TimedStream(httpcore.NetworkStream):
    """A connection on which everything together has one deadline."""

    def __init__(self, inner: httpcore.NetworkStream, left: "_TimedBackend") -> None:
        self._inner, self._backend = inner, left

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._backend.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._backend.left_s())

    def close(self) -> None:
        with suppress(OSError):
            self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        inner = self._inner.start_tls(ssl_context, server_hostname, self._backend.left_s())
        return _TimedStream(inner, self._backend)

    def get_extra_info(self, info: str) -> Any:  # Any: as the interface has it
        return self._inner.get_extra_info(info)


class _TimedBackend(httpcore.NetworkBackend):
    """Connects to the address that was checked, whatever name is asked for."""

    def __init__(self, address: str, until_ns: int, clock: Clock) -> None:
        self._address, self._until_ns, self._clock = address, until_ns, clock
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        return _TimedStream(self._backend.connect_tcp(self._address, port, self.left_s()), self)

    def left_s(self) -> float:
        """Return what is left of the time, or raise a timeout."""
        left_ns = self._until_ns - self._clock.monotonic_ns()
        if left_ns <= 0:
            raise httpcore.ReadTimeout
        return left_ns / NS_PER_S
