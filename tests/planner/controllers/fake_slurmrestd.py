"""A slurmrestd that answers with what a real one said, and notes what it was asked."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.http_serving import Quiet, serving

DATA = Path(__file__).parents[2] / "data" / "slurm" / "rest"
NOT_DEFINED = "Requested REST method is not defined at URL. Please view /openapi/v3 for API reference."


def recorded(name: str) -> dict[str, Any]:
    """Return one answer of the real slurmrestd."""
    answer: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return answer


@dataclass
class FakeSlurmrestd:
    """Answers by method and path; what it was not told it does not have, as the real one."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)  # Any: JSON as it came
    headers: dict[str, str] = field(default_factory=dict)  # of the last request

    def say(self, request: str, answer: dict[str, Any] | str, status: int = 200) -> None:
        """Tell what to answer to a request such as `GET /slurm/v0.0.38/nodes`."""
        self.answers[request] = status, answer if isinstance(answer, str) else json.dumps(answer)

    def answer(self, request: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        self.asked.append(request)
        self.headers = headers
        if body:
            self.bodies.append(json.loads(body))
        return self.answers.get(request, (405, NOT_DEFINED))


@contextmanager
def serve(fake: FakeSlurmrestd) -> Iterator[str]:
    """Give the address at which the fake answers."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, text = fake.answer(f"{self.command} {self.path}", body, dict(self.headers))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_DELETE = do_GET  # noqa: N815

    with serving(Handler) as url:
        yield url
