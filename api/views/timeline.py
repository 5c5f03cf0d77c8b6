"""Who was notified, who acted, what was automatic: everything about an incident in the order it happened."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

from pydantic import Field

from analyzer.windows.jobs import list_hosts as as_parameter
from api.dependencies import SortKey, digest_of, show_timestamp
from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.execution import Execution, Isolated, Order, Outcome
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import find_execution, list_decisions, list_isolated, list_orders
from lockstep.state.deliveries import Delivery
from lockstep.state.fabric import list_path_plans, list_topologies
from lockstep.state.incidents import VerdictChange, deliveries_about, get_incident, list_verdict_changes, outcomes_of
from lockstep.store.store import Store
from lockstep.store.together import OF_HOSTS
from lockstep.verdict import Frozen, Incident

Kind = Literal["opened", "verdict", "decision", "order", "step", "isolation", "notified", "closed", "outcome"]

_ORDER = {kind: number for number, kind in enumerate(get_args(Kind))}
_ANALYZER, _PLANNER, _ALERTS = "analyzer", "planner", "alerts"  # who acts where no person does


class Entry(Frozen):
    """One thing that happened."""

    ts_ns: int = Field(ge=0)
    at: str | None = Field(None, description="the same as a person reads it")
    kind: Kind
    who: str = Field(description="a person, or the service that did it automatically")
    automatic: bool = Field(description="whether no person asked for it")
    what: str = Field(description="one sentence")
    subject: str = Field(description="the incident, decision, node or receiver that it is about")


def read_timeline(control: ControlDatabase, incident: str) -> list[Entry]:
    """Return what happened to an incident, oldest first, or raise NotPresent."""
    found = get_incident(control, incident)
    decisions = list_decisions(control, incident=incident, limit=1000)
    entries = [*_of_incident(found, list_verdict_changes(control, incident))]
    ours = {decision.id for decision in decisions}
    for decision in decisions:
        entries.append(_of_decision(decision))
        entries += [_of_order(order) for order in list_orders(control, decision.id)]
        if run := find_execution(control, decision.id):
            entries += _of_execution(run)
    entries += _of_isolations(each for each in list_isolated(control) if each.decision in ours)
    entries += _of_deliveries(deliveries_about(control, incident))
    entries += [_of_outcome(outcome) for outcome in outcomes_of(control, [incident]).values()]
    return sorted(entries, key=timeline_key)


def timeline_key(entry: Entry) -> SortKey:
    """Return where an entry stands: by its moment, and within one moment causes before their effects."""
    return entry.ts_ns, _ORDER[entry.kind], digest_of(entry)


def _entry(ts_ns: int, kind: Kind, who: str, what: str, subject: str, *, automatic: bool = True) -> Entry:
    return Entry(
        ts_ns=ts_ns, at=show_timestamp(ts_ns), kind=kind, who=who, automatic=automatic, what=what, subject=subject
    )


def _of_incident(incident: Incident, changes: Iterable[VerdictChange]) -> Iterator[Entry]:
    verdicts = list(changes)
    first = verdicts[0].reason if verdicts else incident.verdict.reason
    yield _entry(incident.opened_ns, "opened", _ANALYZER, first, incident.id)
    for change in verdicts[1:]:
        if change.state == "open":
            text = f"now {change.fault_class} of {change.component}, grade {change.grade}: {change.reason}"
            yield _entry(change.ts_ns, "verdict", _ANALYZER, text, incident.id)
    if incident.closed_ns is not None:
        yield _entry(incident.closed_ns, "closed", _ANALYZER, incident.closed_because or "closed", incident.id)


def _of_decision(decision: Decision) -> Entry:
    held = f"; held: {decision.held_because}" if decision.held_because else ""
    chosen = decision.action if decision.action != "none" else "and waits"
    what = f"{decision.mode}s {chosen}: {decision.reason}{held}"
    return _entry(decision.created_ns, "decision", _PLANNER, what, decision.id)


def _of_order(order: Order) -> Entry:
    what = f"{order.kind}: {order.why}" if order.why else order.kind
    return _entry(order.ts_ns, "order", order.who, what, order.decision, automatic=order.who == _PLANNER)


def _of_execution(execution: Execution) -> Iterator[Entry]:
    """Return when each step began and how it ended; one that only waits has not happened."""
    is_own = execution.approved_by in ("", _PLANNER, "policy")
    for step in execution.steps:
        ended = f"{step.state}: {step.message}".rstrip(": ")
        for ts_ns, how in ((step.began_ns, "begins"), (step.ended_ns, ended)):
            if ts_ns is not None:
                what = f"{step.act} {step.subject} {how}"
                yield _entry(ts_ns, "step", _PLANNER, what, step.subject, automatic=is_own)
    if execution.ended_ns is not None:
        what = f"{execution.action} {execution.state}: {execution.reason}".rstrip(": ")
        yield _entry(execution.ended_ns, "step", _PLANNER, what, execution.decision)


def _of_isolations(isolated: Iterable[Isolated]) -> Iterator[Entry]:
    for each in isolated:
        yield _entry(each.since_ns, "isolation", _PLANNER, f"{each.node} is out of service: {each.reason}", each.node)
        if each.changed_ns > each.since_ns:
            what = f"{each.node} is {each.state}: {each.message}".rstrip(": ")
            yield _entry(each.changed_ns, "isolation", _PLANNER, what, each.node)


def _of_deliveries(deliveries: Iterable[Delivery]) -> Iterator[Entry]:
    for delivery in deliveries:
        tries = delivery.tries
        ts_ns = tries.log[-1].ts_ns if tries.log else delivery.created_ns
        how = f"{delivery.state} after {tries.count} tries" if tries.count > 1 else delivery.state
        what = f"{delivery.target} is sent {tries.notification.kind}: {how}"
        yield _entry(ts_ns, "notified", _ALERTS, what, delivery.target)


def _of_outcome(outcome: Outcome) -> Entry:
    part = f", it was {outcome.part}" if outcome.part else ""
    what = f"the verdict was {'right' if outcome.was_right else 'wrong'}{part}: {outcome.why}".rstrip(": ")
    return _entry(outcome.ts_ns, "outcome", outcome.who, what, outcome.incident, automatic=False)


ChangeKind = Literal["event", "attempt", "neighbour", "topology", "path_plan", "agent_version", "nccl_version"]

BEFORE_S = 900  # what happened a quarter of an hour before a fault may have to do with it
_AFTER_NS = 60 * NS_PER_S  # clocks of hosts differ, and what caused a fault may be told after it
_MOST_EVENTS = 200
_MOST_VERSIONS = 100

_HOSTS = "SELECT DISTINCT host FROM comms WHERE job = {job:String} AND attempt = {attempt:UInt16}"
_EVENTS = f"""
SELECT ts_ns, host, source, kind, component, severity, message FROM events
WHERE {OF_HOSTS} AND ts_ns >= {{start:Int64}} AND ts_ns <= {{end:Int64}}
ORDER BY severity IN ('critical', 'error') DESC, ts_ns DESC LIMIT {_MOST_EVENTS}
"""
_STARTS = f"""
SELECT job, attempt, min(init_ns) AS ts_ns, uniqExact(host) AS hosts, arraySort(groupUniqArray(nccl_version)) AS nccl
FROM comms FINAL WHERE {OF_HOSTS} AND (job, attempt) IN (
    SELECT job, attempt FROM attempts GROUP BY job, attempt
    HAVING job = {{job:String}} OR (min(first_ns) <= {{end:Int64}} AND max(last_ns) >= {{start:Int64}})
) GROUP BY job, attempt ORDER BY job, attempt
"""
_AGENTS = f"""
SELECT host, arraySort(groupArray(version)) AS versions, argMax(version, first) AS newest, max(first) AS changed_ns
FROM (SELECT host, version, min(ts_ns) AS first FROM agents
      WHERE {OF_HOSTS} AND ts_ns >= {{start:Int64}} AND ts_ns <= {{end:Int64}} GROUP BY host, version)
GROUP BY host HAVING length(versions) > 1 ORDER BY host
"""
Row = dict[str, Any]  # Any: columns of several types


class Change(Frozen):
    """Something that was different from then on."""

    ts_ns: int = Field(ge=0)
    at: str | None = Field(None, description="the same as a person reads it")
    seconds_before: float = Field(description="before the fault began; negative: after it")
    kind: ChangeKind
    subject: str = Field(description="the part, job, host or version that it is about")
    what: str = Field(description="one sentence")


def find_changes(
    store: Store, control: ControlDatabase, incident: Incident, before_s: int = BEFORE_S
) -> list[Change]:
    """Return what changed near the beginning of an incident's fault, the newest first."""
    since_ns = incident.verdict.since_ns
    asked = {"job": incident.job, "attempt": incident.attempt}
    hosts = as_parameter(store.query(_HOSTS, asked)["host"].to_pylist())
    start_ns, end_ns = max(since_ns - before_s * NS_PER_S, 0), since_ns + _AFTER_NS
    stretch = {"hosts": hosts, "start": start_ns, "end": end_ns, "job": incident.job}
    found = [
        *_of_events(store.query(_EVENTS, stretch).to_pylist()),
        *_of_starts(store.query(_STARTS, stretch).to_pylist(), incident),
        *_of_agents(store.query(_AGENTS, stretch).to_pylist()),
        *_of_versions(control),
    ]
    near = [change for change in found if start_ns <= change[0] <= end_ns]
    return sorted((_change(since_ns, *change) for change in near), key=change_key)


def change_key(change: Change) -> SortKey:
    """Return where a change stands in the list: the newest first."""
    return -change.ts_ns, digest_of(change)


_Found = tuple[int, ChangeKind, str, str]  # when, what kind, about what, the sentence


def _of_events(rows: list[Row]) -> Iterator[_Found]:
    for row in rows:
        text = f"{row['source']} on {row['host']}: {row['severity']} {row['kind']}, {row['message']}"
        yield row["ts_ns"], "event", row["component"], text[:500]


def _of_starts(rows: list[Row], incident: Incident) -> Iterator[_Found]:
    """Return attempts that began on the job's hosts: its own, with another NCCL where it has one, and neighbours."""
    before: list[str] = []
    for row in rows:
        if row["job"] != incident.job:
            text = f"job {row['job']} began on {row['hosts']} of its hosts"
            yield row["ts_ns"], "neighbour", row["job"], text
            continue
        yield row["ts_ns"], "attempt", row["job"], f"attempt {row['attempt']} of {row['job']} began"
        if before and row["nccl"] and row["nccl"] != before:
            text = f"attempt {row['attempt']} runs NCCL {', '.join(row['nccl'])}, the one before {', '.join(before)}"
            yield row["ts_ns"], "nccl_version", row["job"], text
        before = row["nccl"]


def _of_agents(rows: list[Row]) -> Iterator[_Found]:
    for row in rows:
        text = f"the collector of {row['host']} became {row['newest']}, it was among {', '.join(row['versions'])}"
        yield row["changed_ns"], "agent_version", row["host"], text


def _of_versions(control: ControlDatabase) -> Iterator[_Found]:
    for version in list_topologies(control, _MOST_VERSIONS):
        text = f"{version.who} published topology {version.number} from {version.source}"
        yield version.created_ns, "topology", str(version.number), text
    for plan in list_path_plans(control, _MOST_VERSIONS):
        text = f"path plan {plan.generation} moved {plan.must_move + plan.may_move} flows: {'; '.join(plan.reasons)}"
        yield plan.made_ns, "path_plan", str(plan.generation), text


def _change(since_ns: int, ts_ns: int, kind: ChangeKind, subject: str, what: str) -> Change:
    before_s = (since_ns - ts_ns) / NS_PER_S
    return Change(
        ts_ns=ts_ns, at=show_timestamp(ts_ns), seconds_before=before_s, kind=kind, subject=subject, what=what
    )
