"""Stores, sockets and names that services open before they start."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from lockstep.clock import Clock
from lockstep.config import Settings, read_secret
from lockstep.errors import LockstepError
from lockstep.memory import memory_given_back
from lockstep.store.address import Embedded, parse_address
from lockstep.store.layout import Layout
from lockstep.store.migrations import check_migrated, migrate
from lockstep.store.retention import apply_retention
from lockstep.store.store import Store, open_store


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
    return settings.store.nodes or (settings.store_url,)


def prepare_embedded(store: Store, settings: Settings, now_ns: int) -> None:
    """Bring an embedded store up to date, which nobody else can do; a server must have been migrated before."""
    layout = layout_of(settings)
    if isinstance(store.address, Embedded):
        migrate(store, layout, now_ns)
        apply_retention(store, layout, settings.store.retention_days)
    else:
        check_migrated(store, layout)


def listen_on(host: str, port: int, setting: str) -> socket.socket:
    """Return a listening socket; taken before anything else is started, so that a clash costs nothing."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]  # Python adds the address once more
        raise LockstepError(f"cannot listen on {host}:{port}: {reason}; set {setting} to another") from error


def with_listen(settings: Settings, listener: socket.socket) -> Settings:
    """Return the settings with the address that is really listened on, where port 0 had asked for any."""
    host, port = listener.getsockname()[:2]
    listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return settings.model_copy(update={"api": settings.api.model_copy(update={"listen": listen})})


def unique_holder() -> str:
    """Return a name for this process in leases."""
    return f"{socket.gethostname()}/{os.getpid()}/{os.urandom(4).hex()}"
