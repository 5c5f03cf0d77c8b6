"""A server that gives one answer to everything, for what a client does with servers that are not ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.http_serving import Quiet, serving


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(status, body)

    with serving(Handler) as url:
        yield url


def unused_address() -> str:
    """Return an address at which nobody answers: a port that was free a moment ago may be somebody's by now."""
    return "http://127.0.0.1:1"
