"""The HTTP service that ft_launcher asks for attribution: POST /logs, GET /logs and GET /healthz.

The launcher sends no key, so this listens where only this host can reach it, and has the key for our server itself.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from lockstep.errors import BadInput
from planner.controllers.nvrx_attribution import Attribution, Json

_MOST_BYTES = 64 * 1024  # a submission is a path and a few names
_PATIENCE_S = 10.0  # with a client that sends nothing


@contextmanager
def serving_attribution(attribution: Attribution, host: str, port: int) -> Iterator[str]:
    """Give the address at which the launcher's questions are answered."""

    class Handler(_Handler):
        asked = attribution

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="attribution", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    asked: Attribution
    timeout = _PATIENCE_S

    def do_POST(self) -> None:
        self._answer(lambda: self.asked.submit(self._read()) if self.path == "/logs" else None)

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        if where.path == "/healthz":
            self._answer(lambda: {"status": "ok"})
            return
        paths = parse_qs(where.query).get("log_path", [])
        self._answer(lambda: self.asked.result(paths[0]) if where.path == "/logs" and paths else None)

    def log_message(self, *_: object) -> None:
        """Say nothing: the launcher asks every few seconds."""

    def _read(self) -> Json:
        size = int(self.headers.get("Content-Length") or "0")
        if size > _MOST_BYTES:
            raise BadInput(f"a submission has at most {_MOST_BYTES} bytes, not {size}")
        told = json.loads(self.rfile.read(size))
        if not isinstance(told, dict):
            raise BadInput("a submission is a JSON object")
        return told

    def _answer(self, find: Callable[[], Json | None]) -> None:
        try:
            found = find()
            status, body = (200, found) if found is not None else (404, {"detail": f"there is no {self.path[:100]}"})
        except (BadInput, ValueError) as nonsense:
            status, body = 400, {"detail": str(nonsense)[:300]}
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
