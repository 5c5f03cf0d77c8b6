"""Which jobs are there, and how far do the reports of their hosts reach."""

from collections.abc import Iterable
from dataclasses import dataclass

from analyzer.hosts import OF_HOSTS, list_hosts
from analyzer.windows import HostReport
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store

# What tells that a job lives, and when; the last column says whether a row stands for the second that begins there.
# A job that hangs finishes nothing, but its progress is still reported.
_SIGNS_OF_LIFE = (
    ("op_stats", "ts_ns", "ts_ns", True),
    ("transfer_stats", "ts_ns", "ts_ns", True),
    ("progress", "ts_ns", "ts_ns", False),
    ("collectives", "enqueue_ns", "coalesce(end_ns, enqueue_ns)", False),
    ("transfers", "first_ns", "last_ns", False),
    ("steps", "start_ns", "end_ns", False),
)
# Rows are stored by their beginning. What takes longer than an hour ends by NCCL's watchdog, not by itself.
_LONGEST_NS = 3_600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class JobSpan:
    """An attempt of a job that the store knows of, from its first moment to its last."""

    job: str
    attempt: int
    first_ns: int
    last_ns: int
    tables: frozenset[str] = frozenset()  # that tell of it


def find_jobs(store: Store, since_ns: int) -> list[JobSpan]:
    """Return the jobs that gave a sign of life since then."""
    rows = store.query(
        "SELECT job, attempt, min(first) AS first_ns, max(last) AS last_ns, groupUniqArray(told) AS tables FROM ("
        + " UNION ALL ".join(_sign_of_life(*sign) for sign in _SIGNS_OF_LIFE)
        + ") GROUP BY job, attempt ORDER BY job, attempt",
        {"since": since_ns},
    )
    return [JobSpan(**{**row, "tables": frozenset(row["tables"])}) for row in rows.to_pylist()]


def find_moments(store: Store, span: JobSpan, hop_ns: int) -> list[int]:
    """Return the ends of all hops in which a job gave a sign of life: a clock may be years off, and looks cost."""
    signs = " UNION DISTINCT ".join(
        f"SELECT DISTINCT intDiv({end}, {{hop:Int64}}) AS hop FROM {table} "
        "WHERE job = {job:String} AND attempt = {attempt:UInt16}"
        for table, _, end, _ in _SIGNS_OF_LIFE
        if table in span.tables
    )
    rows = store.query(
        f"SELECT DISTINCT hop FROM ({signs}) ORDER BY hop", {"job": span.job, "attempt": span.attempt, "hop": hop_ns}
    )
    return [(hop + 1) * hop_ns for hop in rows["hop"].to_pylist()]


def find_activity(store: Store, span: JobSpan) -> tuple[int, int]:
    """Return from when to when a job did something, as exactly as its rows tell it: statistics are per second."""
    exact = [sign for sign in _SIGNS_OF_LIFE if sign[0] in ("collectives", "transfers") and sign[0] in span.tables]
    if not exact:
        return span.first_ns, span.last_ns
    times = " UNION ALL ".join(
        f"SELECT min({begin}) AS first, max({end}) AS last FROM {table} "
        "WHERE job = {job:String} AND attempt = {attempt:UInt16}"
        for table, begin, end, _ in exact
    )
    asked = {"job": span.job, "attempt": span.attempt}
    (row,) = store.query(f"SELECT min(first) AS first, max(last) AS last FROM ({times})", asked).to_pylist()
    return int(row["first"]), int(row["last"])


def find_reports(store: Store, hosts: Iterable[str], since_ns: int) -> dict[str, HostReport]:
    """Return the newest heartbeat of each host that sent one since then."""
    rows = store.query(
        "SELECT host, max(watermark_ns) AS watermark_ns, max(ts_ns) AS heard_ns FROM agents "
        f"WHERE {OF_HOSTS} AND ts_ns >= {{since:Int64}} GROUP BY host",
        {"hosts": list_hosts(hosts), "since": since_ns},
    )
    return {row["host"]: HostReport(row["watermark_ns"], row["heard_ns"]) for row in rows.to_pylist()}


def _sign_of_life(table: str, begin: str, end: str, is_second: bool) -> str:
    last = f"max({end})" + (f" + {NS_PER_S}" if is_second else "")
    return (
        f"SELECT job, attempt, min({begin}) AS first, {last} AS last, '{table}' AS told FROM {table} "
        f"WHERE {begin} >= {{since:Int64}} - {_LONGEST_NS if begin != end else 0} AND {end} >= {{since:Int64}} "
        "GROUP BY job, attempt"
    )
