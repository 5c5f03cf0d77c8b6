"""Who takes part in a job: its ranks with host, GPU and what each waits for now, and its communicators."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from analyzer.windows.jobs import Roster, build_roster, read_roster
from analyzer.windows.silence import HostReport, find_reports
from analyzer.windows.window import EvaluationOptions, Window, window_at
from api.dependencies import SortKey, show_timestamp
from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent
from lockstep.store.store import Store
from lockstep.verdict import Frozen

_RECENT_NS = 120 * NS_PER_S  # what a rank waited for longer ago says nothing about now

_MEMBERS = """
SELECT comm, rank, nranks, nnodes, host, pid, gpu, gpu_uuid, world_rank, init_ns, nccl_version, plugin_version
FROM comms FINAL WHERE job = {job:String} AND attempt = {attempt:UInt16}
"""
_ATTEMPT = "SELECT max(attempt) AS attempt, count() AS known FROM comms WHERE job = {job:String}"
# What is open longest is what a rank waits for.
_WAITING = """
SELECT comm, rank, argMin(head_state, (oldest_open, -ts)) AS state, argMin(func, (oldest_open, -ts)) AS func,
       min(oldest_open) AS open_ns, max(ts) AS seen_ns, sum(done_n) AS done
FROM (SELECT comm, rank, func, peer, max(ts_ns) AS ts, argMax(head_state, ts_ns) AS head_state,
             ifNull(argMax(toNullable(ifNull(oldest_open_ns, 9223372036854775807)), ts_ns), 9223372036854775807)
                 AS oldest_open, argMax(done, ts_ns) AS done_n
      FROM progress WHERE job = {job:String} AND attempt = {attempt:UInt16}
        AND ts_ns >= {since:Int64} AND ts_ns <= {now:Int64}
      GROUP BY comm, rank, func, peer)
GROUP BY comm, rank
"""
_COMMUNICATORS = """
SELECT comm, any(name) AS name, max(nranks) AS ranks, max(nnodes) AS nodes, count() AS known_ranks,
       uniqExact(host) AS hosts, min(init_ns) AS made_ns, max(destroy_ns) AS destroyed_ns, max(detail) AS detail
FROM comms FINAL WHERE job = {job:String} AND attempt = {attempt:UInt16} AND comm > {after:UInt64}
GROUP BY comm ORDER BY comm LIMIT {most:UInt64}
"""
_NEVER_NS = 2**63 - 1


class Rank(Frozen):
    """One rank of a job, where it runs and what it does."""

    rank: int = Field(ge=0, description="in the whole job")
    host: str
    gpu: int | None = Field(None, description="NVML index")
    gpu_uuid: str | None = None
    pid: int | None = None
    nccl_version: str | None = None
    plugin_version: str = ""
    waits_for: str | None = Field(None, description="what its oldest open operation waits for; None: not known")
    waits_in: str | None = Field(None, description="NCCL's name of that operation")
    waits_since_ns: int | None = Field(None, description="since when it is open; None: nothing is open")
    done: int | None = Field(None, description="operations that ended, in all communicators")
    seen_ns: int | None = Field(None, description="when this was seen")


class Communicator(Frozen):
    """A communicator of a job."""

    comm: str = Field(description="id, a number of 64 bits in decimal: too large for numbers of JavaScript")
    name: str
    ranks: int = Field(ge=0)
    known_ranks: int = Field(ge=0, description="ranks that have reported")
    nodes: int | None = None
    hosts: int = Field(ge=0)
    detail: str
    made_ns: int = Field(ge=0)
    made_at: str | None = None
    destroyed_ns: int | None = None


def newest_attempt(store: Store, job: str, attempt: int | None = None) -> int:
    """Return the attempt that is meant: the given one, else the newest that has a communicator; or NotPresent."""
    if attempt is not None:
        return attempt
    row = store.query(_ATTEMPT, {"job": job}).to_pylist()[0]
    if not row["known"]:
        raise NotPresent(f"the store knows no communicator of a job {job!r}")
    return int(row["attempt"])


def list_ranks(store: Store, job: str, attempt: int, now_ns: int) -> list[Rank]:
    """Return all ranks of an attempt in order, or raise NotPresent where no communicator has told of any."""
    rows = store.query(_MEMBERS, {"job": job, "attempt": attempt})
    if rows.num_rows == 0:
        raise NotPresent(f"the store knows no rank of job {job!r}, attempt {attempt}")
    roster = build_roster(rows)
    waits = _read_waits(store, roster, {"job": job, "attempt": attempt, "now": now_ns})
    process = _processes(roster, rows)
    newest = dict(zip(process.tolist(), rows.to_pylist(), strict=True))  # rows come in no order: any of them tells it
    numbers = rank_numbers(roster)
    told = ("host", "gpu", "gpu_uuid", "pid", "nccl_version", "plugin_version")
    identities = [{name: newest[number][name] for name in told} for number in range(len(roster))]
    return [
        Rank(rank=int(numbers[number]), **identity, **waits.get(number, {}))
        for number, identity in enumerate(identities)
    ]


def rank_numbers(roster: Roster) -> np.ndarray:
    """Return what each process of a roster is called: its world rank, else its number."""
    numbers: np.ndarray = np.where(roster.world_rank_of >= 0, roster.world_rank_of, np.arange(len(roster)))
    return numbers


def list_communicators(
    store: Store, job: str, attempt: int, limit: int, after: SortKey | None = None
) -> list[Communicator]:
    """Return the communicators of an attempt by id; `after` is (id,) of the last one that is known already."""
    asked = {"job": job, "attempt": attempt, "after": int(after[0]) if after else 0, "most": limit}
    rows = store.query(_COMMUNICATORS, asked).to_pylist()
    return [
        Communicator(**row | {"comm": str(row["comm"]), "made_at": show_timestamp(row["made_ns"])}) for row in rows
    ]


def _processes(roster: Roster, rows: pa.Table) -> np.ndarray:
    comm, rank = rows["comm"].to_numpy().astype(np.uint64), rows["rank"].to_numpy().astype(np.int64)
    return roster.find(comm, rank)


def _read_waits(store: Store, roster: Roster, asked: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return what each process waits for, by its number: of its communicators, the one that is open longest."""
    rows = store.query(_WAITING, asked | {"since": asked["now"] - _RECENT_NS})
    found: dict[int, dict[str, Any]] = {}
    ordered = sorted(
        zip(_processes(roster, rows).tolist(), rows.to_pylist(), strict=True), key=lambda it: it[1]["open_ns"]
    )
    for number, row in ordered:
        if number < 0:
            continue
        is_open = row["open_ns"] != _NEVER_NS
        known = found.setdefault(
            number,
            {
                "waits_for": row["state"],
                "waits_in": row["func"] if is_open else None,
                "waits_since_ns": row["open_ns"] if is_open else None,
                "done": 0,
                "seen_ns": 0,
            },
        )
        known["done"] += row["done"]
        known["seen_ns"] = max(known["seen_ns"], row["seen_ns"])
    return found


_SILENCE_NS = 15 * NS_PER_S  # as long as the analyzer waits for a host by default
_LOOKBACK_NS = 120 * NS_PER_S  # as far as the analyzer does for heartbeats
_NEWEST_NS = 30 * NS_PER_S  # within which the newest rows of a running job are

_WHOSE = "job = {job:String} AND attempt = {attempt:UInt16}"
# What is counted by the second is small, and is there in almost all jobs.
_SECONDS = (("transfer_stats", "ts_ns", f"ts_ns + {NS_PER_S}"), ("op_stats", "ts_ns", f"ts_ns + {NS_PER_S}"))
_SINGLE = (("transfers", "first_ns", "last_ns"), ("collectives", "enqueue_ns", "ifNull(end_ns, enqueue_ns)"))


@dataclass(frozen=True)
class Closed:
    """A window nobody will add to, and who took part in it."""

    job: str
    attempt: int
    window: Window
    roster: Roster
    silent: frozenset[str]  # hosts that say nothing: their rows are missing


def find_closed(store: Store, job: str, attempt: int, now_ns: int) -> Closed:
    """Return the last closed window of an attempt, also of one that has ended, or raise NotPresent."""
    roster = read_roster(store, job, attempt)
    last_ns = _find_last(store, job, attempt, now_ns)
    reports = find_reports(store, roster.hosts, now_ns - _LOOKBACK_NS)
    silent = frozenset(host for host in roster.hosts if _is_silent(reports.get(host), now_ns))
    reached = [reports[host].told_ns for host in roster.hosts - silent]
    end_ns = min([last_ns, now_ns, *reached]) // NS_PER_S * NS_PER_S
    return Closed(job, attempt, window_at(max(end_ns, 1), 0, None, EvaluationOptions()), roster, silent)


def _is_silent(report: HostReport | None, now_ns: int) -> bool:
    return report is None or report.missing_source is not None or now_ns - report.last_seen_ns > _SILENCE_NS


def _find_last(store: Store, job: str, attempt: int, now_ns: int) -> int:
    """Return the last moment of an attempt that its rows tell of; the newest ones are asked first."""
    asked = {"job": job, "attempt": attempt}
    recent_ns = max(now_ns - _NEWEST_NS, 0)
    for tables, since_ns in ((_SECONDS, recent_ns), (_SECONDS, 0), (_SINGLE, recent_ns), (_SINGLE, 0)):
        lasts = " UNION ALL ".join(
            f"SELECT max({end}) AS last FROM {table} WHERE {_WHOSE} AND {begin} >= {{since:Int64}} HAVING count() > 0"
            for table, begin, end in tables
        )
        rows = store.query(f"SELECT last FROM ({lasts})", asked | {"since": since_ns})
        if rows.num_rows:
            return int(max(rows["last"].to_pylist()))
    raise NotPresent(f"the store knows nothing of job {job!r}, attempt {attempt}")
