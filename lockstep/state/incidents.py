"""Incidents as the analyzer left them: written whole, read by id, by state and newest first."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import Field
from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    Table,
    case,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    type_coerce,
)

from lockstep.batches import DetailRequest
from lockstep.execution import Outcome
from lockstep.state.database import ControlDatabase
from lockstep.state.deliveries import Delivery, delivery_of
from lockstep.state.documents import (
    insert_into,
    matching,
    newest_first,
    read_all,
    read_by_id,
    read_document,
    read_one,
    row_of,
    write_over,
)
from lockstep.state.leases import ALL_JOBS, Lease, Shard, refuse_stale
from lockstep.state.tables import (
    ANALYSIS,
    AUDIT,
    CHANGES,
    DECISIONS,
    DELIVERIES,
    DETAIL_REQUESTS,
    EXECUTIONS,
    INCIDENTS,
    JOB_ANALYSIS,
    OUTCOMES,
    VERDICT_CHANGES,
)
from lockstep.verdict import STOPS_JOB, FaultClass, Frozen, Grade, Incident, Side

Kind = Literal["incident", "decision", "execution"]

_TABLES: dict[Kind, Table] = {"incident": INCIDENTS, "decision": DECISIONS, "execution": EXECUTIONS}
_NUMBERING_LOCK = 0x10C4_57EA  # any number will do, as long as every version of Lockstep takes the same


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that changed, as it is now."""

    number: int
    first: int  # number of its first change: a reader that knows less than this has never heard of it
    kind: Kind
    subject: str
    document: str  # JSON, as the thing is stored


def note_changes(connection: Connection, kind: Kind, subjects: Iterable[str]) -> None:
    """Number the changes of these things in the transaction that makes them."""
    wanted = sorted(set(subjects))
    if not wanted:
        return
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
        connection.execute(select(func.pg_advisory_xact_lock(_NUMBERING_LOCK)))
    newest = _newest(connection)
    rows = [
        {"kind": kind, "subject": subject, "first": number, "number": number}
        for number, subject in enumerate(wanted, start=newest + 1)
    ]
    insert = insert_into(connection, CHANGES)
    replaced = {"number": insert.excluded["number"]}
    connection.execute(insert.on_conflict_do_update(index_elements=["kind", "subject"], set_=replaced), rows)


def newest_change(db: ControlDatabase) -> int:
    """Return the number of the last change, 0 before the first."""
    with db.read() as connection:
        return _newest(connection)


def changes_since(db: ControlDatabase, number: int, limit: int) -> list[Change]:
    """Return what changed after this number, the oldest change first."""
    query = select(CHANGES).where(CHANGES.c.number > number).order_by(CHANGES.c.number).limit(limit)
    with db.read() as connection:
        rows = connection.execute(query).all()
        documents: dict[str, dict[str, str]] = {}
        for kind in {row.kind for row in rows} & _TABLES.keys():
            table, subjects = _TABLES[kind], [row.subject for row in rows if row.kind == kind]
            found = connection.execute(select(table.c.id, table.c.document).where(table.c.id.in_(subjects)))
            documents[kind] = {row.id: row.document for row in found}
    return [
        Change(row.number, row.first, row.kind, row.subject, documents[row.kind][row.subject])
        for row in rows
        if row.kind in documents and row.subject in documents[row.kind]
    ]


def _newest(connection: Connection) -> int:
    return connection.scalar(select(func.max(CHANGES.c.number))) or 0


class VerdictChange(Frozen):
    """What an incident was taken for from a moment on."""

    incident: str
    ts_ns: int = Field(ge=0)
    state: Literal["open", "closed"]
    fault_class: FaultClass = Field(alias="class")
    component: str
    side: Side | None = None
    grade: Grade
    confidence: float = Field(ge=0, le=1)
    reason: str = Field(description="of the verdict; of a closed incident, why it was closed")

    @property
    def mark(self) -> tuple[str | None, ...]:
        """Return what makes another one news: figures alone do not."""
        return self.state, self.fault_class, self.component, self.side, self.grade


def note_verdicts(connection: Connection, incidents: Iterable[Incident]) -> None:
    """Add a line for each incident of which something else is said than before, in the writer's transaction."""
    changes = [_change(incident) for incident in incidents]
    lines = VERDICT_CHANGES
    named = lines.c.incident.in_({change.incident for change in changes})
    newest = select(func.max(lines.c.id)).where(named).group_by(lines.c.incident)
    rows = connection.execute(select(lines.c.incident, lines.c.document).where(lines.c.id.in_(newest)))
    before = {incident: read_document(VerdictChange, text) for incident, text in rows}
    for change in changes:
        if change.incident not in before or before[change.incident].mark != change.mark:
            connection.execute(insert(VERDICT_CHANGES).values(row_of(change, "incident")))
            before[change.incident] = change


def list_verdict_changes(db: ControlDatabase, incident: str) -> list[VerdictChange]:
    """Return what was said of an incident, in the order in which it was written."""
    query = select(VERDICT_CHANGES.c.document).where(VERDICT_CHANGES.c.incident == incident)
    return read_all(db, VerdictChange, query.order_by(VERDICT_CHANGES.c.id))


def _change(incident: Incident) -> VerdictChange:
    verdict = incident.verdict
    taken_for = {name: getattr(verdict, name) for name in ("fault_class", "component", "side", "grade", "confidence")}
    reason = (incident.closed_because or "") if incident.state == "closed" else verdict.reason
    return VerdictChange(
        incident=incident.id, ts_ns=incident.updated_ns, state=incident.state, **taken_for, reason=reason
    )


State = Literal["open", "closed"]


def save_incidents(db: ControlDatabase, incidents: Iterable[Incident], lease: Lease | None) -> None:
    """Write all incidents or none, each replacing the one with its id.

    With a lease, LeaseLost is raised and nothing written once another holder has taken it.
    """
    with db.begin() as connection:
        if lease is not None:
            refuse_stale(connection, lease)
        written = list(incidents)
        write_over(connection, INCIDENTS, (row_of(each, "id", "job", "state", "opened_ns") for each in written))
        note_changes(connection, "incident", (incident.id for incident in written))
        note_verdicts(connection, written)


def list_incidents(
    db: ControlDatabase,
    *,
    job: str | None = None,
    state: State | None = None,
    limit: int = 100,
    before: tuple[int, str] | None = None,
) -> list[Incident]:
    """Return the newest incidents first; `before` is (opened_ns, id) of the last one of the page above."""
    query = matching(select(INCIDENTS.c.document), (INCIDENTS.c.job, job), (INCIDENTS.c.state, state))
    return read_all(db, Incident, newest_first(query, INCIDENTS.c.opened_ns, INCIDENTS.c.id, limit, before))


def open_incidents(db: ControlDatabase, job: str | None = None) -> list[Incident]:
    """Return every incident that is still open, newest first."""
    query = matching(select(INCIDENTS.c.document), (INCIDENTS.c.job, job), (INCIDENTS.c.state, "open"))
    return read_all(db, Incident, query.order_by(INCIDENTS.c.opened_ns.desc(), INCIDENTS.c.id.desc()))


def get_incident(db: ControlDatabase, incident_id: str) -> Incident:
    """Return the incident with this id, or raise NotPresent."""
    return read_one(db, Incident, INCIDENTS, incident_id)


class Analysis(NamedTuple):
    """How far the analyzer has come."""

    until_ns: int  # all windows that were complete then have been judged, or left out
    skipped: int  # evaluations that were left out because it was behind, since it began


def note_analysis(db: ControlDatabase, analysis: Analysis, shard: Shard = ALL_JOBS) -> None:
    """Write how far an analyzer has come; those that there are no more are forgotten."""
    with db.begin() as connection:
        names = [each.name for each in Shard.all_of(shard.of)]
        connection.execute(delete(ANALYSIS).where(ANALYSIS.c.id.not_in(names)))
        write_over(connection, ANALYSIS, [{"id": shard.name, **analysis._asdict()}])


def read_analysis(db: ControlDatabase) -> Analysis | None:
    """Return how far all analyzers have come; None before the first run of one."""
    with db.read() as connection:
        row = connection.execute(select(func.min(ANALYSIS.c.until_ns), func.sum(ANALYSIS.c.skipped))).one()
    return None if row[0] is None else Analysis(int(row[0]), int(row[1]))


def note_jobs(db: ControlDatabase, until_ns: Mapping[str, int], shard: Shard = ALL_JOBS) -> None:
    """Write how far an analyzer has come with each job that it follows; others of its jobs are forgotten."""
    with db.begin() as connection:
        ours = filter(shard.has, connection.scalars(select(JOB_ANALYSIS.c.id)).all())
        ended = [job for job in ours if job not in until_ns]
        connection.execute(delete(JOB_ANALYSIS).where(JOB_ANALYSIS.c.id.in_(ended)))
        write_over(connection, JOB_ANALYSIS, [{"id": job, "until_ns": until} for job, until in until_ns.items()])


def read_jobs(db: ControlDatabase, most: int) -> dict[str, int]:
    """Return by job how far the analyzer has come with it, of those that are furthest behind."""
    query = select(JOB_ANALYSIS).order_by(JOB_ANALYSIS.c.until_ns, JOB_ANALYSIS.c.id).limit(most)
    with db.read() as connection:
        return {row.id: int(row.until_ns) for row in connection.execute(query)}


def add_detail_requests(db: ControlDatabase, *requests: DetailRequest, now_ns: int = 0) -> None:
    """Write detail requests, replacing those with the same ids, which prolongs them; what has expired is deleted."""
    if not requests:
        return
    with db.begin() as connection:
        connection.execute(delete(DETAIL_REQUESTS).where(DETAIL_REQUESTS.c.expires_ns <= now_ns))
        write_over(connection, DETAIL_REQUESTS, (row_of(each, "id", "host", "expires_ns") for each in requests))


def detail_requests_by_host(db: ControlDatabase, now_ns: int) -> dict[str, list[DetailRequest]]:
    """Return the detail requests for all hosts that have not expired, the most pressing first."""
    query = select(DETAIL_REQUESTS.c.document).where(DETAIL_REQUESTS.c.expires_ns > now_ns)
    found: dict[str, list[DetailRequest]] = {}
    with db.read() as connection:
        for text in connection.scalars(query.order_by(DETAIL_REQUESTS.c.expires_ns, DETAIL_REQUESTS.c.id)):
            request = read_document(DetailRequest, text)
            found.setdefault(request.host, []).append(request)
    return found


_MOST_DELIVERIES = 1_000  # that one incident is shown with: what it would take to tell a thousand receivers


# An outcome is written with a line in the audit.
_STATE = select(select(func.max(CHANGES.c.number)).scalar_subquery(), select(func.max(AUDIT.c.id)).scalar_subquery())


class StoredIncident(NamedTuple):
    """An incident as its row has it: whoever shows many of them need not read all documents anew."""

    opened_ns: int
    id: str
    document: str


def page_incidents(
    db: ControlDatabase,
    *,
    job: str | None = None,
    state: str | None = None,
    fault_class: str | None = None,
    component: str | None = None,
    host: str | None = None,
    grade: str | None = None,
    severity: str | None = None,
    from_ns: int | None = None,
    to_ns: int | None = None,
    limit: int = 100,
    before: tuple[int, str] | None = None,
) -> list[StoredIncident]:
    """Return stored incidents, the newest first; `before` is (opened_ns, id) of the last one of the page above.

    A host's are of its own parts and of what ends at it. From and to are of when they were opened, the end excluded.
    """
    whole = select(INCIDENTS.c.opened_ns, INCIDENTS.c.id, INCIDENTS.c.document)
    query = matching(whole, (INCIDENTS.c.job, job), (INCIDENTS.c.state, state))
    if from_ns is not None:
        query = query.where(INCIDENTS.c.opened_ns >= from_ns)
    if to_ns is not None:
        query = query.where(INCIDENTS.c.opened_ns < to_ns)
    page = newest_first(query, INCIDENTS.c.opened_ns, INCIDENTS.c.id, limit, before)
    with db.read() as connection:
        for name, value in (("class", fault_class), ("component", component), ("grade", grade)):
            page = page if value is None else page.where(_verdict_field(connection, name) == value)
        if host is not None:
            page = page.where(_is_at(_verdict_field(connection, "component"), host))
        if severity is not None:
            page = page.where(_severity_of(connection) == severity)
        return [StoredIncident(*row) for row in connection.execute(page)]


def _is_at(component: ColumnElement[str], host: str) -> ColumnElement[bool]:
    """Return whether a part is of a host or ends at it: host:h3, gpu:h3/2, nic:h3/eth1, link:leaf1--h3/eth1."""
    whole = component + "--"
    forms = (f"{before}{host}{after}" for before in (":", "--") for after in ("/", "--"))
    return or_(*(whole.contains(form, autoescape=True) for form in forms))


def _severity_of(connection: Connection) -> ColumnElement[str]:
    """Return the severity as `Verdict.severity` has it, in older verdicts, too."""
    written = func.coalesce(_verdict_field(connection, "impact", "severity"), "warning")
    return case((_verdict_field(connection, "class").in_(STOPS_JOB), "critical"), else_=written)


def state_of_incidents(db: ControlDatabase) -> tuple[int, int]:
    """Return two numbers, of which one grows whenever an incident is written or an outcome confirmed."""
    with db.read() as connection:
        row = connection.execute(_STATE).one()
    return row[0] or 0, row[1] or 0


def outcomes_of(db: ControlDatabase, incidents: Collection[str]) -> dict[str, Outcome]:
    """Return what these incidents turned out to be, by their ids; those nobody confirmed are left out."""
    if not incidents:
        return {}
    query = select(OUTCOMES.c.id, OUTCOMES.c.document).where(OUTCOMES.c.id.in_(incidents))
    return read_by_id(db, Outcome, query)


def deliveries_about(db: ControlDatabase, incident: str) -> list[Delivery]:
    """Return the messages that told somebody of an incident, oldest first, also those that told of others with it."""
    named = DELIVERIES.c.document.contains(f'"subject":"{incident}"', autoescape=True)
    query = select(DELIVERIES).where(or_(DELIVERIES.c.thread == incident, named))
    with db.read() as connection:
        rows = connection.execute(query.order_by(DELIVERIES.c.number).limit(_MOST_DELIVERIES))
        return [delivery_of(row) for row in rows]


def _verdict_field(connection: Connection, *names: str) -> ColumnElement[str]:
    """Return a field of the verdict in an incident's document; each database reads JSON text in its own way."""
    text = INCIDENTS.c.document
    document = cast(text, JSON) if connection.dialect.name == "postgresql" else type_coerce(text, JSON)
    field: ColumnElement[str] = document[("verdict", *names)].as_string()
    return field
