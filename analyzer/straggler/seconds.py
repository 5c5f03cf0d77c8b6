"""What each rank took for itself in a second, where only some operations are known one by one, but all are summed."""

from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.delay_matrix.delays import median_of
from analyzer.straggler.excess import FEWEST_STRETCHES
from analyzer.straggler.kernels import mix
from analyzer.straggler.operations import Operations, integers, processes_of
from analyzer.straggler.roles import find_roles
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import WHOSE

_UNEVEN = 1.25  # times as many operations as another rank in a second, and one more: lost rows
_MOST_LINKS = 0.9  # of those between all hosts of an exchange: rows may be lost

# Gaps of `op_stats` are counted inside one communicator, so what a rank did not spend in operations of any of them
# stands for its own time. Sends and receives overlap, so that durations do not add up. In a pipeline only those can
# be compared that wait for the same neighbours, which are as far along in it. In an exchange a rank is in all of its
# sends and receives at once, and waits for a late one in those to it alone. What is sent out waits for who comes
# late, and what comes back does not: of two one is as long as the longest of a second, and one as the mean.
_SECONDS = f"""
SELECT /*ask,*/ comm, rank, ts_ns, sum(op_stats.n) AS n, sum(dur_sum_ns) AS dur_ns,
       sumIf(op_stats.n, func IN ('Send', 'Recv')) AS pair_n,
       sumIf(dur_sum_ns, func IN ('Send', 'Recv')) AS pair_dur_ns,
       maxIf(dur_max_ns, func IN ('Send', 'Recv')) AS pair_max_ns
FROM op_stats WHERE {WHOSE} AND ts_ns >= {{first:Int64}} AND ts_ns < {{last:Int64}}
GROUP BY /*ask,*/ comm, rank, ts_ns
"""
# Who sends to whom in pipelines.
_LINKS = f"""
SELECT DISTINCT /*ask,*/ comm, rank, peer, direction = 'send' AS sends FROM transfer_stats
WHERE {WHOSE} AND func IN ('Send', 'Recv') AND peer >= 0 AND ts_ns >= {{first:Int64}} AND ts_ns < {{last:Int64}}
"""
# How long operations lay enqueued before they began, in the mean of those that were sampled.
_LEADS = f"""
SELECT /*ask,*/ comm, rank, avg(greatest(assumeNotNull(start_ns) - enqueue_ns, 0)) AS lead_ns
FROM collectives WHERE {WHOSE} AND start_ns IS NOT NULL AND enqueue_ns >= {{start:Int64}} - {{before:Int64}}
    AND enqueue_ns < {{end:Int64}} AND end_ns >= {{start:Int64}} AND end_ns < {{end:Int64}}
GROUP BY /*ask,*/ comm, rank
"""


def read_seconds(store: Store, context: Context, asked: dict[str, Any]) -> Operations:
    """Return a row per process and second whose gap is what it spent outside of operations.

    In less than a step not all do the same, so seconds are joined until one fits in: whole ones up to the end of the
    window, and as many as tell what lasts from what happened once.
    """
    long_ns = -(-(context.period_ns or 1) // NS_PER_S) * NS_PER_S
    times = max((asked["last"] - asked["first"]) // long_ns, FEWEST_STRETCHES)
    asked = asked | {"first": asked["last"] - times * long_ns}
    rows = store.query(_SECONDS, asked)
    process, pair_n, pair_ns = processes_of(rows, context), integers(rows, "pair_n"), integers(rows, "pair_dur_ns")
    lead_ns = _mean_leads(rows, process, store.query(_LEADS, asked), context)
    links = store.query(_LINKS, asked) if pair_n.any() else None
    exchanged = count_exchanges(integers(rows, "comm"), integers(rows, "rank"), process, pair_n)
    if links is not None:
        exchanged = np.where(_is_between_all(rows, process, links, context), exchanged, np.nan)
    is_exchange = exchanged > 0
    exchanges = np.unique(integers(rows, "comm")[is_exchange])
    stage = _find_stages(links, exchanges, context) if links is not None else np.zeros(len(context.roster), np.uint64)
    exchange_ns = (integers(rows, "pair_max_ns") + pair_ns / np.maximum(pair_n, 1)) / 2
    dur_ns = integers(rows, "dur_ns") + np.where(is_exchange, exchanged * exchange_ns - pair_ns, 0.0)
    n = np.where(is_exchange, 0, integers(rows, "n"))  # some of its operations end a second later
    overlaps = (pair_n > 0) & ~is_exchange
    ts_ns = asked["first"] + (integers(rows, "ts_ns") - asked["first"]) // long_ns * long_ns
    return sum_seconds(process, ts_ns, n, dur_ns, overlaps, lead_ns, stage, long_ns)


def count_exchanges(comm: np.ndarray, rank: np.ndarray, process: np.ndarray, pair_n: np.ndarray) -> np.ndarray:
    """Return how often each row's rank exchanged something with all others of its communicator; NaN in pipelines.

    In an exchange all do the same; of two ranks nobody can say whether they are one.

    >>> two = np.array([7, 7, 7, 8, 8]), np.array([0, 1, 2, 0, 1])
    >>> count_exchanges(*two, np.arange(5), np.array([8, 8, 8, 3, 3])).tolist()
    [2.0, 2.0, 2.0, nan, nan]
    """
    comms, index = np.unique(comm, return_inverse=True)
    last = np.zeros(len(comms), np.int64)
    np.maximum.at(last, index, rank)
    seats, seat = np.unique(index * (int(last.max(initial=0)) + 1) + rank, return_inverse=True)
    done = np.bincount(seat, weights=pair_n, minlength=len(seats))[seat]
    most, least = np.zeros(len(comms)), np.full(len(comms), np.inf)
    np.maximum.at(most, index, done)
    np.minimum.at(least, index, done)
    others = 2 * last  # it sends to and receives from each
    is_even = (last > 1) & (most <= _UNEVEN * least + others)
    times: np.ndarray = np.where(is_even[index] & (process >= 0), pair_n / np.maximum(others, 1)[index], np.nan)
    return times


def _is_between_all(rows: pa.Table, process: np.ndarray, links: pa.Table, context: Context) -> np.ndarray:
    """Return for each row whether bytes go between all hosts of its communicator, as far as any do."""
    comms, index = np.unique(integers(rows, "comm"), return_inverse=True)
    _, host = np.unique(context.roster.host_of.astype(str), return_inverse=True)
    processes, hosts = len(host), int(host.max(initial=0)) + 1
    inside_of, who = np.divmod(np.unique((index * processes + process)[process >= 0]), max(processes, 1))
    together, count = np.unique(inside_of * hosts + host[who], return_counts=True)
    same_host = np.bincount(together // hosts, weights=count**2, minlength=len(comms))
    wanted = np.bincount(inside_of, minlength=len(comms)) ** 2 - same_host
    of = np.searchsorted(comms, integers(links, "comm"))
    of = np.where(of < len(comms), of, 0)
    mine = (integers(links, "sends") > 0) & (comms[of] == integers(links, "comm"))
    found = np.bincount(of[mine], minlength=len(comms))
    is_all: np.ndarray = ((found == 0) | (found >= _MOST_LINKS * wanted))[index]
    return is_all


def _find_stages(links: pa.Table, exchanges: np.ndarray, context: Context) -> np.ndarray:
    """Return a number per process, equal for those at the same place of their pipelines, 0 where it is not known."""
    rank, peer, sends = (integers(links, name) for name in ("rank", "peer", "sends"))
    process, comm = processes_of(links, context), links["comm"].to_numpy().astype(np.uint64)
    told = (process >= 0) & ~np.isin(comm.view(np.int64), exchanges)
    roles = find_roles(process[told], comm[told], rank[told], peer[told], sends[told] > 0, len(context.roster))
    return roles.role_of


def sum_seconds(
    process: np.ndarray,
    ts_ns: np.ndarray,
    n: np.ndarray,
    dur_ns: np.ndarray,
    overlaps: np.ndarray,
    lead_ns: np.ndarray,
    stage: np.ndarray,
    long_ns: int = NS_PER_S,
) -> Operations:
    """Return a row per process and time of so long; without those whose operations overlap at an unknown place."""
    mixed = np.zeros(len(lead_ns), bool)
    mixed[process[overlaps & (process >= 0)]] = True
    kept = (process >= 0) & ~(mixed & (stage == 0))[process]
    seconds, second = np.unique(ts_ns[kept], return_inverse=True)
    pairs, index = np.unique(process[kept] * len(seconds) + second.reshape(-1), return_inverse=True)
    count, busy = (
        np.bincount(index.reshape(-1), weights=column[kept], minlength=len(pairs)) for column in (n, dur_ns)
    )
    rows = len(pairs)
    who, when = np.divmod(pairs, max(len(seconds), 1))
    # Who comes late, or by another clock, ends the last operations of a second in the next one; they took about as
    # long as its others. Where many are missing, rows are lost.
    usual = median_of(count, when)
    is_alike = np.maximum(usual, count) <= _UNEVEN * np.minimum(usual, count) + 1
    done = np.where(is_alike & ~mixed[who], usual, count)
    # An operation may have begun in the second before: only differences mean something.
    own_ns = long_ns - busy * np.divide(done, count, out=np.ones(rows), where=count > 0)
    return Operations(
        process=who,
        comm=np.zeros(rows, np.uint64),
        rank=who,
        func=np.where(mixed, stage, np.uint64(0))[who],
        sends=np.zeros(rows, np.bool_),
        peer=np.full(rows, -1),
        seq=seconds[when],
        replay=np.zeros(rows, np.int64),
        size=np.where(mixed[who], 0, done).astype(np.int64),  # of many small ones, some end a second later
        start_ns=seconds[when],
        dur_ns=busy,
        gap_ns=own_ns,
        gpu_ns=lead_ns[who] * done if rows else own_ns,  # as above, only differences
    )


def _mean_leads(rows: pa.Table, process: np.ndarray, leads: pa.Table, context: Context) -> np.ndarray:
    """Return the mean lead of each process, NaN where a communicator in which it did something has no sample.

    Its delay may lie before just those operations.
    """
    told = processes_of(leads, context)
    known = told >= 0
    values = leads["lead_ns"].to_numpy()[known]
    sums, counts = (np.bincount(told[known], weights, len(context.roster)) for weights in (values, None))
    sampled = np.isin(mix(integers(rows, "comm"), process), mix(integers(leads, "comm"), told))
    means: np.ndarray = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    means[process[~sampled & (process >= 0)]] = np.nan
    return means
