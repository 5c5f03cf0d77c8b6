"""Which tables the control database has; a change here comes with a step in schema.py.

Times are integer nanoseconds. Whole values (incidents, decisions, detail requests) are JSON text, which both
databases store alike; the columns beside them are those that queries select and sort by.
"""

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, MetaData, String, Table, Text

# PostgreSQL sorts text by the server's locale unless told otherwise; pages must break at the same place everywhere.
NAME = String().with_variant(String(collation="C"), "postgresql")
# SQLite counts rows by itself only in a column declared INTEGER.
ROW_NUMBER = BigInteger().with_variant(Integer, "sqlite")

METADATA = MetaData()

SCHEMA = Table("control_schema", METADATA, Column("version", Integer, nullable=False))

# A row stays for ever: the generation it holds must never be given out again.
LEASES = Table(
    "leases",
    METADATA,
    Column("name", NAME, primary_key=True),
    Column("holder", NAME),
    Column("generation", BigInteger, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
)

INCIDENTS = Table(
    "incidents",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("job", NAME, nullable=False),
    Column("state", NAME, nullable=False),
    Column("opened_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("incidents_by_time", "opened_ns", "id"),
    Index("incidents_by_job", "job", "opened_ns", "id"),
    Index("incidents_by_state", "state", "opened_ns", "id"),
)

DECISIONS = Table(
    "decisions",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("incident", NAME, ForeignKey("incidents.id"), nullable=False),
    Column("job", NAME, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("decisions_by_time", "created_ns", "id"),
    Index("decisions_by_job", "job", "created_ns", "id"),
    Index("decisions_by_incident", "incident", "created_ns", "id"),
)

TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("digest", NAME, nullable=False),
    Column("scope", NAME, nullable=False),
    Column("host", NAME),
    Column("name", NAME, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("revoked_ns", BigInteger),
)

DETAIL_REQUESTS = Table(
    "detail_requests",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("host", NAME, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("detail_requests_by_host", "host", "expires_ns"),
)

# One row: how far the analyzer has come.
ANALYSIS = Table(
    "analysis",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("until_ns", BigInteger, nullable=False),
    Column("skipped", BigInteger, nullable=False),
)

# The newest is the cluster's; a number that was given out is never reused.
TOPOLOGIES = Table(
    "topologies",
    METADATA,
    Column("number", ROW_NUMBER, primary_key=True, autoincrement=True),
    Column("digest", NAME, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("who", NAME, nullable=False),
    Column("source", Text, nullable=False),
    Column("document", Text, nullable=False),
    sqlite_autoincrement=True,
)

# The newest is in force; a number that was given out is never reused, because hosts ignore lower ones.
PATH_PLANS = Table(
    "path_plans",
    METADATA,
    Column("number", ROW_NUMBER, primary_key=True, autoincrement=True),
    Column("made_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    sqlite_autoincrement=True,
)

# One row a host: what it was told last, and what it told last.
HOST_PATHS = Table(
    "host_paths",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
)
PATH_COUNTS = Table(
    "path_counts",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("ts_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
)

# What persons want of decisions; lines are only ever added, so the planner and a person never write over each other.
ORDERS = Table(
    "orders",
    METADATA,
    Column("id", ROW_NUMBER, primary_key=True, autoincrement=True),
    Column("decision", NAME, ForeignKey("decisions.id"), nullable=False),
    Column("ts_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("orders_by_decision", "decision", "id"),
    sqlite_autoincrement=True,
)

# By decision: how far it has been carried out. Only the planner that holds the lease writes here.
EXECUTIONS = Table(
    "executions",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("job", NAME, nullable=False),
    Column("state", NAME, nullable=False),
    Column("began_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("executions_by_time", "began_ns", "id"),
    Index("executions_by_state", "state", "began_ns", "id"),
)

# By decision and node: what we took out of service, and its way back.
ISOLATIONS = Table(
    "isolations",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("node", NAME, nullable=False),
    Column("state", NAME, nullable=False),
    Column("since_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("isolations_by_time", "since_ns", "id"),
)

# What persons want of nodes that are out of service; lines are only ever added, as orders on decisions are.
NODE_ORDERS = Table(
    "node_orders",
    METADATA,
    Column("id", ROW_NUMBER, primary_key=True, autoincrement=True),
    Column("decision", NAME, ForeignKey("decisions.id"), nullable=False),
    Column("node", NAME, nullable=False),
    Column("ts_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("node_orders_by_node", "decision", "node", "id"),
    sqlite_autoincrement=True,
)

# By incident: what it turned out to be.
OUTCOMES = Table(
    "outcomes",
    METADATA,
    Column("id", NAME, ForeignKey("incidents.id"), primary_key=True),
    Column("ts_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
)

# What was said of incidents before; a line is added when their part, class, side, grade or state becomes another.
VERDICT_CHANGES = Table(
    "verdict_changes",
    METADATA,
    Column("id", ROW_NUMBER, primary_key=True, autoincrement=True),
    Column("incident", NAME, ForeignKey("incidents.id"), nullable=False),
    Column("document", Text, nullable=False),
    Index("verdict_changes_by_incident", "incident", "id"),
    sqlite_autoincrement=True,
)

# By the digest of a browser's cookie: who it is, until when.
SESSIONS = Table(
    "sessions",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("token", NAME, ForeignKey("tokens.id")),
    Column("who", NAME, nullable=False),
    Column("scope", NAME, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
    Index("sessions_by_expiry", "expires_ns"),
)

# By the digest of caller and Idempotency-Key: what was asked and answered; status is null while the act runs.
IDEMPOTENCY = Table(
    "idempotency",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("request", NAME, nullable=False),
    Column("began_ns", BigInteger, nullable=False),
    Column("status", Integer),
    Column("sealed", Text),
    Index("idempotency_by_time", "began_ns", "id"),
)

# The newest version of a name is in force; older ones stay, so that a policy can be compared and taken back.
POLICIES = Table(
    "policies",
    METADATA,
    Column("name", NAME, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("changed_ns", BigInteger, nullable=False),
    Column("who", NAME, nullable=False),
    Column("why", Text, nullable=False),
    Column("document", Text, nullable=False),
)

# By kind and id: the number of the last change, and of the first. Numbers grow in the order of commits.
CHANGES = Table(
    "changes",
    METADATA,
    Column("kind", NAME, primary_key=True),
    Column("subject", NAME, primary_key=True),
    Column("first", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Index("changes_by_number", "number", unique=True),
)

# Receivers of alerts that were made through the API; secrets are in the document, because each message is signed.
ALERT_TARGETS = Table(
    "alert_targets",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("created_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
)
# By name of the receiver, wherever it was made: since when we know it, and how it answers.
TARGET_HEALTH = Table(
    "target_health",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("since_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
)
# By receiver and subject: what it was told last of an incident, a proposal, an action or Lockstep itself.
ALERT_THREADS = Table(
    "alert_threads",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("target", NAME, nullable=False),
    Column("is_over", Integer, nullable=False),
    Column("told_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("alert_threads_by_end", "is_over", "told_ns"),
)
# The queue and its log. A message is known by receiver and event, so that it is never written twice.
DELIVERIES = Table(
    "deliveries",
    METADATA,
    Column("number", ROW_NUMBER, primary_key=True, autoincrement=True),
    Column("target", NAME, nullable=False),
    Column("event", NAME, nullable=False),
    Column("thread", NAME, nullable=False),
    Column("state", NAME, nullable=False),
    Column("due_ns", BigInteger, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("deliveries_by_event", "target", "event", unique=True),
    Index("deliveries_by_state", "state", "due_ns", "number"),
    Index("deliveries_by_target", "target", "number"),
    sqlite_autoincrement=True,
)
SILENCES = Table(
    "silences",
    METADATA,
    Column("id", NAME, primary_key=True),
    Column("until_ns", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("silences_by_end", "until_ns", "id"),
)

AUDIT = Table(
    "audit",
    METADATA,
    Column("id", ROW_NUMBER, primary_key=True, autoincrement=True),
    Column("ts_ns", BigInteger, nullable=False),
    Column("who", NAME, nullable=False),
    Column("what", NAME, nullable=False),
    Column("subject", NAME, nullable=False),
    Column("why", Text, nullable=False),
    sqlite_autoincrement=True,  # a number that was given out is never reused, so a deleted line leaves a gap
)
