"""A uvicorn server that starts on a socket we hold, says when it is up, and leaves in an order we choose."""

import asyncio
import os
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from socket import AF_INET, AF_INET6
from types import FrameType
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.auth import is_loopback
from api.dependencies import Parts
from lockstep.config import Settings
from lockstep.errors import BadInput, LockstepError
from lockstep.sections import ApiSettings, split_listen

_log = structlog.get_logger("web")

LEAVE_S = 5.0  # from the signal to the end, whatever is under way; systemd kills after 30

Hook = Callable[[], None]


_HEADERS_S = 10.0  # from the first byte, or the connection, to the end of a request's headers


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose headers have a deadline, as one of so many at most that an address may have."""

    def __init__(self, *args: Any, most: int | None, **options: Any) -> None:  # Any: what uvicorn hands over
        super().__init__(*args, **options)
        self._most = most
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class
        super().connection_made(transport)
        neighbours = (one.client for one in self.connections if isinstance(one, BoundedProtocol))
        if (
            self._most
            and self.client
            and self._most < sum(each[:1] == self.client[:1] for each in neighbours if each)
        ):
            transport.close()
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_headers()

    def on_headers_complete(self) -> None:
        self._cancel()
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        self._cancel()
        self._deadline = self.loop.call_later(_HEADERS_S, self.transport.close)

    def _cancel(self) -> None:
        if self._deadline:
            self._deadline.cancel()


def _most_connections(parts: Parts | None) -> int | None:
    """Return how many connections an address may have; None behind a proxy, which is one address for everybody."""
    return None if parts is None or parts.settings.api.tls_in_front else parts.settings.api.max_connections


class WebServer(uvicorn.Server):
    """Runs in the main thread until a signal comes; a second signal does not wait for anything."""

    def __init__(self, app: FastAPI, on_started: Hook, on_leaving: Hook, tls: ssl.SSLContext | None = None) -> None:
        parts: Parts | None = getattr(app.state, "parts", None)  # only the API has parts
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="on",
            timeout_graceful_shutdown=1,
            http=partial(BoundedProtocol, most=_most_connections(parts)),  # type: ignore[arg-type]  # makes one
            # Else whoever is on this machine could say to be somebody else.
            proxy_headers=parts is not None and parts.settings.api.tls_in_front,
        )
        super().__init__(config)
        if tls is not None:
            config.load()
            config.ssl = tls
        self._app = app
        self._on_started = on_started
        self._on_leaving = on_leaving
        self._leaving: threading.Thread | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams first: they have no end of their own, and the server would wait for them."""
        if feed := getattr(self._app.state, "feed", None):
            feed.close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let those who still send to this server finish first, then stop it."""
        if self._leaving:
            super().handle_exit(sig, frame)
            return
        self._leaving = threading.Thread(target=self._leave, name="leaving")
        self._leaving.start()
        ending = threading.Timer(LEAVE_S, _end)
        ending.daemon = True  # who is through before goes by itself
        ending.start()

    def _leave(self) -> None:
        try:
            self._on_leaving()
        finally:
            self.should_exit = True


def _end() -> None:
    """End the process as it is: what was acknowledged is on disk, and the next start goes on from there."""
    try:
        _log.warning("stopped in the midst of work, which goes on at the next start", after_s=LEAVE_S)
    finally:  # nobody may read it any more
        os._exit(0)


def serve(
    app: FastAPI, listener: socket.socket, on_started: Hook, on_leaving: Hook, api: ApiSettings | None = None
) -> None:
    """Serve until SIGINT or SIGTERM and return; the caller closes what it opened. `api` brings TLS."""
    tls = read_tls(api) if api else None
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # a thousand agents are a thousand sockets
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal once more when it is done
    with listener:
        WebServer(app, on_started, on_leaving, tls).run(sockets=[listener])


def listen_on(listen: str, setting: str) -> socket.socket:
    """Return a socket that listens at host:port; taken before anything is started, so that a clash costs nothing."""
    host, port = split_listen(listen)
    try:
        return socket.create_server((host, port), family=AF_INET6 if ":" in host else AF_INET, backlog=1024)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]  # Python adds the address once more
        raise LockstepError(f"cannot listen on {host}:{port}: {reason}; set {setting} to another") from error


def with_listen(settings: Settings, listener: socket.socket) -> Settings:
    """Return the settings with the address that is really listened on, where port 0 had asked for any."""
    host, port = listener.getsockname()[:2]
    listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return settings.model_copy(update={"api": settings.api.model_copy(update={"listen": listen})})


def scheme_of(api: ApiSettings) -> str:
    return "https" if api.tls_cert else "http"


def read_tls(api: ApiSettings) -> ssl.SSLContext | None:
    """Return what TLS needs, or raise BadInput where certificate and key cannot be used; None for plain HTTP."""
    if api.tls_cert is None or api.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a password would stop the start at a prompt that nobody sees.
        context.load_cert_chain(api.tls_cert, api.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BadInput(f"TLS cannot be served with {api.tls_cert} and {api.tls_key}: {error}") from error
    return context


def check_exposure(api: ApiSettings, *, is_demo: bool = False) -> None:
    """Refuse a demo that others could read, and warn of what is set on purpose but would be a pity by accident."""
    if is_loopback(split_listen(api.listen)[0]):
        return
    if is_demo:
        raise BadInput(
            f"the demo answers everybody without a token, so it listens on loopback only, not {api.listen}"
        )
    if api.open_reads:
        _log.warning("everybody who reaches this port can read without a token: api.open_reads", listen=api.listen)
    if api.tls_cert is None and not api.tls_in_front:
        _log.warning("tokens travel unencrypted: set api.tls_cert, or api.tls_in_front", listen=api.listen)
