"""Memory that was freed goes back to the system, so that what a process is seen to have is what it needs.

Allocators keep what they once handed out, a pile for each of many threads. A process that runs for months would grow
by the sum of all peaks, each of its threads having had its own.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import structlog

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
    """Return free memory of the embedded engine, of Arrow and of the C library to the system."""
    store.give_memory_back()
    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc has it
        trim(0)


def _give_back_always(store: Store, clock: Clock, stop: threading.Event) -> None:
    while not clock.wait(stop, _EVERY_S):
        try:
            give_memory_back(store)
        except LockstepError as error:
            _log.warning("memory is not given back", reason=str(error))
