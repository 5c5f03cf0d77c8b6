"""Probes by the way they took: how many were sent, lost and late on each.

A probe is late when its round trip is far above what is usual for as many hops. What is usual is the median over all
probes, so that it stands as long as fewer than half of them are slow.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.windows import Window
from lockstep.store.store import Store

JOIN = ">"  # between the hops of a route; no node's name may hold it, or it would be two
_LATE_TIMES = 1.5  # a queue may double what the path takes, so less would find nothing but load
_LATE_SIGMAS = 6.0  # of the spread between probes: one in 10^9, if round trips were normal
_MAD_TO_SIGMA = 1.4826  # for normally distributed round trips
_PRIME = np.uint64(0x9E3779B97F4A7C15)  # odd and without a pattern, as multipliers of hashes should be
_KEYS = ("host", "src_nic", "dst", "dst_nic", "route")

_USUAL = """
SELECT length(hops) AS hop_count, quantileExact(0.5)(rtt_ns) AS middle_ns,
       quantileExact(0.75)(rtt_ns) - quantileExact(0.25)(rtt_ns) AS between_ns
FROM probes WHERE rtt_ns IS NOT NULL AND ts_ns >= {start:Int64} AND ts_ns < {end:Int64} GROUP BY hop_count
"""
_FLOWS = """
SELECT host, src_nic, dst, dst_nic, arrayStringConcat(hops, '>') AS route, count() AS sent,
       countIf(rtt_ns IS NULL) AS lost,
       countIf(rtt_ns > transform(length(hops), {counts:Array(UInt64)}, {limits:Array(Float64)}, inf)) AS late
FROM probes WHERE ts_ns >= {start:Int64} AND ts_ns < {end:Int64}
GROUP BY host, src_nic, dst, dst_nic, route ORDER BY host, src_nic, dst, dst_nic, route
"""


@dataclass(frozen=True)
class Flows:
    """One row per way that probes took, in parallel arrays."""

    keys: pa.Table  # host, src_nic, dst, dst_nic, route (node ids joined; empty: unknown)
    sent: np.ndarray
    lost: np.ndarray
    late: np.ndarray  # of those that were answered

    def __len__(self) -> int:
        return len(self.sent)


def read_flows(store: Store, window: Window) -> Flows:
    """Return the probes that were sent in a stretch of time."""
    span = {"start": window.start_ns, "end": window.end_ns}
    usual = store.query(_USUAL, span)
    middle, between = (_numbers(usual[name]) for name in ("middle_ns", "between_ns"))
    limits = _limits(middle, between / 2)  # half of what lies between the quartiles is the median deviation
    counts = usual["hop_count"].to_pylist()
    rows = store.query(_FLOWS, {**span, "counts": counts or [0], "limits": limits.tolist() or [np.inf]})
    return _flows(rows)


def group_probes(probes: pa.Table) -> Flows:
    """Return probes that are in memory, rows of the table `probes`, by the way they took."""
    hops = probes["hops"].combine_chunks()
    length = np.asarray(pc.fill_null(pc.list_value_length(hops), 0))
    rtt = _numbers(probes["rtt_ns"], np.nan)
    late = rtt > _usual_limits(length, rtt)  # what was lost is not late
    _, first, flow = np.unique(_hashes(probes, length), return_index=True, return_inverse=True)
    some = probes.take(pa.array(first))
    route = pc.fill_null(pc.binary_join(some["hops"].combine_chunks().cast(pa.list_(pa.string())), JOIN), "")
    return Flows(
        keys=some.select(list(_KEYS[:-1])).append_column("route", route),
        sent=np.bincount(flow, minlength=len(first)).astype(np.float64),
        lost=np.bincount(flow, weights=np.isnan(rtt), minlength=len(first)),
        late=np.bincount(flow, weights=late, minlength=len(first)),
    )


def _hashes(probes: pa.Table, length: np.ndarray) -> np.ndarray:
    """Return a number for each probe, the same for the same ends and hops; two ways share one in 10^10 tables."""
    mixed = np.zeros(probes.num_rows, np.uint64)
    for name in _KEYS[:-1]:
        mixed = mixed * _PRIME + _codes(probes[name].combine_chunks())
    nodes = _codes(pc.list_flatten(probes["hops"].combine_chunks()))
    begin = np.cumsum(length) - length
    for place in range(int(length.max(initial=0))):
        there = length > place
        mixed[there] = (mixed[there] ^ (nodes[begin[there] + place] + np.uint64(1))) * _PRIME
        mixed[there] ^= mixed[there] >> np.uint64(29)
    return mixed


def _codes(texts: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(texts.dictionary_encode().indices, 0)).astype(np.uint64)


def _flows(rows: pa.Table) -> Flows:
    sent, lost, late = (_numbers(rows[name]) for name in ("sent", "lost", "late"))
    return Flows(rows.select(list(_KEYS)), sent, lost, late)


def _usual_limits(length: np.ndarray, rtt: np.ndarray) -> np.ndarray:
    """Return from which round trip on each probe is late, by the number of its hops."""
    limits = np.full(len(rtt), np.inf)
    for count in np.unique(length).tolist():
        mine = length == count
        answered = rtt[mine & ~np.isnan(rtt)]
        if len(answered):
            middle = np.median(answered)
            limits[mine] = _limits(middle, np.median(np.abs(answered - middle)))
    return limits


def _limits(middle: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    return np.maximum(_LATE_TIMES * middle, middle + _LATE_SIGMAS * _MAD_TO_SIGMA * deviation)


def _numbers(column: pa.ChunkedArray, missing: float = 0.0) -> np.ndarray:
    return np.asarray(pc.fill_null(column.cast(pa.float64()), missing))
