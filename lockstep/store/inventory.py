"""What a store holds: rows, bytes and time span of every table, and its migrations."""

from dataclasses import dataclass

from lockstep.store.layout import Layout
from lockstep.store.migrations import Applied, applied_migrations, known_migrations, pending_migrations
from lockstep.store.store import Store


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
