"""Telemetry for the API's benchmark: a job of 1,024 ranks on 128 hosts among others, second by second.

Every rank sends on two channels to its neighbours; `fill` puts as many seconds into the store as rows are wanted,
up to now, and `host_second` is what the collector of one host sends every second after that.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa

from benchmarks.figures import Note
from lockstep.arrow import fill_rows
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME

RANKS, GPUS_PER_HOST = 1_024, 8
HOSTS = RANKS // GPUS_PER_HOST
JOB = "bench"
_JOBS = (JOB, "other1", "other2", "other3")
_SECONDS_PER_INSERT = 10
_COMM = 1


def host_name(number: int) -> str:
    return f"n{number}"


def fill(store: Store, rows: int, now_ns: int, note: Note) -> int:
    """Put about so many rows into the store, complete up to now, and return how many."""
    per_second: int = sum(table.num_rows for job in _JOBS for table in _second(job, range(RANKS), 0).values())
    seconds = max(rows // per_second, _SECONDS_PER_INSERT)
    note(f"filling the store with {seconds * per_second:,} rows: {seconds} s of {len(_JOBS)} jobs of {RANKS:,} ranks")
    end_ns = now_ns // NS_PER_S * NS_PER_S
    for job in _JOBS:
        store.insert(TABLE_BY_NAME["comms"], _comms(job, end_ns - seconds * NS_PER_S), token=f"comms/{job}")
    for first in range(0, seconds, _SECONDS_PER_INSERT):
        _insert(store, [end_ns - (seconds - second) * NS_PER_S for second in range(first, min(first + 10, seconds))])
    return seconds * per_second


def host_second(host: int, ts_ns: int) -> dict[str, pa.Table]:
    """Return what one host sends of a second of the job, with its heartbeat."""
    ranks = range(host * GPUS_PER_HOST, (host + 1) * GPUS_PER_HOST)
    return {**_second(JOB, ranks, ts_ns), "agents": heartbeats([host], ts_ns + NS_PER_S)}


def heartbeats(hosts: list[int], ts_ns: int) -> pa.Table:
    columns = {
        "host": pa.array([host_name(host) for host in hosts]),
        "ts_ns": ts_ns,
        "version": "bench",
        "watermark_ns": ts_ns,
        "dropped": 0,
        "spool_bytes": 0,
        "cpu_ns": 0,
    }
    return fill_rows(TABLE_BY_NAME["agents"], len(hosts), columns)


def _insert(store: Store, moments: list[int]) -> None:
    for name in ("transfer_stats", "op_stats"):
        parts = [_second(job, range(RANKS), ts_ns)[name] for job in _JOBS for ts_ns in moments]
        store.insert(TABLE_BY_NAME[name], pa.concat_tables(parts), token=f"{name}/{moments[0]}")
    beats = [heartbeats(list(range(HOSTS)), ts_ns + NS_PER_S) for ts_ns in moments]
    store.insert(TABLE_BY_NAME["agents"], pa.concat_tables(beats), token=f"agents/{moments[0]}")


def _comms(job: str, init_ns: int) -> pa.Table:
    ranks = np.arange(RANKS)
    return _rows(
        "comms",
        job,
        ranks,
        name="world",
        rank=ranks,
        nranks=RANKS,
        nnodes=HOSTS,
        world_rank=ranks,
        gpu=ranks % GPUS_PER_HOST,
        plugin_version="bench",
        detail="steps",
        init_ns=init_ns,
    )


def _second(job: str, ranks: range, ts_ns: int) -> dict[str, pa.Table]:
    """Return a second of some ranks: statistics of their transfers, both ways, and of their operations."""
    return {
        "transfer_stats": pa.concat_tables(list(_transfers(job, np.arange(ranks.start, ranks.stop), ts_ns))),
        "op_stats": _operations(job, np.arange(ranks.start, ranks.stop), ts_ns),
    }


def _transfers(job: str, ranks: np.ndarray, ts_ns: int) -> Iterator[pa.Table]:
    wire_ns = _noise(len(ranks))
    for channel, hop in ((0, 1), (1, 9)):
        for direction, way in (("send", 1), ("recv", -1)):
            is_send = direction == "send"
            yield _rows(
                "transfer_stats",
                job,
                ranks,
                func="AllReduce",
                size_class=26,
                rank=ranks,
                channel=channel,
                peer=(ranks + way * hop) % RANKS,
                direction=direction,
                ts_ns=ts_ns,
                transport="ib",
                nic="eth0",
                n=20,
                bytes=20 << 26,
                gpu_wait_ns=wire_ns // 3,
                peer_wait_ns=wire_ns // 5,
                wire_ns=wire_ns if is_send else None,
                wire_max_ns=wire_ns // 20 if is_send else None,
            )


def _operations(job: str, ranks: np.ndarray, ts_ns: int) -> pa.Table:
    lasted_ns = _noise(len(ranks))
    return _rows(
        "op_stats",
        job,
        ranks,
        func="AllReduce",
        size_class=26,
        rank=ranks,
        ts_ns=ts_ns,
        n=20,
        bytes=20 << 26,
        dur_sum_ns=lasted_ns,
        dur_max_ns=lasted_ns // 10,
        gap_sum_ns=lasted_ns // 2,
        late_n=0,
    )


@lru_cache
def _noise(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(42e6, 1e6, count).astype(np.int64)


def _rows(table: str, job: str, ranks: np.ndarray, **columns: object) -> pa.Table:
    hosts = pa.array([host_name(rank // GPUS_PER_HOST) for rank in ranks.tolist()])
    known = {"host": hosts, "job": job, "attempt": 0, "comm": _COMM}
    return fill_rows(TABLE_BY_NAME[table], len(ranks), known | columns)
