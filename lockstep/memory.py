"""Memory that was freed goes back to the system, so that what a process is seen to have is what it needs.

Allocators keep what they once handed out. A process that runs for months would grow by the sum of all peaks.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from lockstep.allocation import call_libc
from lockstep.clock import Clock
from lockstep.errors import LockstepError
from lockstep.store.store import Store

_EVERY_S = 60.0
_log = structlog.get_logger()


@contextmanager
def memory_given_back(store: Store, clock: Clock) -> Iterator[None]:
    """Give back once a minute for the length of a block."""
    stop = threading.Event()
    thread = threading.Thread(target=_give_back_always, args=(store, clock, stop), name="memory")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def give_memory_back(store: Store) -> None:
    """Return free memory of the embedded engine and of the C library, which Arrow uses, to the system."""
    store.give_memory_back()
    call_libc("malloc_trim", 0)


def _give_back_always(store: Store, clock: Clock, stop: threading.Event) -> None:
    while not clock.wait(stop, _EVERY_S):
        try:
            give_memory_back(store)
        except LockstepError as error:
            _log.warning("memory is not given back", reason=str(error))
