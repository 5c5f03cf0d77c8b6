"""What changed shortly before a fault began: events, new attempts, neighbours, cables, paths and collectors."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from analyzer.hosts import OF_HOSTS
from analyzer.hosts import list_hosts as as_parameter
from api.paging import Place, digest_of
from api.reading.moments import show_moment
from lockstep.clock import NS_PER_S
from lockstep.control.database import ControlDatabase
from lockstep.control.path_plans import list_path_plans
from lockstep.control.topologies import list_topologies
from lockstep.incident import Incident
from lockstep.store.store import Store
from lockstep.verdict import Frozen

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
    return sorted((_change(since_ns, *change) for change in near), key=place_of)


def place_of(change: Change) -> Place:
    """Return where a change stands in the list: the newest first."""
    return -change.ts_ns, digest_of(change)


_Told = tuple[int, ChangeKind, str, str]  # when, what kind, about what, the sentence


def _of_events(rows: list[Row]) -> Iterator[_Told]:
    for row in rows:
        said = f"{row['source']} on {row['host']}: {row['severity']} {row['kind']}, {row['message']}"
        yield row["ts_ns"], "event", row["component"], said[:500]


def _of_starts(rows: list[Row], incident: Incident) -> Iterator[_Told]:
    """Return attempts that began on the job's hosts: its own, with another NCCL where it has one, and neighbours."""
    before: list[str] = []
    for row in rows:
        if row["job"] != incident.job:
            said = f"job {row['job']} began on {row['hosts']} of its hosts"
            yield row["ts_ns"], "neighbour", row["job"], said
            continue
        yield row["ts_ns"], "attempt", row["job"], f"attempt {row['attempt']} of {row['job']} began"
        if before and row["nccl"] and row["nccl"] != before:
            said = f"attempt {row['attempt']} runs NCCL {', '.join(row['nccl'])}, the one before {', '.join(before)}"
            yield row["ts_ns"], "nccl_version", row["job"], said
        before = row["nccl"]


def _of_agents(rows: list[Row]) -> Iterator[_Told]:
    for row in rows:
        said = f"the collector of {row['host']} became {row['newest']}, it was among {', '.join(row['versions'])}"
        yield row["changed_ns"], "agent_version", row["host"], said


def _of_versions(control: ControlDatabase) -> Iterator[_Told]:
    for version in list_topologies(control, _MOST_VERSIONS):
        said = f"{version.who} published topology {version.number} from {version.source}"
        yield version.created_ns, "topology", str(version.number), said
    for plan in list_path_plans(control, _MOST_VERSIONS):
        said = f"path plan {plan.generation} moved {plan.must_move + plan.may_move} flows: {'; '.join(plan.reasons)}"
        yield plan.made_ns, "path_plan", str(plan.generation), said


def _change(since_ns: int, ts_ns: int, kind: ChangeKind, subject: str, what: str) -> Change:
    before_s = (since_ns - ts_ns) / NS_PER_S
    return Change(ts_ns=ts_ns, at=show_moment(ts_ns), seconds_before=before_s, kind=kind, subject=subject, what=what)
