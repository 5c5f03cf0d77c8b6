"""The store's claims: rows a second and core with roll-ups on, bytes a row, and the time of one delay matrix.

The telemetry is that of 1,024 ranks with jitter as measured on real hosts: enqueue within 200 us of each other, start
50 us later, end within 20 us. The rate is rows per second of CPU time over all threads, so that neighbours on the
machine do not change it; beside it, in the same process, the engine copies the same rows from memory into the same
table with the same roll-ups, which is what it can do at best. Merges are waited for and counted on both sides.
"""

import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import pyarrow as pa

from analyzer.delay_matrix.reading import read_pairs
from analyzer.windows.jobs import Roster
from analyzer.windows.window import Context, Window
from benchmarks.figures import Figure, Note, clocked
from lockstep.arrow import fill_rows
from lockstep.clock import NS_PER_S
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME

_RANKS = 1_024
_GPUS_PER_HOST = 8
_START_NS = 1_700_000_000 * NS_PER_S
_JOB = "bench"
_JOBS = (_JOB, "other1", "other2", "other3")
_WINDOW = Window(_START_NS, _START_NS + 60 * NS_PER_S)
_QUERIES = 15
# One thread, and every block a part of its own, as our inserts are.
_IN_BLOCKS = {
    "max_threads": 1,
    "max_insert_threads": 1,
    "min_insert_block_size_rows": 0,
    "min_insert_block_size_bytes": 0,
    "max_block_size": 100 * _RANKS,
    "preferred_block_size_bytes": 0,
    "async_insert": 0,
}


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of the store, measured in a fresh embedded one."""
    batches, size = (6, 100 * _RANKS) if quick else (40, 100 * _RANKS)
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder, open_store(f"chdb://{folder}") as store:
        migrate(store, Layout(store.database), now_ns=1)
        note(f"inserting {batches * size:,} collectives of {_RANKS:,} ranks, twice")
        ours, engine = _insert_rates(store, batches, size)
        note("merging, to see what a row takes on disk")
        row_bytes, rollup_bytes = _bytes_per_row(store, batches * size)
        note("filling a minute of transfers for the matrix")
        _fill_transfers(store)
        matrix_ms, scan_ms = _matrix_times(store)
    return (
        Figure(
            "insert rate with roll-ups", ours, "rows/s per core", 150_000, 0.6 * engine, True, f"engine {engine:,.0f}"
        ),
        Figure("share of the engine's own rate", 100 * ours / engine, "%", None, 60),
        Figure("a collective row on disk", row_bytes, "bytes", 14, 10, False, "three times with jitter need 7"),
        Figure("its roll-up on disk", rollup_bytes, "bytes per row"),
        Figure("matrix of 1,024 ranks over 60 s", matrix_ms, "ms", 200, 50, False, f"bare scan {scan_ms:.1f} ms"),
    )


def _insert_rates(store: Store, batches: int, size: int) -> tuple[float, float]:
    """Return rows per CPU second, merges included, of our inserts and of the engine copying the same rows."""
    table, database = TABLE_BY_NAME["collectives"], store.database
    telemetry = list(_collectives(batches, size))

    def insert_ours() -> None:
        for number, rows in enumerate(telemetry):
            store.insert(table, rows, token=f"ours/{number}")

    ours = _cpu_seconds(store, insert_ours)
    store.command(f"CREATE TABLE {database}.staged AS {database}.collectives ENGINE = Memory")
    store.command(f"INSERT INTO {database}.staged SELECT * FROM {database}.collectives", _IN_BLOCKS)
    for emptied in ("collectives", "operations"):  # so that both begin with nothing to merge into
        store.command(f"TRUNCATE TABLE {database}.{emptied}")
    copy = f"INSERT INTO {database}.collectives SELECT * FROM {database}.staged"
    engine = _cpu_seconds(store, lambda: store.command(copy, _IN_BLOCKS))
    store.command(f"DROP TABLE {database}.staged")
    return batches * size / ours, batches * size / engine


def _collectives(batches: int, size: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(1)
    operations = size // _RANKS
    now = np.float64(0)
    for number in range(batches):
        base = now + np.cumsum(random.normal(10e6, 3e5, operations))
        now = base[-1]
        enqueue = base[:, None] + random.normal(0, 200e3, (operations, _RANKS))
        start = enqueue + random.exponential(50e3, enqueue.shape)
        end = start.max(1, keepdims=True) + 3e6 + random.normal(0, 20e3, enqueue.shape)
        seq = np.repeat(np.arange(operations) + number * operations, _RANKS)
        ranks = np.tile(np.arange(_RANKS), operations)
        timestamps = {"enqueue_ns": enqueue, "start_ns": start, "end_ns": end}
        times = {name: value.ravel().astype(np.int64) + _START_NS for name, value in timestamps.items()}
        yield _rows(
            "collectives",
            ranks,
            func="AllReduce",
            peer=-1,
            seq=seq,
            replay=0,
            seq_valid=True,
            captured=False,
            epoch=0,
            rank=ranks,
            algo="RING",
            proto="SIMPLE",
            dtype="ncclBfloat16",
            bytes=np.array([4 << 20, 64 << 20])[seq % 2],
            channels=8,
            clock="gpu",
            **times,
        )


def _bytes_per_row(store: Store, rows: int) -> tuple[float, float]:
    """Return bytes per collective row after merging, raw and rolled up."""
    for table in ("collectives", "operations"):
        store.command(f"OPTIMIZE TABLE {store.database}.{table} FINAL")
    sizes = store.query_system(
        "SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts WHERE active AND database = {db:String} "
        "AND table IN ('collectives', 'operations') GROUP BY table",
        {"db": store.database},
    )
    by_table = {row["table"]: row["bytes"] for row in sizes.to_pylist()}
    return by_table["collectives"] / rows, by_table["operations"] / rows


def _fill_transfers(store: Store) -> None:
    """Store a minute of a 1,024-rank communicator on two channels, both sides, among three other jobs as large."""
    table = TABLE_BY_NAME["transfer_stats"]
    for second in range(60):
        parts = [_transfer_second(second, job, side) for job in _JOBS for side in ("send", "recv")]
        store.insert(table, pa.concat_tables(parts), token=f"transfers/{second}")
    store.command(f"OPTIMIZE TABLE {store.database}.transfer_stats FINAL")


def _transfer_second(second: int, job: str, side: str) -> pa.Table:
    random = np.random.default_rng([second, _JOBS.index(job), side == "send"])
    ranks = np.tile(np.arange(_RANKS), 2)
    channel = np.repeat([0, 1], _RANKS)
    step = np.where(channel == 0, 1, 9) * (1 if side == "send" else -1)
    pair = random.normal(42e6, 1e6, len(ranks)).astype(np.int64)
    return _rows(
        "transfer_stats",
        ranks,
        job=job,
        func="AllReduce",
        size_class=26,
        rank=ranks,
        channel=channel,
        peer=(ranks + step) % _RANKS,
        direction=side,
        ts_ns=_START_NS + second * NS_PER_S,
        transport="ib",
        nic=pa.array([f"eth{gpu}" for gpu in range(_GPUS_PER_HOST)]).take(pa.array(ranks % _GPUS_PER_HOST)),
        n=20,
        bytes=20 << 26,
        gpu_wait_ns=pair // 3,
        peer_wait_ns=pair // 5,
        wire_ns=pair if side == "send" else None,
        wire_max_ns=pair // 20 if side == "send" else None,
    )


def _matrix_times(store: Store) -> tuple[float, float]:
    """Return milliseconds for the analyzer's matrix of one communicator, and for merely reading its columns."""
    context = Context(_JOB, 0, _WINDOW, _WINDOW.start_ns, Roster.empty(), None)
    scan = f"SELECT sum(wire_ns), sum(bytes), uniq(rank, peer, channel) FROM transfer_stats WHERE job = '{_JOB}'"
    matrix, bare = [], []
    for _ in range(_QUERIES):
        matrix.append(1e3 * clocked(lambda: read_pairs(store, context))[1])
        bare.append(1e3 * clocked(lambda: store.query(scan))[1])
    return median(matrix), median(bare)


def _rows(name: str, ranks: np.ndarray, **columns: object) -> pa.Table:
    hosts = pa.array([f"h{number}" for number in range(_RANKS // _GPUS_PER_HOST)])
    where = hosts.take(pa.array(ranks // _GPUS_PER_HOST))
    return fill_rows(TABLE_BY_NAME[name], len(ranks), {"host": where, "job": _JOB, "attempt": 0, "comm": 1} | columns)


def _cpu_seconds(store: Store, work: Callable[[], object]) -> float:
    """Return the CPU time of all threads until the work is done and its parts are merged."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    while store.query_system("SELECT count() AS n FROM system.merges")["n"][0].as_py():
        time.sleep(0.1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
