"""Work that one process at a time may do: taken up under a lease, done again and again, handed on when it fails."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from lockstep.clock import NS_PER_S, Clock
from lockstep.control.database import ControlDatabase
from lockstep.control.leases import Lease, release_lease, take_lease
from lockstep.errors import LeaseLost, LockstepError

_log = structlog.get_logger("duty")

_MOST_RENEWALS = 20  # within one round; after them a round that hangs loses its role

Work = Callable[[Lease, int], object]  # gets the lease and the time; saves under the lease's generation


@dataclass(frozen=True)
class DutyOptions:
    """How often the work is done, and how long others wait for a holder that fell silent."""

    period_s: float = 1.0
    lease_s: float = 15.0


class Duty:
    """Does the work in a thread of its own whenever this process holds the lease of that name."""

    def __init__(
        self, name: str, holder: str, control: ControlDatabase, clock: Clock, work: Work, options: DutyOptions
    ) -> None:
        self.name = name
        self.trouble: str | None = None  # why the work fails at the moment
        self._holder = holder
        self._control = control
        self._clock = clock
        self._work = work
        self._options = options
        self._lease: Lease | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"duty-{name}")

    @property
    def is_held(self) -> bool:
        return self._lease is not None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread and let go of the lease, so that another process need not wait for it to expire."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._lease:
            try:
                release_lease(self._control, self._lease)
            except LockstepError as error:
                _log.warning("lease not released, it expires by itself", duty=self.name, error=str(error))

    def _run(self) -> None:
        while not self._stop.is_set():
            self.run_once()
            self._clock.wait(self._stop, self._options.period_s)

    def run_once(self) -> None:
        """Take or renew the lease and do the work once; faults are kept in `trouble` and do not end the duty."""
        try:
            now_ns = self._clock.now_ns()
            ttl_ns = int(self._options.lease_s * NS_PER_S)
            self._note_lease(take_lease(self._control, self.name, self._holder, ttl_ns, now_ns))
            if self._lease:
                self._work_on(self._lease, now_ns, ttl_ns)
            self._note_trouble(None)
        except LeaseLost as lost:
            self._note_lease(None)
            self._note_trouble(str(lost))
        except LockstepError as error:
            self._note_trouble(str(error))
        except Exception as error:  # noqa: BLE001  # a bug in the work must be seen; a dead thread looks healthy
            self._note_trouble(f"{type(error).__name__}: {error}")

    def _work_on(self, lease: Lease, now_ns: int, ttl_ns: int) -> None:
        """Do the work while the lease is renewed: a controller may take longer to answer than the lease lasts."""
        is_over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(is_over, ttl_ns), name=f"lease-{self.name}", daemon=True)
        keeper.start()
        try:
            self._work(lease, now_ns)
        finally:
            is_over.set()
            keeper.join()

    def _keep(self, is_over: threading.Event, ttl_ns: int) -> None:
        for _ in range(_MOST_RENEWALS):
            if is_over.wait(self._options.lease_s / 3):  # real time, in which controllers answer
                return
            with suppress(LockstepError):
                take_lease(self._control, self.name, self._holder, ttl_ns, self._clock.now_ns())

    def _note_lease(self, lease: Lease | None) -> None:
        if (lease is None) != (self._lease is None):
            _log.info("duty taken" if lease else "duty is another's", duty=self.name, holder=self._holder)
        self._lease = lease

    def _note_trouble(self, trouble: str | None) -> None:
        """Say it when it changes, not each time round."""
        if trouble != self.trouble:
            if trouble:
                _log.warning("duty fails", duty=self.name, reason=trouble)
            else:
                _log.info("duty works again", duty=self.name)
        self.trouble = trouble
