"""Numbered SQL files, forward only: what is known, what the store has, and how the gap is closed."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from lockstep import __version__
from lockstep.errors import StoreVersionMismatch
from lockstep.store.store import Store

# Blocks remembered per table: an hour of a writer that sends one a second; those that retry in order need the last
# few. A block takes 210 bytes of memory, which is 17 MB for twenty tables; with 10,000 a head node grew for three
# hours. Replicated tables also forget by age, which a retry must not depend on.
DEDUPLICATION_BLOCKS = 4_000
_TEN_YEARS_S = 315_360_000

_PLACEHOLDER = re.compile(r"\$\{(\w+)(?: ([^}]*))?\}")
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where tables go and which engines they get."""

    database: str
    cluster: str | None = None
    replicated: bool = False

    @property
    def local(self) -> str:
        """Name of the database that holds this node's own rows."""
        return f"{self.database}_local" if self.cluster else self.database


def render(sql: str, layout: Layout) -> list[str]:
    """Return the statements of a migration for this layout, placeholders filled in and comments taken out."""
    text = _PLACEHOLDER.sub(lambda match: _fill(match[1], match[2] or "", layout), _COMMENT.sub("", sql))
    return [statement.strip() for statement in text.split(";") if statement.strip()]


def distributed_table(table: str, sharding_column: str, layout: Layout) -> str:
    """Return the statement that lays a table over all shards; it holds no rows, so it is simply replaced."""
    return (
        f"CREATE OR REPLACE TABLE {layout.database}.{table} AS {layout.local}.{table} "
        f"ENGINE = Distributed('{layout.cluster}', '{layout.local}', '{table}', cityHash64({sharding_column}))"
    )


def _fill(name: str, argument: str, layout: Layout) -> str:
    if name == "local":
        return layout.local
    if name == "engine":
        return _engine(argument.split(), layout.replicated)
    if name != "settings":
        raise ValueError(f"a migration uses the unknown placeholder {name!r}")
    # What exactly-once needs: a window of tokens, and parts that survive a power cut once acknowledged.
    window = (
        f"replicated_deduplication_window = {DEDUPLICATION_BLOCKS}, "
        f"replicated_deduplication_window_seconds = {_TEN_YEARS_S}"
        if layout.replicated
        else f"non_replicated_deduplication_window = {DEDUPLICATION_BLOCKS}"
    )
    return f"SETTINGS {window}, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1"


def _engine(words: list[str], replicated: bool) -> str:
    family, *arguments = words
    if replicated:
        path = "/clickhouse/tables/{shard}/{database}/{table}"
        return f"Replicated{family}({', '.join([repr(path), repr('{replica}'), *arguments])})"
    return f"{family}({', '.join(arguments)})" if arguments else family


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file of the schema."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Applied:
    """A migration as the store remembers it."""

    number: int
    name: str
    checksum: str
    applied_ns: int
    release: str


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations this code brings, in order."""
    files = [f for f in resources.files("lockstep.store").joinpath("schema").iterdir() if f.name.endswith(".sql")]
    return tuple(
        Migration(int(file.name[:4]), file.name[5:-4], file.read_text(encoding="utf-8"))
        for file in sorted(files, key=lambda file: file.name)
    )


def applied_migrations(store: Store, layout: Layout) -> tuple[Applied, ...]:
    """Return what the store has, in order; nothing when it was never migrated."""
    exists = store.query_system(
        "SELECT name FROM system.tables WHERE database = {database:String} AND name = 'migrations'",
        {"database": layout.local},
    )
    if exists.num_rows == 0:
        return ()
    rows = store.query_system(
        "SELECT number, any(name) AS name, any(checksum) AS checksum, min(applied_ns) AS applied_ns, "
        f"any(release) AS release FROM {layout.local}.migrations GROUP BY number ORDER BY number"
    )
    return tuple(Applied(**row) for row in rows.to_pylist())


def pending_migrations(known: Iterable[Migration], applied: Iterable[Applied]) -> tuple[Migration, ...]:
    """Return what is still to be done, or raise StoreVersionMismatch when the store is not one of ours."""
    by_number = {migration.number: migration for migration in known}
    done = tuple(applied)
    for past in done:
        _check_past(past, by_number.get(past.number))
    finished = {past.number for past in done}
    return tuple(migration for number, migration in sorted(by_number.items()) if number not in finished)


def migrate(store: Store, layout: Layout, now_ns: int) -> tuple[Migration, ...]:
    """Bring one node to this code's schema and return what was done; a second call does nothing.

    On a cluster it is called for every node. A statement that was cut short is repeated.
    """
    pending = pending_migrations(known_migrations(), applied_migrations(store, layout))
    for database in {layout.database, layout.local}:
        store.command(f"CREATE DATABASE IF NOT EXISTS {database}")
    store.command(
        f"CREATE TABLE IF NOT EXISTS {layout.local}.migrations (number UInt32, name String, checksum String, "
        "applied_ns Int64, release String) ENGINE = MergeTree ORDER BY number"
    )
    for migration in pending:
        for statement in render(migration.sql, layout):
            store.command(statement)
        store.command(
            f"INSERT INTO {layout.local}.migrations VALUES "
            f"({migration.number}, '{migration.name}', '{migration.checksum}', {now_ns}, '{__version__}')"
        )
    if layout.cluster:
        _lay_over_shards(store, layout)
    return pending


def check_migrated(store: Store, layout: Layout) -> None:
    """Raise StoreVersionMismatch unless the store has exactly the schema this code knows."""
    pending = pending_migrations(known_migrations(), applied_migrations(store, layout))
    if pending:
        missing = ", ".join(f"{m.number:04}_{m.name}" for m in pending)
        raise StoreVersionMismatch(f"the store lacks {missing}: run `lockstep store migrate` first")


def _check_past(past: Applied, ours: Migration | None) -> None:
    label = f"{past.number:04}_{past.name}"
    if ours is None:
        raise StoreVersionMismatch(
            f"the store has migration {label}, applied by Lockstep {past.release}, which this Lockstep "
            f"{__version__} does not know: a store newer than the code is not touched; upgrade the code"
        )
    if past.checksum != ours.checksum:
        raise StoreVersionMismatch(
            f"migration {label} in the store was made from another text than this code's: migrations are never "
            "edited, only added; restore the file or start from a backup"
        )


def _lay_over_shards(store: Store, layout: Layout) -> None:
    tables = store.query_system(
        "SELECT table, has(groupArray(name), 'job') AS has_job FROM system.columns WHERE database = {local:String} "
        "AND table IN (SELECT name FROM system.tables WHERE database = {local:String} AND engine LIKE '%MergeTree') "
        "AND table != 'migrations' GROUP BY table ORDER BY table",
        {"local": layout.local},
    )
    for row in tables.to_pylist():
        store.command(distributed_table(row["table"], "job" if row["has_job"] else "host", layout))
