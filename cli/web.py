"""A uvicorn server that starts on a socket we hold, says when it is up, and leaves in an order we choose."""

import resource
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

Hook = Callable[[], None]


class WebServer(uvicorn.Server):
    """Runs in the main thread until a signal comes; a second signal does not wait for anything."""

    def __init__(self, app: FastAPI, on_started: Hook, on_leaving: Hook) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=5))
        self._on_started = on_started
        self._on_leaving = on_leaving
        self._leaving: threading.Thread | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let those who still send to this server finish first, then stop it."""
        if self._leaving:
            super().handle_exit(sig, frame)
            return
        self._leaving = threading.Thread(target=self._leave, name="leaving")
        self._leaving.start()

    def _leave(self) -> None:
        try:
            self._on_leaving()
        finally:
            self.should_exit = True


def allow_many_connections() -> None:
    """Raise the number of files this process may open as far as it may: a thousand agents are a thousand sockets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve(app: FastAPI, listener: socket.socket, on_started: Hook, on_leaving: Hook) -> None:
    """Serve until SIGINT or SIGTERM and return; the caller closes what it opened."""
    allow_many_connections()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal once more when it is done
    with listener:
        WebServer(app, on_started, on_leaving).run(sockets=[listener])
