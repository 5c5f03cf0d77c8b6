"""lockstep nvrx: what NVIDIA's ft_launcher asks on a training host, answered until stopped.

To learn why a cycle of its job ended (`--ft-attribution-endpoint`) the launcher posts the path of a log and then asks
`GET /logs?log_path=…` until the status is completed. It acts on one word only: STOP ends the job with exit code 93
(do not requeue), and only under `--ft-attribution-stop-action no-restart`. A wrong STOP costs without bound, a wrong
RESTART costs one cycle, so STOP is said only for a decision that is being carried out and that the launcher cannot
bring about by restarting.
"""

import json
import signal
import socket as network
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

import typer

from cli.client import DEFAULT_SERVER, Server, Token
from cli.setup import err
from lockstep.client import Client
from lockstep.clock import NS_PER_S, Clock, SystemClock
from lockstep.decision import Decision
from lockstep.errors import BadInput, ServerRefused
from planner.controllers.nvrx import Exclusion, find_isolated, find_noted, serve_health

app = typer.Typer(no_args_is_help=True, help="What NVIDIA's ft_launcher asks on a training host.")

_ENDING = (signal.SIGINT, signal.SIGTERM)
_ASK_S = 5.0  # the launcher waits for us before every rendezvous

Recommendation = Literal["STOP", "RESTART", "CONTINUE", "UNKNOWN"]
Json = dict[str, Any]  # Any: as the launcher wants it

_SOURCE = "lockstep"
_NEEDS_NEW_LAYOUT = ("reconfigure", "grow")  # the launcher starts the same command again, with the same layout
_NEEDS_NOTHING = ("none", "reroute")
_MOST_LOGS = 1000  # of which it is remembered when they were posted
_MOST_BYTES = 64 * 1024  # a submission is a path and a few names
_PATIENCE_S = 10.0  # with a client that sends nothing


@app.command()
def health(
    socket: Annotated[Path, typer.Option(help="Where the launcher asks.")] = Path("/run/lockstep/nvhcd.sock"),
    directory: Annotated[
        Path | None, typer.Option(help="The nvrx controller's notes; else the server is asked what is isolated.")
    ] = None,
    name: Annotated[list[str] | None, typer.Option(help="This host's name; may be given more than once.")] = None,
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Say before each rendezvous whether this host is in service (ft_launcher --ft-node-health-check-endpoint)."""
    names = tuple(name or _own_names())
    with _keep_signals(), Client(server, token, timeout_s=_ASK_S) as lockstep:

        def find() -> Exclusion | None:
            return find_noted(directory, names) if directory else find_isolated(lockstep.isolated(), names)

        running = serve_health(find, socket)
        _wait(f"health of {' or '.join(names)} at unix://{socket}")
        running.stop(None).wait()


@app.command()
def attribution(
    listen: Annotated[str, typer.Option(help="Where the launcher asks: host:port, of this host.")] = "127.0.0.1:8644",
    job: Annotated[str, typer.Option(help="What Lockstep calls the job; else as the launcher does.")] = "",
    settle_s: Annotated[float, typer.Option(min=1.0, help="A cycle without a decision by then has none.")] = 60.0,
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Say after a failed cycle whether the job shall go on (ft_launcher --ft-attribution-endpoint)."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(f"--listen {listen!r} is no host:port")
    with _keep_signals(), Client(server, token, timeout_s=_ASK_S) as lockstep:

        def find(name: str) -> Decision | None:
            return next(lockstep.decisions(job=name), None)

        asked = Attribution(find, SystemClock(), job or None, settle_s)
        with serving_attribution(asked, host, int(port)) as address:
            _wait(f"attribution at {address}")


@contextmanager
def _keep_signals() -> Iterator[None]:
    """Let the signals that end us wait until we ask for them; threads of servers started meanwhile never see them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True, slots=True)
class Question:
    """A cycle that has ended, as the launcher posted it."""

    job: str
    asked_ns: int


class Attribution:
    """Answers one launcher, or several, from the newest decision of each job."""

    def __init__(
        self, find: Callable[[str], Decision | None], clock: Clock, job: str | None = None, settle_s: float = 60.0
    ) -> None:
        """`job` is what Lockstep calls the job; None: as the launcher does. Nobody waits longer than `settle_s`."""
        self._find, self._clock, self._job, self._settle_s = find, clock, job, settle_s
        self._questions: dict[str, Question] = {}

    def submit(self, reported: Mapping[str, Any]) -> Json:
        """Return the answer to POST /logs: taken. The log itself is not read; verdicts rest on telemetry."""
        log_path, job = reported.get("log_path"), self._job or reported.get("job_id")
        if not isinstance(log_path, str) or not log_path:
            raise BadInput("a submission needs log_path")
        if not isinstance(job, str) or not job:
            raise BadInput("the launcher does not say its job_id: name the job with --job")
        if len(self._questions) >= _MOST_LOGS:
            del self._questions[next(iter(self._questions))]
        self._questions[log_path] = Question(job, self._clock.now_ns())
        return {"submitted": True, "normalized_path": log_path, "mode": "single"}

    def result(self, log_path: str) -> Json:
        """Return the answer to GET /logs, for a log that was posted before."""
        question = self._questions.get(log_path)
        if question is None:  # we were started anew meanwhile: the launcher must not wait for ever
            return answer_logs(None, is_settled=True)
        is_settled = self._clock.now_ns() - question.asked_ns >= self._settle_s * NS_PER_S
        return answer_logs(self._find_decision(question), is_settled)

    def _find_decision(self, question: Question) -> Decision | None:
        """Return the newest decision, if it still held when the cycle ended or was made since."""
        try:
            newest = self._find(question.job)
        except ServerRefused:
            return None  # the server is away, or says no: the launcher goes on as without us
        return newest if newest is not None and newest.expires_ns > question.asked_ns else None


def answer_logs(decision: Decision | None, is_settled: bool) -> Json:
    """Return the answer to GET /logs; `is_settled`: without a decision by now, none will come.

    The launcher keeps a single question open at a time, so one that is never settled would silence it for good.
    """
    action, reason = recommend(decision)
    return {
        "status": "completed" if decision is not None or is_settled else "pending",
        "result": {"module": _SOURCE, "result_id": decision.id if decision else "", "result": reason},
        "recommendation": {"action": action, "reason": reason, "source": _SOURCE},
        "wl_restart": decision.attempt if decision else 0,
    }


def recommend(decision: Decision | None) -> tuple[Recommendation, str]:
    """Return the launcher's word for a decision, and the reason."""
    if decision is None:
        return "UNKNOWN", "no incident of this job is known"
    if decision.action in _NEEDS_NOTHING and not decision.answered_by:
        return "CONTINUE", decision.reason
    is_executing = decision.mode == "execute" and decision.held_because is None
    if decision.action in _NEEDS_NEW_LAYOUT and is_executing:
        return "STOP", f"the job is started again with another layout: {decision.reason}"
    return "RESTART", decision.reason


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
        reported = json.loads(self.rfile.read(size))
        if not isinstance(reported, dict):
            raise BadInput("a submission is a JSON object")
        return reported

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


def _wait(what: str) -> None:
    """Say that it is up, and return when the process is told to stop."""
    err.print(f"lockstep: {what}", highlight=False)
    signal.sigwait(_ENDING)


def _own_names() -> list[str]:
    """Return how controllers may call this host: its name, whole and without the domain."""
    whole = network.gethostname()
    return list(dict.fromkeys([whole, whole.partition(".")[0]]))
