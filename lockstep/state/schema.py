"""Makes the tables of the control database, or brings older ones up to date; never the other way."""

from dataclasses import dataclass

from sqlalchemy import Connection, Executable, Table, func, insert, inspect, select, update
from sqlalchemy.schema import CreateIndex, CreateTable

from lockstep.errors import StoreVersionMismatch
from lockstep.state.tables import (
    ALERT_TARGETS,
    ALERT_THREADS,
    ANALYSIS,
    CHANGES,
    DELIVERIES,
    DETAIL_REQUESTS,
    EXECUTIONS,
    HOST_PATHS,
    IDEMPOTENCY,
    ISOLATIONS,
    METADATA,
    NODE_ORDERS,
    ORDERS,
    OUTCOMES,
    PATH_COUNTS,
    PATH_PLANS,
    POLICIES,
    SCHEMA,
    SESSIONS,
    SILENCES,
    TARGET_HEALTH,
    TOPOLOGIES,
    VERDICT_CHANGES,
)

FIRST_VERSION = 1
OPENING_LOCK = 0x10C4_57E9  # any number will do, as long as every version of Lockstep takes the same


@dataclass(frozen=True, slots=True)
class Step:
    """What turns the schema of the version before into this version."""

    version: int
    statements: tuple[Executable, ...]  # DDL, or text() that both databases understand


def _made(*tables: Table) -> tuple[Executable, ...]:
    """Return what makes tables and their indexes."""
    indexes = (
        CreateIndex(index) for table in tables for index in sorted(table.indexes, key=lambda index: str(index.name))
    )
    return (*(CreateTable(table) for table in tables), *indexes)


_ALERT_TABLES = (ALERT_TARGETS, TARGET_HEALTH, ALERT_THREADS, DELIVERIES, SILENCES)

# An empty database gets the newest tables at once; an older one walks through the steps it has not seen, in order.
# Steps only add, since a process of the version before may still be at work on the same database.
STEPS: tuple[Step, ...] = (
    # Whoever changes one of these tables writes down here what it was.
    Step(2, (CreateTable(TOPOLOGIES),)),
    Step(3, tuple(CreateTable(table) for table in (PATH_PLANS, HOST_PATHS, PATH_COUNTS))),
    Step(4, _made(ORDERS, EXECUTIONS, ISOLATIONS, OUTCOMES)),
    Step(5, _made(NODE_ORDERS, SESSIONS, IDEMPOTENCY, POLICIES, CHANGES, VERDICT_CHANGES, *_ALERT_TABLES)),
    # Was `wishes`, whose rows expired within minutes and are left where they are.
    Step(6, _made(DETAIL_REQUESTS)),
    Step(7, _made(ANALYSIS)),
)


def prepare_schema(connection: Connection, steps: tuple[Step, ...] = STEPS) -> None:
    """Make the schema current inside the caller's transaction, or raise StoreVersionMismatch."""
    if connection.dialect.name == "postgresql":  # SQLite needs no more than the write lock we began with
        connection.execute(select(func.pg_advisory_xact_lock(OPENING_LOCK)))
    newest = steps[-1].version if steps else FIRST_VERSION
    version = _read_version(connection)
    if version is None:
        METADATA.create_all(connection, checkfirst=False)
        connection.execute(insert(SCHEMA).values(version=newest))
    elif version > newest:
        raise StoreVersionMismatch(
            f"the control database has schema version {version}, and this Lockstep knows versions up to {newest}: "
            "start a newer Lockstep, or restore a backup made by this one"
        )
    for step in steps:
        if version is not None and step.version > version:
            for statement in step.statements:
                connection.execute(statement)
            connection.execute(update(SCHEMA).values(version=step.version))


def _read_version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(SCHEMA.name):
        return None
    version = connection.execute(select(SCHEMA.c.version)).scalar_one_or_none()
    if version is None:
        raise StoreVersionMismatch(
            "the control database does not say which schema version it has: "
            f"its table {SCHEMA.name} is empty; restore it from a backup"
        )
    return int(version)
