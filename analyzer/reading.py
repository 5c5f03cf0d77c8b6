"""Where facts come from: the heavy reduction in SQL, so that rows never leave the store."""

from dataclasses import dataclass

from analyzer.facts import WindowFacts
from analyzer.windows import HostReport, Window
from lockstep.store.store import Store

# A connection has two ends, each reported by its own host. The sender knows the wire time and its NIC; the
# receiver's row names the NIC at the other end. Where the receiver is silent, the communicator still says which
# host it is on. CollNet and NVLS have no peer and never enter.
_PAIRS = """
WITH sends AS (
    SELECT comm, rank, peer, channel, size_class, any(host) AS src_host, any(nic) AS src_nic,
           any(transport) AS carrier, sum(n) AS n_sum, sum(bytes) AS bytes_sum, sum(wire_ns) AS wire_sum
    FROM ({rows}) WHERE direction = 'send' AND wire_ns IS NOT NULL
    GROUP BY comm, rank, peer, channel, size_class
), receives AS (
    SELECT comm, rank, peer, channel, any(host) AS recv_host, any(nic) AS recv_nic
    FROM ({rows}) WHERE direction = 'recv'
    GROUP BY comm, rank, peer, channel
), members AS (
    SELECT comm, rank, any(host) AS member_host FROM comms
    WHERE job = {{job:String}} AND attempt = {{attempt:UInt16}} GROUP BY comm, rank
)
SELECT src_host, src_nic, if(recv_host != '', recv_host, member_host) AS dst_host, recv_nic AS dst_nic,
       carrier AS transport, size_class, sum(n_sum) AS transfers, sum(bytes_sum) AS bytes, sum(wire_sum) AS wire_ns
FROM sends
LEFT JOIN receives ON receives.comm = sends.comm AND receives.rank = sends.peer AND receives.peer = sends.rank
    AND receives.channel = sends.channel
LEFT JOIN members ON members.comm = sends.comm AND members.rank = sends.peer
WHERE bytes_sum > 0 AND dst_host != ''
GROUP BY src_host, src_nic, dst_host, dst_nic, transport, size_class
ORDER BY src_host, src_nic, dst_host, dst_nic, transport, size_class
"""
_WHOSE = "job = {job:String} AND attempt = {attempt:UInt16}"
_STATS = (
    "SELECT comm, rank, peer, channel, direction, size_class, host, nic, transport, n, bytes, wire_ns "
    f"FROM transfer_stats WHERE {_WHOSE} AND peer >= 0 AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}}"
)
_TRANSFERS = (
    "SELECT comm, rank, peer, channel, direction, toUInt8(log2(greatest(bytes, 1))) AS size_class, host, nic, "
    f"transport, 1 AS n, bytes, wire_ns FROM transfers WHERE {_WHOSE} AND peer >= 0 "
    "AND last_ns >= {start:Int64} AND last_ns < {end:Int64}"
)
_OPERATIONS = (
    f"SELECT sum(n) AS operations FROM op_stats WHERE {_WHOSE} AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}}"
)


@dataclass(frozen=True, slots=True)
class JobSpan:
    """A job that the store has statistics of."""

    job: str
    attempt: int
    first_ns: int
    last_ns: int


def find_jobs(store: Store, since_ns: int) -> list[JobSpan]:
    """Return the jobs that finished operations since then, with the begin of their first and last second."""
    rows = store.query(
        "SELECT job, attempt, min(ts) AS first_ns, max(ts) AS last_ns FROM ("
        "SELECT job, attempt, ts_ns AS ts FROM op_stats WHERE ts_ns >= {since:Int64} UNION ALL "
        "SELECT job, attempt, ts_ns AS ts FROM transfer_stats WHERE ts_ns >= {since:Int64} UNION ALL "
        "SELECT job, attempt, last_ns AS ts FROM transfers WHERE last_ns >= {since:Int64}"
        ") GROUP BY job, attempt ORDER BY job, attempt",
        {"since": since_ns},
    )
    return [JobSpan(**row) for row in rows.to_pylist()]


def find_members(store: Store, job: JobSpan) -> tuple[frozenset[str], int]:
    """Return the hosts of a job and its number of ranks, as its communicators tell them."""
    rows = store.query(
        "SELECT groupUniqArray(host) AS hosts, max(nranks) AS ranks FROM comms "
        "WHERE job = {job:String} AND attempt = {attempt:UInt16}",
        {"job": job.job, "attempt": job.attempt},
    ).to_pylist()
    return frozenset(rows[0]["hosts"]), int(rows[0]["ranks"] or 0)


def find_reports(store: Store, hosts: frozenset[str], since_ns: int) -> dict[str, HostReport]:
    """Return the newest heartbeat of each host that sent one since then."""
    rows = store.query(
        "SELECT host, max(watermark_ns) AS watermark_ns, max(ts_ns) AS heard_ns FROM agents "
        "WHERE host IN {hosts:Array(String)} AND ts_ns >= {since:Int64} GROUP BY host",
        {"hosts": sorted(hosts), "since": since_ns},
    )
    return {row["host"]: HostReport(row["watermark_ns"], row["heard_ns"]) for row in rows.to_pylist()}


def read_facts(
    store: Store, job: JobSpan, window: Window, hosts: frozenset[str], silent: frozenset[str], ranks: int
) -> WindowFacts:
    """Return what the store knows of a job in a window; statistics where there are any, else complete transfers."""
    parameters = {"job": job.job, "attempt": job.attempt, "start": window.start_ns, "end": window.end_ns}
    pairs = store.query(_PAIRS.format(rows=_STATS), parameters)
    if pairs.num_rows == 0:
        pairs = store.query(_PAIRS.format(rows=_TRANSFERS), parameters)
    counted = store.query(_OPERATIONS, parameters)
    operations = int(counted["operations"][0].as_py() or 0)
    return WindowFacts(window, job.job, job.attempt, ranks, hosts, silent, pairs, operations)
