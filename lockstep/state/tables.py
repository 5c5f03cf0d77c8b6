"""Which tables the control database has, and how older ones are brought up to date; never the other way.

A change of a table comes with a step below. Times are integer nanoseconds. Whole values (incidents, decisions,
detail requests) are JSON text, which both databases store alike; the columns beside them are those that queries
select and sort by.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Executable,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.schema import CreateIndex, CreateTable

from lockstep.errors import StoreVersionMismatch

# PostgreSQL sorts text by the server's locale unless told otherwise; pages must break at the same place everywhere.
NAME = String().with_variant(String(collation="C"), "postgresql")
# SQLite counts rows by itself only in a column declared INTEGER.
ROW_NUMBER = BigInteger().with_variant(Integer, "sqlite")

METADATA = MetaData()

_Column = Column[Any]  # Any: each has the type of its values


def _key(name: str = "id", refers_to: str | None = None) -> _Column:
    references = [ForeignKey(refers_to)] if refers_to else []
    return Column(name, NAME, *references, primary_key=True)


def _count(name: str = "id") -> _Column:
    """A number that the database gives; with `sqlite_autoincrement` one that was given out is never reused."""
    return Column(name, ROW_NUMBER, primary_key=True, autoincrement=True)


def _names(*names: str) -> list[_Column]:
    return [Column(name, NAME, nullable=False) for name in names]


def _numbers(*names: str) -> list[_Column]:
    return [Column(name, BigInteger, nullable=False) for name in names]


def _texts(*names: str) -> list[_Column]:
    return [Column(name, Text, nullable=False) for name in names]


def _of(table: str, name: str) -> _Column:
    """The id of a row of another table."""
    return Column(name, NAME, ForeignKey(f"{table}.id"), nullable=False)


SCHEMA = Table("control_schema", METADATA, Column("version", Integer, nullable=False))

# A row stays for ever: the generation it holds must never be given out again.
LEASES = Table("leases", METADATA, _key("name"), Column("holder", NAME), *_numbers("generation", "expires_ns"))

INCIDENTS = Table(
    "incidents",
    METADATA,
    *(_key(), *_names("job", "state"), *_numbers("opened_ns"), *_texts("document")),
    Index("incidents_by_time", "opened_ns", "id"),
    Index("incidents_by_job", "job", "opened_ns", "id"),
    Index("incidents_by_state", "state", "opened_ns", "id"),
)

DECISIONS = Table(
    "decisions",
    METADATA,
    *(_key(), _of("incidents", "incident"), *_names("job"), *_numbers("created_ns"), *_texts("document")),
    Index("decisions_by_time", "created_ns", "id"),
    Index("decisions_by_job", "job", "created_ns", "id"),
    Index("decisions_by_incident", "incident", "created_ns", "id"),
)

TOKENS = Table(
    "tokens",
    METADATA,
    *(_key(), *_names("digest", "scope"), Column("host", NAME), *_names("name")),
    *(*_numbers("created_ns"), Column("revoked_ns", BigInteger)),
)

DETAIL_REQUESTS = Table(
    "detail_requests",
    METADATA,
    *(_key(), *_names("host"), *_numbers("expires_ns"), *_texts("document")),
    Index("detail_requests_by_host", "host", "expires_ns"),
)

# One row: how far the analyzer has come.
ANALYSIS = Table("analysis", METADATA, _key(), *_numbers("until_ns", "skipped"))

# Which gateway stores which batches of an agent; numbers from first to last.
BATCH_CLAIMS = Table(
    "batch_claims",
    METADATA,
    *(_key("agent"), _key("boot"), Column("first", BigInteger, primary_key=True, autoincrement=False)),
    *(*_numbers("last"), *_names("gateway"), *_numbers("seen_ns")),
)

# By job that sends telemetry: how far the analyzer has come with it.
JOB_ANALYSIS = Table("job_analysis", METADATA, _key(), *_numbers("until_ns"))

# The newest is the cluster's.
TOPOLOGIES = Table(
    "topologies",
    METADATA,
    *(_count("number"), *_names("digest"), *_numbers("created_ns"), *_names("who"), *_texts("source", "document")),
    sqlite_autoincrement=True,
)

# The newest is in force; hosts ignore lower numbers.
PATH_PLANS = Table(
    "path_plans",
    METADATA,
    *(_count("number"), *_numbers("made_ns"), *_texts("document")),
    sqlite_autoincrement=True,
)

# One row a host: what it was told last, and what it told last.
HOST_PATHS = Table("host_paths", METADATA, _key(), *_numbers("generation"), *_texts("document"))
PATH_COUNTS = Table("path_counts", METADATA, _key(), *_numbers("ts_ns"), *_texts("document"))

# What persons want of decisions; lines are only ever added, so the planner and a person never write over each other.
ORDERS = Table(
    "orders",
    METADATA,
    *(_count(), _of("decisions", "decision"), *_numbers("ts_ns"), *_texts("document")),
    Index("orders_by_decision", "decision", "id"),
    sqlite_autoincrement=True,
)

# By decision: how far it has been carried out. Only the planner that holds the lease writes here.
EXECUTIONS = Table(
    "executions",
    METADATA,
    *(_key(), *_names("job", "state"), *_numbers("began_ns"), *_texts("document")),
    Index("executions_by_time", "began_ns", "id"),
    Index("executions_by_state", "state", "began_ns", "id"),
)

# By decision and node: what we took out of service, and its way back.
ISOLATIONS = Table(
    "isolations",
    METADATA,
    *(_key(), *_names("node", "state"), *_numbers("since_ns"), *_texts("document")),
    Index("isolations_by_time", "since_ns", "id"),
)

# What persons want of nodes that are out of service; lines are only ever added, as orders on decisions are.
NODE_ORDERS = Table(
    "node_orders",
    METADATA,
    *(_count(), _of("decisions", "decision"), *_names("node"), *_numbers("ts_ns"), *_texts("document")),
    Index("node_orders_by_node", "decision", "node", "id"),
    sqlite_autoincrement=True,
)

# By incident: what it turned out to be.
OUTCOMES = Table("outcomes", METADATA, _key(refers_to="incidents.id"), *_numbers("ts_ns"), *_texts("document"))

# What was said of incidents before; a line is added when their part, class, side, grade or state becomes another.
VERDICT_CHANGES = Table(
    "verdict_changes",
    METADATA,
    *(_count(), _of("incidents", "incident"), *_texts("document")),
    Index("verdict_changes_by_incident", "incident", "id"),
    sqlite_autoincrement=True,
)

# By the digest of a browser's cookie: who it is, until when.
SESSIONS = Table(
    "sessions",
    METADATA,
    *(_key(), Column("token", NAME, ForeignKey("tokens.id")), *_names("who", "scope"), *_numbers("expires_ns")),
    Index("sessions_by_expiry", "expires_ns"),
)

# By the digest of caller and Idempotency-Key: what was asked and answered; status is null while the act runs.
IDEMPOTENCY = Table(
    "idempotency",
    METADATA,
    *(_key(), *_names("request"), *_numbers("began_ns"), Column("status", Integer), Column("sealed", Text)),
    Index("idempotency_by_time", "began_ns", "id"),
)

# The newest version of a name is in force; older ones stay, so that a policy can be compared and taken back.
POLICIES = Table(
    "policies",
    METADATA,
    *(_key("name"), Column("version", Integer, primary_key=True, autoincrement=False), *_numbers("changed_ns")),
    *(*_names("who"), *_texts("why", "document")),
)

# By kind and id: the number of the last change, and of the first. Numbers grow in the order of commits.
CHANGES = Table(
    "changes",
    METADATA,
    *(_key("kind"), _key("subject"), *_numbers("first", "number")),
    Index("changes_by_number", "number", unique=True),
)

# Receivers of alerts that were made through the API; secrets are in the document, because each message is signed.
ALERT_TARGETS = Table("alert_targets", METADATA, _key(), *_numbers("created_ns"), *_texts("document"))
# By name of the receiver, wherever it was made: since when we know it, and how it answers.
TARGET_HEALTH = Table("target_health", METADATA, _key(), *_numbers("since_ns"), *_texts("document"))
# By receiver and subject: what it was told last of an incident, a proposal, an action or Lockstep itself.
ALERT_THREADS = Table(
    "alert_threads",
    METADATA,
    *(_key(), *_names("target"), Column("is_over", Integer, nullable=False)),
    *(*_numbers("told_ns"), *_texts("document")),
    Index("alert_threads_by_end", "is_over", "told_ns"),
)
# The queue and its log. A message is known by receiver and event, so that it is never written twice.
DELIVERIES = Table(
    "deliveries",
    METADATA,
    *(_count("number"), *_names("target", "event", "thread", "state")),
    *(*_numbers("due_ns", "created_ns"), *_texts("document")),
    Index("deliveries_by_event", "target", "event", unique=True),
    Index("deliveries_by_state", "state", "due_ns", "number"),
    Index("deliveries_by_target", "target", "number"),
    sqlite_autoincrement=True,
)
SILENCES = Table(
    "silences",
    METADATA,
    *(_key(), *_numbers("until_ns"), *_texts("document")),
    Index("silences_by_end", "until_ns", "id"),
)

AUDIT = Table(
    "audit",
    METADATA,
    *(_count(), *_numbers("ts_ns"), *_names("who", "what", "subject"), *_texts("why")),
    sqlite_autoincrement=True,  # so that a deleted line leaves a gap
)
AUDIT_CHAIN = Table("audit_chain", METADATA, Column("id", ROW_NUMBER, primary_key=True), *_names("digest"))

FIRST_VERSION = 1
OPENING_LOCK = 0x10C4_57E9  # any number will do, as long as every version of Lockstep takes the same
AUDIT_LOCK = 0x10C4_57EA


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
    Step(8, _made(AUDIT_CHAIN)),
    Step(9, _made(BATCH_CLAIMS, JOB_ANALYSIS)),
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
