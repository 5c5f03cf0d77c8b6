"""The last closed window of a job: up to when all of its hosts have told everything, or are known to be silent."""

from dataclasses import dataclass

from analyzer.jobs import find_reports
from analyzer.looks import LookOptions, window_at
from analyzer.roster import Roster, read_roster
from analyzer.windows import HostReport, Window
from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent
from lockstep.store.store import Store

SILENCE_NS = 15 * NS_PER_S  # as long as the analyzer waits for a host by default
_LOOK_BACK_NS = 120 * NS_PER_S  # as far as the analyzer does for heartbeats
_RECENT_NS = 30 * NS_PER_S  # within which the newest rows of a running job are

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


def find_closed(store: Store, job: str, attempt: int, now_ns: int, silence_ns: int = SILENCE_NS) -> Closed:
    """Return the last closed window of an attempt, also of one that has ended, or raise NotPresent."""
    roster = read_roster(store, job, attempt)
    last_ns = _find_last(store, job, attempt, now_ns)
    reports = find_reports(store, roster.hosts, now_ns - _LOOK_BACK_NS)
    silent = frozenset(host for host in roster.hosts if _is_silent(reports.get(host), now_ns, silence_ns))
    reached = [reports[host].watermark_ns for host in roster.hosts - silent]
    end_ns = min([last_ns, now_ns, *reached]) // NS_PER_S * NS_PER_S
    return Closed(job, attempt, window_at(max(end_ns, 1), 0, None, LookOptions()), roster, silent)


def _is_silent(report: HostReport | None, now_ns: int, silence_ns: int) -> bool:
    return report is None or now_ns - report.heard_ns > silence_ns


def _find_last(store: Store, job: str, attempt: int, now_ns: int) -> int:
    """Return the last moment of an attempt that its rows tell of; the newest ones are asked first."""
    asked = {"job": job, "attempt": attempt}
    recent_ns = max(now_ns - _RECENT_NS, 0)
    for tables, since_ns in ((_SECONDS, recent_ns), (_SECONDS, 0), (_SINGLE, recent_ns), (_SINGLE, 0)):
        lasts = " UNION ALL ".join(
            f"SELECT max({end}) AS last FROM {table} WHERE {_WHOSE} AND {begin} >= {{since:Int64}} HAVING count() > 0"
            for table, begin, end in tables
        )
        rows = store.query(f"SELECT last FROM ({lasts})", asked | {"since": since_ns})
        if rows.num_rows:
            return int(max(rows["last"].to_pylist()))
    raise NotPresent(f"the store knows nothing of job {job!r}, attempt {attempt}")
