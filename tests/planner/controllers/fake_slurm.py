"""Slurm's commands as small scripts that say what they are told to say, and note how they were called."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from planner.controllers.slurm_commands import SlurmOptions
from tests.http_serving import Quiet, serving

_DATA = Path(__file__).parents[2] / "data" / "slurm"
NODES = (_DATA / "nodes.txt").read_text().splitlines(keepends=True)
RUNNING = (_DATA / "job_running.txt").read_text()
SCRIPT = (_DATA / "batch_script.txt").read_text()
_TOOLS = ("scontrol", "sbatch", "scancel", "squeue")
_SCRIPT = """\
#!/bin/sh
cd {home} || exit 99
tool=$(basename "$0")
if [ "$1" != --test-only ]; then printf '%s\\n' "$tool $*" >> calls; fi
case $tool-$1 in
    sbatch---test-only) key=sbatch-test ;;
    scontrol-show|scontrol-write) key=$tool-$1-$2 ;;
    scontrol-*) key=$tool-$1 ;;
    *) key=$tool ;;
esac
if [ -e "$key.do" ]; then . "./$key.do"; fi
if [ -e "$key.err" ]; then cat "$key.err" >&2; fi
if [ -e "$key.out" ]; then cat "$key.out"; fi
if [ -e "$key.rc" ]; then exit "$(cat "$key.rc")"; fi
"""


@dataclass(frozen=True)
class FakeSlurm:
    """Commands in a directory; what nobody told them to say, they pass over in silence."""

    home: Path

    def install(self) -> "FakeSlurm":
        self.home.mkdir()
        for tool in _TOOLS:
            path = self.home / tool
            path.write_text(_SCRIPT.format(home=shlex.quote(str(self.home))))
            path.chmod(0o755)
        return self

    def say(self, key: str, out: str = "", err: str = "", code: int = 0, do: str = "") -> None:
        """Tell a command what to print, how to end, and what to do first; the key is such as `scontrol-show-node`."""
        for suffix, text in (("out", out), ("err", err), ("rc", str(code)), ("do", do)):
            (self.home / f"{key}.{suffix}").write_text(text)

    def calls(self, tool: str = "") -> list[str]:
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(tool)]

    def changes(self) -> list[str]:
        return [line for line in self.calls() if not line.startswith(("squeue", "scontrol show", "scontrol write"))]

    def options(self, dry_run: bool = False, timeout_s: float = 60.0) -> SlurmOptions:
        return SlurmOptions(
            self.home / "spool",
            dry_run=dry_run,
            timeout_s=timeout_s,
            scontrol=str(self.home / "scontrol"),
            sbatch=str(self.home / "sbatch"),
            scancel=str(self.home / "scancel"),
            squeue=str(self.home / "squeue"),
        )


DATA = Path(__file__).parents[2] / "data" / "slurm" / "rest"
NOT_DEFINED = "Requested REST method is not defined at URL. Please view /openapi/v3 for API reference."


def recorded(name: str) -> dict[str, Any]:
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
