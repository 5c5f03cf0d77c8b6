"""Where facts come from: the heavy reduction in SQL, so that rows never leave the store."""

from dataclasses import dataclass

from analyzer.facts import WindowFacts
from analyzer.windows import HostReport, Window
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store

# A connection has two ends, each reported by its own host. The sender knows the wire time; its own row or what is
# known of its connections names the NIC, and the same on the other side. Where the receiver is silent, the
# communicator still says which host it is on. CollNet and NVLS have no peer and never enter. A rank that moved to
# another host has rows from both: each counts where it was sent from, and the newest host is the one that receives.
_PAIRS = """
WITH sends AS (
    SELECT comm, rank, peer, channel, size_class, host AS src_host, max(nic) AS told_src,
           max(transport) AS carrier, sum(n) AS n_sum, sum(bytes) AS bytes_sum, sum(wire_ns) AS wire_sum
    FROM ({rows}) WHERE direction = 'send' AND wire_ns IS NOT NULL
    GROUP BY comm, rank, peer, channel, size_class, host
), receives AS (
    SELECT comm, rank, peer, channel, host AS recv_host, max(nic) AS told_dst
    FROM ({rows}) WHERE direction = 'recv'
    GROUP BY comm, rank, peer, channel, host
    ORDER BY max(moment) DESC, host LIMIT 1 BY comm, rank, peer, channel
), members AS (
    SELECT comm, rank, host AS member_host FROM comms FINAL
    WHERE job = {{job:String}} AND attempt = {{attempt:UInt16}}
), known AS (
    SELECT host AS known_host, assumeNotNull(comm) AS known_comm, assumeNotNull(rank) AS known_rank,
           assumeNotNull(peer) AS known_peer, assumeNotNull(channel) AS known_channel, direction AS side,
           argMax(nic, (confidence, seen_ns)) AS known_nic
    FROM connections
    WHERE job = {{job:String}} AND attempt = {{attempt:UInt16}} AND nic IS NOT NULL
        AND comm IS NOT NULL AND rank IS NOT NULL AND peer IS NOT NULL AND channel IS NOT NULL
    GROUP BY host, comm, rank, peer, channel, direction
)
SELECT src_host, coalesce(told_src, src_known.known_nic) AS src_nic,
       if(recv_host != '', recv_host, member_host) AS dst_host,
       coalesce(told_dst, dst_known.known_nic) AS dst_nic,
       carrier AS transport, size_class, sum(n_sum) AS transfers, sum(bytes_sum) AS bytes, sum(wire_sum) AS wire_ns
FROM sends
LEFT JOIN receives ON receives.comm = sends.comm AND receives.rank = sends.peer AND receives.peer = sends.rank
    AND receives.channel = sends.channel
LEFT JOIN members ON members.comm = sends.comm AND members.rank = sends.peer
LEFT JOIN (SELECT * FROM known WHERE side = 'send') AS src_known ON src_known.known_host = sends.src_host
    AND src_known.known_comm = sends.comm AND src_known.known_rank = sends.rank
    AND src_known.known_peer = sends.peer AND src_known.known_channel = sends.channel
LEFT JOIN (SELECT * FROM known WHERE side = 'recv') AS dst_known ON dst_known.known_host = receives.recv_host
    AND dst_known.known_comm = sends.comm AND dst_known.known_rank = sends.peer
    AND dst_known.known_peer = sends.rank AND dst_known.known_channel = sends.channel
WHERE bytes_sum > 0 AND dst_host != ''
GROUP BY src_host, src_nic, dst_host, dst_nic, transport, size_class
ORDER BY src_host, src_nic, dst_host, dst_nic, transport, size_class
"""
# Transfers are stored by their beginning, so without this bound a window would read all that a job ever sent. What
# takes longer than an hour ends by NCCL's watchdog, not by itself.
_LONGEST_NS = 3_600 * NS_PER_S
_WHOSE = "job = {job:String} AND attempt = {attempt:UInt16}"
_STATS = (
    "SELECT comm, rank, peer, channel, direction, size_class, host, nic, transport, n, bytes, wire_ns, "
    f"ts_ns AS moment FROM transfer_stats WHERE {_WHOSE} AND peer >= 0 "
    "AND ts_ns >= {start:Int64} AND ts_ns < {end:Int64}"
)
_TRANSFERS = (
    "SELECT comm, rank, peer, channel, direction, toUInt8(log2(greatest(bytes, 1))) AS size_class, host, nic, "
    f"transport, 1 AS n, bytes, wire_ns, last_ns AS moment FROM transfers WHERE {_WHOSE} AND peer >= 0 "
    f"AND last_ns >= {{start:Int64}} AND last_ns < {{end:Int64}} AND first_ns >= {{start:Int64}} - {_LONGEST_NS}"
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


@dataclass(frozen=True, slots=True)
class Members:
    """Who takes part in a job, as its communicators tell it."""

    hosts: frozenset[str]  # that spoke
    nodes: int  # hosts of the largest communicator, heard of or not
    ranks: int


def find_jobs(store: Store, since_ns: int) -> list[JobSpan]:
    """Return the jobs that finished operations since then, with the begin of their first and last second."""
    rows = store.query(
        "SELECT job, attempt, min(ts) AS first_ns, max(ts) AS last_ns FROM ("
        "SELECT job, attempt, ts_ns AS ts FROM op_stats WHERE ts_ns >= {since:Int64} UNION ALL "
        "SELECT job, attempt, ts_ns AS ts FROM transfer_stats WHERE ts_ns >= {since:Int64} UNION ALL "
        "SELECT job, attempt, last_ns AS ts FROM transfers WHERE last_ns >= {since:Int64} "
        f"AND first_ns >= {{since:Int64}} - {_LONGEST_NS}"
        ") GROUP BY job, attempt ORDER BY job, attempt",
        {"since": since_ns},
    )
    return [JobSpan(**row) for row in rows.to_pylist()]


def find_members(store: Store, job: JobSpan) -> Members:
    """Return the hosts and ranks of a job; nobody, while no communicator is known."""
    rows = store.query(
        "SELECT groupUniqArray(host) AS hosts, max(nnodes) AS nodes, max(nranks) AS ranks FROM comms FINAL "
        "WHERE job = {job:String} AND attempt = {attempt:UInt16}",
        {"job": job.job, "attempt": job.attempt},
    ).to_pylist()
    return Members(frozenset(rows[0]["hosts"]), int(rows[0]["nodes"] or 0), int(rows[0]["ranks"] or 0))


def find_reports(store: Store, hosts: frozenset[str], since_ns: int) -> dict[str, HostReport]:
    """Return the newest heartbeat of each host that sent one since then."""
    rows = store.query(
        "SELECT host, max(watermark_ns) AS watermark_ns, max(ts_ns) AS heard_ns FROM agents "
        "WHERE host IN {hosts:Array(String)} AND ts_ns >= {since:Int64} GROUP BY host",
        {"hosts": sorted(hosts), "since": since_ns},
    )
    return {row["host"]: HostReport(row["watermark_ns"], row["heard_ns"]) for row in rows.to_pylist()}


def read_facts(store: Store, job: JobSpan, window: Window, members: Members, silent: frozenset[str]) -> WindowFacts:
    """Return what the store knows of a job in a window; statistics where there are any, else complete transfers."""
    parameters = {"job": job.job, "attempt": job.attempt, "start": window.start_ns, "end": window.end_ns}
    pairs = store.query(_PAIRS.format(rows=_STATS), parameters)
    if pairs.num_rows == 0:
        pairs = store.query(_PAIRS.format(rows=_TRANSFERS), parameters)
    counted = store.query(_OPERATIONS, parameters)
    operations = int(counted["operations"][0].as_py() or 0)
    return WindowFacts(
        window, job.job, job.attempt, members.ranks, members.hosts, silent, pairs, operations, members.nodes
    )
