"""A real HTTP server that stands for an exporter: it answers as a test tells it to, and remembers its requests."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    """Where the server is, and the headers of the requests it had."""

    def __init__(self, port: int, answer: Answer) -> None:
        self.url = f"http://127.0.0.1:{port}/metrics"
        self.answer = answer
        self.asked: list[dict[str, str]] = []
        self.released = threading.Event()  # for answers that hang until the test ends


def says(body: str | bytes, *, status: int = 200, **headers: str) -> Answer:
    """Answer with this body; a header's name is written with underscores."""
    data = body.encode() if isinstance(body, str) else body

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in ({"Content_Type": TEXT} | headers).items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    return answer


@contextmanager
def exporter(answer: Answer) -> Iterator[Exporter]:
    """Give an exporter for the length of a block; `answer` may be replaced meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            running.asked.append(dict(self.headers))
            with suppress(OSError):  # the other side had enough
                running.answer(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it so
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Exporter(server.server_address[1], answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="exporter")
    thread.start()
    try:
        yield running
    finally:
        running.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def hangs(running: Callable[[], Exporter]) -> Answer:
    """Answer nothing until the test ends."""

    def answer(_: BaseHTTPRequestHandler) -> None:
        running().released.wait()

    return answer


def drips(running: Callable[[], Exporter]) -> Answer:
    """Answer a byte now and then, so that no single read ever waits long."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", TEXT)
        request.end_headers()
        while not running().released.wait(0.02):
            request.wfile.write(b"#")
            request.wfile.flush()

    return answer
