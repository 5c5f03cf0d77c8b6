"""The store as the settings name it, opened for a command or for a service that runs for months.

Allocators keep what they once handed out: such a process would grow by the sum of all peaks, so freed memory goes
back to the system once a minute.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from lockstep.allocation import call_libc
from lockstep.clock import Clock
from lockstep.config import Settings, read_secret
from lockstep.errors import LockstepError
from lockstep.store.engine import Embedded, each_node, parse_address
from lockstep.store.maintenance import apply_retention
from lockstep.store.migrations import Layout, check_migrated, migrate
from lockstep.store.store import Store, open_store

_EVERY_S = 60.0
_log = structlog.get_logger()


def layout_of(settings: Settings) -> Layout:
    database = parse_address(settings.store_url).database
    return Layout(database, settings.store.cluster, settings.store.replicated)


@contextmanager
def opened_store(settings: Settings, url: str | None = None) -> Iterator[Store]:
    """Open the store of the settings, or one of its nodes, and close it at the end."""
    password = read_secret(settings.store.password_file, "the store's password")
    with open_store(
        url or settings.store_url, password=password, memory_bytes=settings.store.memory_mb << 20
    ) as store:
        yield store


@contextmanager
def served_store(settings: Settings, clock: Clock) -> Iterator[Store]:
    """Open the store for a service: brought up to date where it is embedded, and never keeping freed memory."""
    with opened_store(settings) as store:
        prepare_embedded(store, settings, clock.now_ns())
        with memory_given_back(store, clock):
            yield store


def node_urls(settings: Settings) -> tuple[str, ...]:
    return settings.store.nodes or each_node(settings.store_url)


def prepare_embedded(store: Store, settings: Settings, now_ns: int) -> None:
    """Bring an embedded store up to date, which nobody else can do; a server must have been migrated before."""
    layout = layout_of(settings)
    if isinstance(store.address, Embedded):
        migrate(store, layout, now_ns)
        apply_retention(store, layout, settings.store.retention_days)
    else:
        check_migrated(store, layout)


@contextmanager
def memory_given_back(store: Store, clock: Clock) -> Iterator[None]:
    """Give back once a minute for the length of a block."""
    stop = threading.Event()

    def give_back() -> None:
        while not clock.wait(stop, _EVERY_S):
            try:
                give_memory_back(store)
            except LockstepError as error:
                _log.warning("memory is not given back", reason=str(error))

    thread = threading.Thread(target=give_back, name="memory")
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
