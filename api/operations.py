"""Work that outlasts its request: begun with 202, looked up by its id until it is done, one at a time."""

import subprocess
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import structlog
from pydantic import Field

from api.replaying import Replay
from lockstep.clock import Clock
from lockstep.errors import GatewayFull, LockstepError, NotPresent
from lockstep.verdict import Frozen

_log = structlog.get_logger("api")

_KEPT = 200  # operations that can be looked up after their end; a restart forgets them all
_MOST_WAITING = 8

Started = Callable[["subprocess.Popen[bytes]"], None]
Work = Callable[[Started], Replay]  # tells of the process that it starts, so that it can be ended with us


class Operation(Frozen):
    """One piece of work and how far it is."""

    id: str
    kind: Literal["replay"] = "replay"
    subject: str = Field(description="what it is done to")
    state: Literal["waiting", "running", "done", "failed"]
    began_ns: int
    ended_ns: int | None = None
    result: Replay | None = Field(None, description="once it is done")
    problem: str | None = Field(None, description="one sentence, where it failed")


class Operations:
    """What was begun of late; safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[str, Operation] = OrderedDict()
        self._guard = threading.Lock()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="operation")
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def begin(self, subject: str, work: Work) -> Operation:
        """Put work in the queue and return how it can be looked up; GatewayFull where too much waits already."""
        made = Operation(id=uuid.uuid4().hex, subject=subject, state="waiting", began_ns=self._clock.now_ns())
        with self._guard:
            if sum(each.state in ("waiting", "running") for each in self._known.values()) >= _MOST_WAITING:
                raise GatewayFull(f"{_MOST_WAITING} captures wait to be judged already: come again later")
            self._known[made.id] = made
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._worker.submit(self._run, made, work)
        return made

    def find(self, identity: str) -> Operation:
        """Return an operation as it stands, or raise NotPresent."""
        with self._guard:
            found = self._known.get(identity)
        if found is None:
            raise NotPresent(f"there is no operation {identity!r}; those before the last restart are forgotten")
        return found

    def close(self) -> None:
        """End what runs and forget what waits."""
        self._closed = True
        self._worker.shutdown(wait=False, cancel_futures=True)
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
        self._worker.shutdown(wait=True)

    def _run(self, operation: Operation, work: Work) -> None:
        self._note(operation, state="running")
        try:
            result = work(self._started)
            self._note(operation, state="done", ended_ns=self._clock.now_ns(), result=result)
        except LockstepError as error:
            self._note(operation, state="failed", ended_ns=self._clock.now_ns(), problem=str(error))
        except Exception as error:  # noqa: BLE001  # whoever waits for the operation must see its end
            _log.error("operation failed", id=operation.id, subject=operation.subject, exc_info=error)
            self._note(operation, state="failed", ended_ns=self._clock.now_ns(), problem="the server's log says more")

    def _started(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        if self._closed:
            child.kill()

    def _note(self, operation: Operation, **changes: object) -> None:
        with self._guard:
            if operation.id in self._known:
                self._known[operation.id] = self._known[operation.id].model_copy(update=changes)
