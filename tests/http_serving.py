"""A small HTTP server in a thread, for tests that play the other side of a client."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx


class Quiet(BaseHTTPRequestHandler):
    """Says nothing on standard error."""

    wbufsize: ClassVar[int] = -1  # a reply leaves in one piece

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        """Answer with this body; a header's name is written with underscores."""
        self.send_response(status)
        for name, value in ({"Content_Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up: tests make them do so."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Give the address at which the handler answers."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def is_up(url: str) -> bool:
    """Return whether a server answers this with success."""
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False
