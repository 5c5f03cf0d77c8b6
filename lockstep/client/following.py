"""What happens on a server, as it happens: one long answer, made again where it breaks, without a gap."""

import threading
from collections.abc import Iterator

from pydantic import Field

from lockstep.client.events import Event, parse_events
from lockstep.client.server import Server
from lockstep.clock import Clock
from lockstep.decision import Decision
from lockstep.errors import ServerRefused
from lockstep.execution import Execution
from lockstep.incident import Incident
from lockstep.verdict import Frozen

_PATH = "/api/v1/incidents/stream"
_SILENCE_S = 60.0  # four times the server's sign of life: a connection that says nothing for longer is dead
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # after each failure in a row; the last one stays

_THINGS: dict[str, type[Incident] | type[Decision] | type[Execution]] = {
    "incident": Incident,
    "decision": Decision,
    "execution": Execution,
}


class News(Frozen):
    """Something that changed."""

    id: str = Field(description="where to go on after it")
    kind: str = Field(description="such as incident.opened, incident.closed, decision.made, execution.changed")
    thing: Incident | Decision | Execution = Field(description="as it is now")


class Follower:
    """One stream of one server."""

    def __init__(self, server: Server, clock: Clock, stop: threading.Event) -> None:
        self._server, self._clock, self._stop = server, clock, stop

    def follow(self, last_event_id: str | None, job: str | None) -> Iterator[News]:
        """Yield news until told to stop; a server that is away is waited for, one that says no is not."""
        failures = 0
        while not self._stop.is_set():
            try:
                for event in self._listen(last_event_id, job):
                    failures, last_event_id = 0, event.id or last_event_id
                    yield from self._understand(event)
                    if self._stop.is_set():
                        return
            except ServerRefused as refusal:
                if not refusal.is_passing:
                    raise
            self._clock.wait(self._stop, _PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
            failures += 1

    def _listen(self, last_event_id: str | None, job: str | None) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_event_id} if last_event_id else {})
        with self._server.answered("GET", _PATH, {"job": job}, headers=headers, read_timeout_s=_SILENCE_S) as answer:
            yield from parse_events(answer.iter_lines())

    def _understand(self, event: Event) -> Iterator[News]:
        model = _THINGS.get(event.kind.partition(".")[0])
        if model is not None:  # else it is of a kind that only newer clients know
            thing = self._server.understood_text(model, event.data)
            yield News.model_construct(id=event.id, kind=event.kind, thing=thing)
