"""A lane per receiver: one that hangs holds up itself and nobody else."""

import threading
from collections.abc import Callable

import structlog

from lockstep.errors import LockstepError

_log = structlog.get_logger("alerts")

Job = Callable[[threading.Event], None]  # looks at the event between two messages, and ends when it is set

_LEAVING_S = 2.0  # what is under way at the end gets this long; what is cut off is sent again under the same id


class Lanes:
    """Runs at most one job per receiver at a time, each in a thread of its own; there are few receivers."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}
        self._stop = threading.Event()

    def offer(self, target: str, job: Job) -> bool:
        """Begin the job and return True, unless this receiver is still being talked to."""
        if self.is_busy(target) or self._stop.is_set():
            return False
        thread = threading.Thread(target=self._run, args=(target, job), name=f"alerts-{target}", daemon=True)
        self._threads[target] = thread
        thread.start()
        return True

    def is_busy(self, target: str) -> bool:
        thread = self._threads.get(target)
        return thread is not None and thread.is_alive()

    def busy(self) -> list[str]:
        """Return the receivers that are being talked to."""
        return [target for target in self._threads if self.is_busy(target)]

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all that was begun is done."""
        for thread in list(self._threads.values()):
            thread.join(timeout_s)

    def close(self) -> None:
        """Begin nothing more, and give what is under way a moment."""
        self._stop.set()
        self.wait(_LEAVING_S)

    def _run(self, target: str, job: Job) -> None:
        try:
            job(self._stop)
        except LockstepError as error:  # the lease or the database is gone: somebody sends it again
            _log.warning("delivery not finished", target=target, reason=str(error))
        except Exception as error:  # noqa: BLE001  # a bug with one receiver must not end the others
            _log.error("delivery broke", target=target, exc_info=error)
