"""Who may act: one holder at a time, and a number by which a late one is told apart.

Several analyzers share out jobs by their names, a lease for each share.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import structlog
from sqlalchemy import Connection, Row, Select, case, or_, select, update

from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import LeaseLost, LockstepError
from lockstep.state.database import ControlDatabase, lease_ends
from lockstep.state.documents import insert_into
from lockstep.state.tables import LEASES

_MOST_AHEAD = 2  # lease times; clocks of two head nodes differ by far less


@dataclass(frozen=True, slots=True)
class Shard:
    """The jobs that one process follows, of so many processes.

    >>> [shard.name for shard in Shard.all_of(3)]
    ['analyzer', 'analyzer-1', 'analyzer-2']
    >>> [shard.index for shard in Shard.all_of(3) if shard.has("llama-70b")]
    [1]
    """

    index: int = 0
    of: int = 1

    @classmethod
    def all_of(cls, count: int) -> "tuple[Shard, ...]":
        return tuple(cls(index, count) for index in range(count))

    @property
    def name(self) -> str:
        """Return the name of its lease; the first one's is that of an analyzer that follows all jobs."""
        return f"analyzer-{self.index}" if self.index else "analyzer"

    def has(self, job: str) -> bool:
        return crc32(job.encode()) % self.of == self.index


ALL_JOBS = Shard()


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act under a name until a time."""

    name: str
    holder: str  # unique to a process: two that share it would share the lease
    generation: int  # fencing: goes up with each change of holder, never repeats
    expires_ns: int  # UNIX time, ns; at this moment it is over


def take_lease(db: ControlDatabase, name: str, holder: str, ttl_ns: int, now_ns: int) -> Lease | None:
    """Return the lease if it was free, expired or already ours; None while somebody else holds it.

    Taking what is already ours renews it under the same generation. An end beyond two lease times was written by a
    clock that ran ahead: whoever waited for it would do so for hours.
    """
    expires_ns = now_ns + ttl_ns
    is_over = or_(LEASES.c.expires_ns <= now_ns, LEASES.c.expires_ns > now_ns + _MOST_AHEAD * ttl_ns)
    free = or_(LEASES.c.holder.is_(None), LEASES.c.holder == holder, is_over)
    risen = LEASES.c.generation + case((LEASES.c.holder == holder, 0), else_=1)
    with db.begin() as connection:
        # One statement reads, decides and writes, so that of many takers the database picks exactly one.
        take = insert_into(connection, LEASES).values(name=name, holder=holder, generation=1, expires_ns=expires_ns)
        change = {"holder": holder, "generation": risen, "expires_ns": expires_ns}
        take = take.on_conflict_do_update(index_elements=["name"], set_=change, where=free)
        generation = connection.execute(take.returning(LEASES.c.generation)).scalar_one_or_none()
    return None if generation is None else Lease(name, holder, generation, expires_ns)


def check_held(db: ControlDatabase, names: Iterable[str], ttl_ns: int, now_ns: int) -> None:
    """Raise LockstepError where one of these leases has no live holder, whoever it may be."""
    ends = lease_ends(db)
    idle = [name for name in names if not 0 < ends.get(name, 0) - now_ns <= _MOST_AHEAD * ttl_ns]
    if idle:
        raise LockstepError(f"nobody holds the lease of: {', '.join(idle)}")


def release_lease(db: ControlDatabase, lease: Lease) -> None:
    """Set the lease free for the next taker; nothing happens when it has passed on already."""
    ours = (LEASES.c.name == lease.name, LEASES.c.generation == lease.generation)
    with db.begin() as connection:
        # The row and its generation stay: the next holder must get a higher one.
        connection.execute(update(LEASES).where(*ours).values(holder=None, expires_ns=0))


def check_lease(db: ControlDatabase, lease: Lease, now_ns: int) -> None:
    """Raise LeaseLost unless the lease, renewals included, is still ours at this time."""
    with db.read() as connection:
        expires_ns = _find_expiry(lease, connection.execute(_stored(lease)).one_or_none())
    if expires_ns <= now_ns:
        raise LeaseLost(
            f"lease {lease.name} of {lease.holder}, generation {lease.generation}, "
            f"expired at {expires_ns} and it is {now_ns} now"
        )


def refuse_stale(connection: Connection, lease: Lease) -> None:
    """Raise LeaseLost when the lease has passed on; otherwise it cannot, until this transaction ends."""
    # Expired but taken by nobody is good enough here: the generation alone keeps two holders apart.
    _find_expiry(lease, connection.execute(_stored(lease).with_for_update(read=True)).one_or_none())


def _stored(lease: Lease) -> Select[Any]:
    return select(LEASES).where(LEASES.c.name == lease.name)


def _find_expiry(lease: Lease, stored: Row[Any] | None) -> int:
    """Return when the stored lease ends, or raise LeaseLost when it is no longer this one."""
    if stored is None:
        raise LeaseLost(f"lease {lease.name} of {lease.holder} is over: the database does not know it")
    if (stored.holder, stored.generation) != (lease.holder, lease.generation):
        raise LeaseLost(
            f"lease {lease.name} of {lease.holder}, generation {lease.generation}, is over: "
            f"{stored.holder or 'nobody'} has it now, generation {stored.generation}"
        )
    return int(stored.expires_ns)


_log = structlog.get_logger("duty")

_MOST_RENEWALS = 20  # within one round; after them a round that hangs loses its role

Work = Callable[[Lease, int], object]  # gets the lease and the time; saves under the lease's generation


@dataclass(frozen=True)
class DutyOptions:
    """How often the work is done, and how long others wait for a holder that fell silent."""

    period_s: float = 1.0
    lease_s: float = 15.0


def _is_fresh(lease: Lease, ttl_ns: int, now_ns: int) -> bool:
    """Return whether two thirds of a lease are left, as while `_keep` renews it; every renewal is a write to a disk.

    Who has lost it meanwhile is told when saving: that asks for the generation. More than all of it is left after a
    clock was set back.
    """
    return 2 * ttl_ns <= 3 * (lease.expires_ns - now_ns) <= 3 * ttl_ns


def unique_holder() -> str:
    """Return a name for this process in leases."""
    return f"{socket.gethostname()}/{os.getpid()}/{os.urandom(4).hex()}"


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
        self._noted = ""  # who holds the lease, as it was logged last
        self._stop, self._woken = threading.Event(), threading.Event()
        # A daemon: who is asked to leave in the midst of its work is not waited for.
        self._thread = threading.Thread(target=self._run, name=f"duty-{name}", daemon=True)

    @property
    def is_held(self) -> bool:
        return self._lease is not None

    def check_held(self) -> None:
        """Raise LockstepError where neither this process nor another holds the lease."""
        ttl_ns = int(self._options.lease_s * NS_PER_S)
        check_held(self._control, [self.name], ttl_ns, self._clock.now_ns())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin no more work; `close` waits for what is under way."""
        self._stop.set()

    def close(self, patience_s: float | None = None) -> None:
        """End the thread and let go of the lease, so that another process need not wait for it to expire.

        Work that goes on beyond our patience keeps its lease, and saves nothing once that has passed on.
        """
        self._stop.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join(patience_s)
        if self._thread.is_alive():
            _log.warning("duty is left in the midst of its work, its lease expires by itself", duty=self.name)
        elif self._lease:
            try:
                release_lease(self._control, self._lease)
            except LockstepError as error:
                _log.warning("lease not released, it expires by itself", duty=self.name, error=str(error))

    def wake(self) -> None:
        """Have the next round begin now: there is something to do."""
        self._woken.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._woken.clear()  # before the work: what comes from now on may not be seen by it
            self.run_once()
            self._clock.wait(self._woken, self._options.period_s)

    def run_once(self) -> None:
        """Hold the lease and do the work once; faults are kept in `trouble` and do not end the duty."""
        try:
            now_ns = self._clock.now_ns()
            ttl_ns = int(self._options.lease_s * NS_PER_S)
            if self._lease is None or not _is_fresh(self._lease, ttl_ns, now_ns):
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
        holder = self._holder
        if lease is None:
            with self._control.read() as connection:
                held_by = select(LEASES.c.holder).where(LEASES.c.name == self.name)
                holder = connection.execute(held_by).scalar() or "nobody"
        if holder != self._noted:
            _log.info("duty taken" if lease else "duty is another's", duty=self.name, holder=holder)
        self._lease, self._noted = lease, holder

    def _note_trouble(self, trouble: str | None) -> None:
        """Say it when it changes, not each time round."""
        if trouble != self.trouble:
            if trouble:
                _log.warning("duty fails", duty=self.name, reason=trouble)
            else:
                _log.info("duty works again", duty=self.name)
        self.trouble = trouble
