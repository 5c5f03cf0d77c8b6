"""Client: jobs, incidents, decisions and captures of a running Lockstep, with types.

with Client("http://127.0.0.1:8642", token) as lockstep:
    for incident in lockstep.incidents(state="open"):
        print(incident.verdict.reason)

Of what a server answers, the fields are those that a program needs; a server may tell more, and what is not named
here is left out.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Self, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, Field

from lockstep.client.server import Event, Json, Query, Server, parse_events
from lockstep.clock import Clock, SystemClock
from lockstep.decision import Decision
from lockstep.errors import ServerRefused
from lockstep.execution import Execution, ExecutionState, Isolated, Order, OrderKind, Outcome
from lockstep.verdict import Frozen, Grade, Incident, Severity

_API = "/api/v1"
_PAGE = 500  # items of a page where all are wanted anyway: the most that a server gives
_SILENCE_S = 60.0  # four times the server's sign of life: a connection that says nothing for longer is dead
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # after each failure in a row; the last one stays

Watch = Callable[[int], None]  # is told how many bytes there are so far
M = TypeVar("M", bound=BaseModel)
Condition = Literal["running", "slow", "hung", "crashed", "unseen", "ended"]

_THINGS: dict[str, type[Incident] | type[Decision] | type[Execution]] = {
    "incident": Incident,
    "decision": Decision,
    "execution": Execution,
}


class Job(Frozen):
    """One attempt of a job, and how it is."""

    job: str
    attempt: int = 0
    condition: Condition
    because: str = Field("", description="the sentence of the verdict behind the condition; empty: there is none")
    ranks: int
    hosts: int
    first_ns: int
    last_ns: int = Field(description="last sign of life")
    step: int | None = Field(None, description="newest known training step")
    step_s: float | None = Field(None, description="median of its newest steps in seconds")
    incidents: tuple[str, ...] = Field((), description="ids of its open incidents")


class TrainingStep(Frozen):
    """One training step of a job over all ranks that tell of it."""

    attempt: int = 0
    step: int
    start_ns: int
    end_ns: int
    step_s: float = Field(description="of the slowest rank, in seconds")
    slowest_rank: int


class AgentView(Frozen):
    """The collector of a host, as of its last heartbeat."""

    host: str
    version: str
    is_silent: bool
    missing: tuple[str, ...] = Field((), description="sources without readings and since when, a sentence each")
    last_seen_ns: int
    lag_s: float = Field(description="how far what it has sent is behind its last heartbeat")
    dropped: int = Field(description="rows lost since its start")
    dropped_lately: int = Field(0, description="of these, in the last five minutes")
    spool_bytes: int


class Seat(Frozen):
    """A rank and where it runs."""

    rank: int
    host: str
    gpu: int | None = None


class Cells(Frozen):
    """The cells of a matrix that are known, as parallel columns."""

    src: tuple[int, ...] = Field(description="places of the senders in `ranks`")
    dst: tuple[int, ...] = Field(description="places of the receivers in `ranks`")
    ms: tuple[float, ...] = Field(description="delays in the unit of the matrix")


class Matrix(Frozen):
    """The delay matrix of a job, or of one of its communicators."""

    job: str
    attempt: int = 0
    comm: str | None = Field(None, description="id in decimal; None: all communicators together")
    from_ns: int
    to_ns: int
    ranks: tuple[Seat, ...]
    cells: Cells
    usual_ms: float | None = None
    unit: str


class IncidentFile(Incident):
    """An incident with what it turned out to be and the decisions on it."""

    outcome: Outcome | None = Field(None, description="as somebody confirmed it; None: nobody has so far")
    decisions: tuple[Decision, ...] = ()


class ListedDecision(Decision):
    """A decision, and how far it was carried out."""

    execution: ExecutionState | None = Field(None, description="None: nothing was done")


class DecisionFile(Decision):
    """A decision with what persons said to it and every step that was done."""

    orders: tuple[Order, ...] = ()
    execution: Execution | None = None


class Notification(Frozen):
    """Something that changed."""

    id: str = Field(description="where to go on after it")
    kind: str = Field(description="such as incident.opened, incident.closed, decision.made, execution.changed")
    thing: Incident | Decision | Execution = Field(description="as it is now")


class Client:
    """One Lockstep server, for programs and for our own commands.

    Every refusal is a ServerRefused with the status, kind and sentence of the server's problem document; ServerAway
    says that nobody answers. Lists are read page by page while you iterate. Safe to share between threads.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout_s: float = 120.0,
        ca_file: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`ca_file` has authorities beside the system's; without it LOCKSTEP_CA_FILE names them."""
        self.server = Server(url, token, timeout_s=timeout_s, ca_file=ca_file)
        self._clock = clock or SystemClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.server.close()

    def version(self) -> str:
        """Return the release of the server."""
        return str(self.server.get("/version").get("version", ""))

    def analysis(self) -> str:
        """Return how far behind the server's analysis is, as a sentence; empty where it keeps up."""
        return str(self.server.get("/readyz").get("analysis", ""))

    def items(self, path: str, query: Query | None = None) -> Iterator[Json]:
        """Yield every item of a list of the API, over all its pages: `client.items("/api/v1/parts")`."""
        cursor: str | None = None
        while True:
            page = self.server.get(path, {**(query or {}), "cursor": cursor})
            yield from self.server.listed(page)
            cursor = page.get("next")
            if not cursor:
                return

    def jobs(self, conditions: tuple[Condition, ...] = (), page: int = _PAGE) -> Iterator[Job]:
        """Yield attempts of jobs by name, only those that are so where conditions are given, so many at a time."""
        return self._models(Job, f"{_API}/jobs", {"condition": conditions or None, "limit": page})

    def steps(self, job: str) -> Iterator[TrainingStep]:
        """Yield the training steps of a job, the newest first."""
        return self._models(TrainingStep, f"{_API}/jobs/{_part(job)}/steps")

    def matrix(self, job: str, comm: int | None = None) -> Matrix:
        """Return the delay matrix of the last closed window, of the whole job or of one communicator."""
        return self._model(Matrix, f"{_API}/jobs/{_part(job)}/matrix", {"comm": comm})

    def agents(self) -> Iterator[AgentView]:
        return self._models(AgentView, f"{_API}/agents", {"limit": _PAGE})

    def incidents(
        self,
        *,
        job: str | None = None,
        state: Literal["open", "closed"] | None = None,
        host: str | None = None,
        grade: Grade | None = None,
        severity: Severity | None = None,
        from_ns: int | None = None,
        to_ns: int | None = None,
    ) -> Iterator[Incident]:
        """Yield incidents, the newest first; from and to are of when they were opened, the end excluded."""
        wanted = {"job": job, "state": state, "host": host, "grade": grade, "severity": severity}
        return self._models(Incident, f"{_API}/incidents", wanted | {"from_ns": from_ns, "to_ns": to_ns})

    def incident(self, incident_id: str) -> IncidentFile:
        return self._model(IncidentFile, f"{_API}/incidents/{_part(incident_id)}")

    def follow(
        self, last_event_id: str | None = None, *, job: str | None = None, stop: threading.Event | None = None
    ) -> Iterator[Notification]:
        """Yield incidents, decisions and executions as they change, from now or from after an event on.

        A connection that breaks is made again and goes on after the last event that came, until `stop` is set. A
        server that is away is waited for, one that says no is not.
        """
        stop, failures = stop or threading.Event(), 0
        while not stop.is_set():
            try:
                for event in self._listen(last_event_id, job):
                    failures, last_event_id = 0, event.id or last_event_id
                    model = _THINGS.get(event.kind.partition(".")[0])
                    if model is not None:  # else it is of a kind that only newer clients know
                        thing = self.server.understood(model, event.data)
                        yield Notification.model_construct(id=event.id, kind=event.kind, thing=thing)
                    if stop.is_set():
                        return
            except ServerRefused as refusal:
                if not refusal.is_passing:
                    raise
            self._clock.wait(stop, _PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
            failures += 1

    def _listen(self, last_event_id: str | None, job: str | None) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_event_id} if last_event_id else {})
        path = f"{_API}/incidents/stream"
        with self.server.answered("GET", path, {"job": job}, headers=headers, read_timeout_s=_SILENCE_S) as answer:
            yield from parse_events(answer.iter_lines())

    def decisions(self, *, incident: str | None = None, job: str | None = None) -> Iterator[ListedDecision]:
        """Yield the newest decisions first."""
        return self._models(ListedDecision, f"{_API}/decisions", {"incident": incident, "job": job})

    def decision(self, decision_id: str) -> DecisionFile:
        return self._model(DecisionFile, f"{_API}/decisions/{_part(decision_id)}")

    def approve(self, decision_id: str, why: str = "", *, idempotency_key: str | None = None) -> Order:
        """Let a decision be carried out; needs a token of scope act."""
        return self.order(decision_id, "approve", why, idempotency_key=idempotency_key)

    def reject(self, decision_id: str, why: str = "", *, idempotency_key: str | None = None) -> Order:
        """Keep a decision from being carried out; needs a token of scope act."""
        return self.order(decision_id, "reject", why, idempotency_key=idempotency_key)

    def undo(self, decision_id: str, why: str = "", *, idempotency_key: str | None = None) -> Order:
        """Give back what a decision took out of service, for good; needs a token of scope act."""
        return self.order(decision_id, "undo", why, idempotency_key=idempotency_key)

    def order(self, decision_id: str, kind: OrderKind, why: str = "", *, idempotency_key: str | None = None) -> Order:
        """Say what is to become of a decision. With the same key again, nothing is ordered twice."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        path = f"{_API}/decisions/{_part(decision_id)}/{kind}"
        return self.server.understood(Order, self.server.send("POST", path, {"why": why}, headers))

    def confirm(self, incident_id: str, was_right: bool, *, part: str | None = None, why: str = "") -> Outcome:
        """Say what an incident turned out to be, for the scorecard; needs a token of scope act."""
        body = {"was_right": was_right, "part": part, "why": why}
        path = f"{_API}/incidents/{_part(incident_id)}/outcome"
        return self.server.understood(Outcome, self.server.send("PUT", path, body))

    def isolated(self) -> Iterator[Isolated]:
        """Yield the nodes that were taken out of service, and how far each is on its way back."""
        return self._models(Isolated, f"{_API}/isolated")

    def scorecard(self) -> Json:
        """Return what the advice would have been worth, against confirmed outcomes."""
        return self.server.get(f"{_API}/scorecard")

    def save_capture(self, job: str, file: Path, *, since_s: int = 600, watch: Watch = lambda _: None) -> None:
        """Save a job's last seconds as a .tar.zst; the file is there once all of it has come, or not at all."""
        self._save(f"{_API}/jobs/{_part(job)}/capture", {"since_s": since_s}, file, watch)

    def save_incident(self, incident_id: str, file: Path, *, watch: Watch = lambda _: None) -> None:
        """Save the telemetry around an incident with its verdict, in the same way: what a ticket needs."""
        self._save(f"{_API}/incidents/{_part(incident_id)}/capture", {}, file, watch)

    def _save(self, path: str, query: Query, file: Path, watch: Watch) -> None:
        part, size = file.with_name(f".{file.name}.part"), 0
        try:
            with self.server.answered("GET", path, query) as answer, open(part, "wb") as sink:
                for piece in answer.iter_bytes():
                    sink.write(piece)
                    size += len(piece)
                    watch(size)
            part.rename(file)
        finally:
            part.unlink(missing_ok=True)

    def _model(self, model: type[M], path: str, query: Query | None = None) -> M:
        return self.server.understood(model, self.server.get(path, query))

    def _models(self, model: type[M], path: str, query: Query | None = None) -> Iterator[M]:
        return (self.server.understood(model, item) for item in self.items(path, query))


def _part(name: str) -> str:
    """Return a name as one part of a path: schedulers let people name jobs as they like."""
    return quote(name, safe="")
