"""A duty that a process of its own does: started again when it ends, told to leave when we do, gone when we are."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess

import structlog

from lockstep.clock import NS_PER_S, Clock
from lockstep.state.database import ControlDatabase
from lockstep.state.leases import DutyOptions, check_held

_log = structlog.get_logger("duty")

_AGAIN_S = 2.0  # from the end of a process to the next: a store that is away is not asked all the time
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

Leave = threading.Event
Serve = Callable[[Leave], None]  # returns some time after it is set; is pickled


class DutyProcess:
    """Looks like a duty to whoever starts and stops it."""

    def __init__(self, name: str, control: ControlDatabase, clock: Clock, options: DutyOptions, serve: Serve) -> None:
        self.name = name
        self._control, self._clock, self._options, self._serve = control, clock, options, serve
        self._stop = threading.Event()
        self._spawning = threading.Lock()  # held from the decision to start a process until it can be stopped
        self._process = self._make()
        self._thread = threading.Thread(target=self._keep_running, name=f"duty-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        """Return how the process ended, until there is another."""
        code = self._process.exitcode
        return None if code is None else f"the process of {self.name} ended with {code}"

    def check_held(self) -> None:
        """Raise LockstepError where neither that process nor another holds the lease."""
        ttl_ns = int(self._options.lease_s * NS_PER_S)
        check_held(self._control, [self.name], ttl_ns, self._clock.now_ns())

    def wake(self) -> None:
        """Nothing: it looks once a second by itself."""

    def stop(self) -> None:
        """Tell the process to leave; `close` waits for it."""
        with self._spawning:
            self._stop.set()
            if self._process.pid and self._process.is_alive():
                self._process.terminate()

    def close(self, patience_s: float | None = None) -> None:
        """Wait for the process; one that stays beyond our patience is killed, and its lease expires by itself."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(patience_s)
        if self._process.pid and self._process.is_alive():
            _log.warning("duty is left in the midst of its work, its lease expires by itself", duty=self.name)
            self._process.kill()

    def _make(self) -> SpawnProcess:
        return get_context("spawn").Process(target=_run, args=(self._serve, os.getpid()), daemon=True)

    def _keep_running(self) -> None:
        while not self._stop.is_set():
            with self._spawning:
                if self._stop.is_set():
                    return
                self._process = self._make()
                self._process.start()
            self._process.join()
            if not self._stop.is_set():
                _log.error("duty is started again, its process ended", duty=self.name, code=self._process.exitcode)
                self._clock.wait(self._stop, _AGAIN_S)


def _run(serve: Serve, parent: int) -> None:
    """Serve until we are told to leave, or our parent is no more."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew that it should tell
        return
    leave = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches our parent, which tells us
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    serve(leave)
