"""How a store is opened, as the settings name it, and kept: memory, retention by table, backups, and what it holds.

Allocators keep what they once handed out: a service that runs for months would grow by the sum of all peaks, so freed
memory goes back to the system once a minute.
"""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from lockstep.allocation import call_libc
from lockstep.clock import Clock
from lockstep.config import Settings, read_secret
from lockstep.errors import BadInput, LockstepError, StoreRefused
from lockstep.sections import StoreSettings
from lockstep.store.engine import Embedded, each_node, parse_address
from lockstep.store.migrations import (
    Applied,
    Layout,
    applied_migrations,
    check_migrated,
    known_migrations,
    migrate,
    pending_migrations,
)
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME, columns_of

_GIVE_BACK_S = 60.0
_log = structlog.get_logger()

# Days. Raw rows explain an incident of this week, statistics and counters one of this quarter; roll-ups, events
# and inventories are small and answer "has this part done it before". 0 keeps rows for good.
DEFAULT_RETENTION_DAYS: dict[str, int] = {
    "collectives": 3,
    "transfers": 3,
    "step_samples": 3,
    "progress": 3,
    "op_stats": 30,
    "transfer_stats": 30,
    "agents": 30,
    "plugins": 30,
    "clocks": 30,
    "nic_counters": 90,
    "fabric_counters": 90,
    "gpu_health": 90,
    "probes": 30,
    "steps": 180,
    "events": 365,
    "comms": 365,
    "connections": 365,
    "paths": 365,
    "transits": 0,
    "operations": 30,
    "rank_minutes": 180,
    "wire_minutes": 180,
    "attempts": 365,
    "sightings": 365,
}
_NS_PER_S = 1_000_000_000
_NS_PER_DAY = 86_400 * _NS_PER_S
_ROLLUP_SECONDS = dict.fromkeys(("operations", "rank_minutes", "wire_minutes"), "minute * 60")
_ROLLUP_SECONDS |= dict.fromkeys(("attempts", "sightings"), f"intDiv(last_ns, {_NS_PER_S})")
_FAR_FUTURE_S = 4_000_000_000  # year 2096, below the end of ClickHouse's DateTime
_TTL_DAYS = re.compile(r"\bTTL\b.*toIntervalDay\((\d+)\)")


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
        prepare_embedded(store, settings.store, clock.now_ns())
        with memory_given_back(store, clock):
            yield store


def node_urls(settings: Settings) -> tuple[str, ...]:
    return settings.store.nodes or each_node(settings.store_url)


def prepare_embedded(store: Store, settings: StoreSettings, now_ns: int) -> None:
    """Bring an embedded store up to date, which nobody else can do; a server must have been migrated before."""
    layout = Layout(store.database, settings.cluster, settings.replicated)
    if isinstance(store.address, Embedded):
        migrate(store, layout, now_ns)
        apply_retention(store, layout, settings.retention_days)
    else:
        check_migrated(store, layout)


@contextmanager
def memory_given_back(store: Store, clock: Clock) -> Iterator[None]:
    """Give back once a minute for the length of a block."""
    stop = threading.Event()

    def give_back() -> None:
        while not clock.wait(stop, _GIVE_BACK_S):
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


def apply_retention(store: Store, layout: Layout, days: Mapping[str, int]) -> list[str]:
    """Make every table keep its rows for the given days and return the tables that were changed."""
    unknown = sorted(set(days) - set(DEFAULT_RETENTION_DAYS))
    if unknown:
        raise BadInput(f"retention names tables that do not exist: {', '.join(unknown)}")
    wanted = DEFAULT_RETENTION_DAYS | dict(days)
    changed = [table for table, present in _present_days(store, layout).items() if present != wanted[table]]
    for table in changed:
        limit = wanted[table]
        kept = f"MODIFY TTL {_timestamp(table)} + INTERVAL {limit} DAY DELETE" if limit else "REMOVE TTL"
        store.command(f"ALTER TABLE {layout.local}.{table} {kept}")
    return changed


def past_retention(newest_ns: int, now_ns: int, days: Mapping[str, int]) -> set[str]:
    """Return the tables that would not keep rows as old as that."""
    kept = DEFAULT_RETENTION_DAYS | dict(days)
    age_days = (now_ns - newest_ns) / _NS_PER_DAY
    return {table for table, limit in kept.items() if limit and age_days > limit}


def _present_days(store: Store, layout: Layout) -> dict[str, int]:
    rows = store.query_system(
        "SELECT name, engine_full FROM system.tables "
        "WHERE database = {local:String} AND name IN {names:Array(String)}",
        {"local": layout.local, "names": list(DEFAULT_RETENTION_DAYS)},
    )
    found = {row["name"]: _TTL_DAYS.search(row["engine_full"]) for row in rows.to_pylist()}
    return {table: int(ttl[1]) if ttl else 0 for table, ttl in found.items()}


def _timestamp(table: str) -> str:
    """Return when a row happened as a DateTime; rows that do not say so are kept."""
    if table in _ROLLUP_SECONDS:
        return f"toDateTime({_ROLLUP_SECONDS[table]}, 'UTC')"
    record = TABLE_BY_NAME[table]
    if record.time is None:
        raise BadInput(f"rows of {table} carry no time, so they cannot be kept for a number of days")
    seconds = f"intDiv({record.time}, {_NS_PER_S})"
    if columns_of(record)[record.time].nullable:
        seconds = f"ifNull({seconds}, {_FAR_FUTURE_S})"
    return f"toDateTime({seconds}, 'UTC')"


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# A server reads and writes backups only where its own configuration (backups.allowed_path) lets it.
_BACKUP_ALREADY_EXISTS = 598


def backup(store: Store, layout: Layout, name: str) -> None:
    """Write all tables of one node under the given name; the store stays open for reading and writing."""
    check_migrated(store, layout)
    try:
        store.command(f"BACKUP DATABASE {layout.local} TO File('{_checked(name)}')")
    except StoreRefused as error:
        if error.code == _BACKUP_ALREADY_EXISTS:
            raise BadInput(f"a backup named {name!r} exists already") from error
        raise


def restore(store: Store, layout: Layout, name: str) -> None:
    """Fill an empty store from a backup of that name; a store that holds anything is left as it is."""
    checked = _checked(name)
    if applied_migrations(store, layout):
        raise BadInput(
            f"the store at {store.address} is not empty: a backup is restored into a new directory or database"
        )
    store.command(f"RESTORE DATABASE {layout.local} FROM File('{checked}')")
    check_migrated(store, layout)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot name a backup: letters, digits, '.', '_' and '-', no path")
    return name


@dataclass(frozen=True, slots=True)
class TableSize:
    """How much of one table is on disk."""

    table: str
    rows: int
    bytes_on_disk: int
    parts: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """The state of one node of a store."""

    address: str
    engine_version: str
    applied: tuple[Applied, ...]
    pending: tuple[str, ...]
    tables: tuple[TableSize, ...]


def take_inventory(store: Store, layout: Layout) -> Inventory:
    """Return what the node holds; cheap, because it reads the engine's own books."""
    applied = applied_migrations(store, layout)
    version = store.query_system("SELECT version() AS version")["version"][0].as_py()
    return Inventory(
        address=str(store.address),
        engine_version=version,
        applied=applied,
        pending=tuple(f"{m.number:04}_{m.name}" for m in pending_migrations(known_migrations(), applied)),
        tables=_table_sizes(store, layout),
    )


def _table_sizes(store: Store, layout: Layout) -> tuple[TableSize, ...]:
    rows = store.query_system(
        "SELECT t.name AS table, sum(p.rows) AS rows, sum(p.bytes_on_disk) AS bytes_on_disk, "
        "countIf(p.active) AS parts FROM system.tables AS t "
        "LEFT JOIN (SELECT * FROM system.parts WHERE active) AS p ON p.database = t.database AND p.table = t.name "
        "WHERE t.database = {local:String} AND t.engine LIKE '%MergeTree' GROUP BY table ORDER BY table",
        {"local": layout.local},
    )
    return tuple(TableSize(**row) for row in rows.to_pylist())
