"""The store's claims: rows a second and core with roll-ups on, bytes a row, and the time of one delay matrix.

The telemetry is that of 1,024 ranks with jitter as measured on real hosts: enqueue within 200 us of each other, start
50 us later, end within 20 us. The rate is rows per second of CPU time over all threads, so that neighbours on the
machine do not change it; beside it, in the same process, the engine copies the same rows from memory into the same
table with the same roll-ups, which is what it can do at best. Merges are waited for and counted on both sides.
"""

import resource
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import pyarrow as pa

from analyzer.delay_matrix.reading import read_pairs
from analyzer.windows.jobs import Roster
from analyzer.windows.window import Context, Window
from benchmarks.figures import Figure, Note, clocked, fresh_store, scratch
from lockstep.arrow import fill_rows
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME

RANKS = 1_024
GPUS_PER_HOST = 8
HOSTS = RANKS // GPUS_PER_HOST
EACH_SECOND = {"func": "AllReduce", "size_class": 26, "n": 20, "bytes": 20 << 26}  # of a rank
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
    "max_block_size": 100 * RANKS,
    "preferred_block_size_bytes": 0,
    "async_insert": 0,
}


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of the store, measured in a fresh embedded one."""
    batches, size = (6, 100 * RANKS) if quick else (40, 100 * RANKS)
    with scratch() as folder, fresh_store(folder) as store:
        note(f"inserting {batches * size:,} collectives of {RANKS:,} ranks, twice")
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
    operations = size // RANKS
    now = np.float64(0)
    for number in range(batches):
        base = now + np.cumsum(random.normal(10e6, 3e5, operations))
        now = base[-1]
        enqueue = base[:, None] + random.normal(0, 200e3, (operations, RANKS))
        start = enqueue + random.exponential(50e3, enqueue.shape)
        end = start.max(1, keepdims=True) + 3e6 + random.normal(0, 20e3, enqueue.shape)
        seq = np.repeat(np.arange(operations) + number * operations, RANKS)
        ranks = np.tile(np.arange(RANKS), operations)
        timestamps = {"enqueue_ns": enqueue, "start_ns": start, "end_ns": end}
        times = {name: value.ravel().astype(np.int64) + _START_NS for name, value in timestamps.items()}
        yield ring_rows(
            "collectives",
            ranks,
            func="AllReduce",
            peer=-1,
            seq=seq,
            replay=0,
            seq_valid=True,
            captured=False,
            epoch=0,
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
    table, random = TABLE_BY_NAME["transfer_stats"], np.random.default_rng(2)
    for second in range(60):
        ts_ns = _START_NS + second * NS_PER_S
        on_wire_ns = random.normal(42e6, 1e6, (len(_JOBS), RANKS)).astype(np.int64)
        those = zip(_JOBS, on_wire_ns, strict=True)
        parts = [ring_transfers(job, np.arange(RANKS), ts_ns, wire_ns) for job, wire_ns in those]
        store.insert(table, pa.concat_tables(parts), token=f"transfers/{second}")
    store.command(f"OPTIMIZE TABLE {store.database}.transfer_stats FINAL")


def ring_transfers(job: str, ranks: np.ndarray, ts_ns: int, wire_ns: np.ndarray) -> pa.Table:
    """Return a second of transfers of some ranks, both ways on two channels: to the next rank, and the ninth."""
    waits = {"gpu_wait_ns": wire_ns // 3, "peer_wait_ns": wire_ns // 5, "transport": "ib"}
    nics = pa.array([f"eth{gpu}" for gpu in range(GPUS_PER_HOST)]).take(pa.array(ranks % GPUS_PER_HOST))
    sent = {"wire_ns": wire_ns, "wire_max_ns": wire_ns // 20}
    parts = []
    for channel, hop in ((0, 1), (1, 9)):
        for direction, sign in (("send", 1), ("recv", -1)):
            pair = {"channel": channel, "peer": (ranks + sign * hop) % RANKS, "direction": direction, "nic": nics}
            timed = sent if direction == "send" else dict.fromkeys(sent)
            parts.append(
                ring_rows("transfer_stats", ranks, job=job, ts_ns=ts_ns, **EACH_SECOND, **pair, **waits, **timed)
            )
    return pa.concat_tables(parts)


def ring_rows(table: str, ranks: np.ndarray, **columns: object) -> pa.Table:
    """Return a row of each rank, all of one communicator."""
    hosts = pa.array([host_name(number) for number in range(HOSTS)]).take(pa.array(ranks // GPUS_PER_HOST))
    known = {"host": hosts, "job": _JOB, "attempt": 0, "comm": 1, "rank": ranks}
    return fill_rows(TABLE_BY_NAME[table], len(ranks), known | columns)


def host_name(number: int) -> str:
    return f"h{number}"


def _matrix_times(store: Store) -> tuple[float, float]:
    """Return milliseconds for the analyzer's matrix of one communicator, and for merely reading its columns."""
    context = Context(_JOB, 0, _WINDOW, _WINDOW.start_ns, Roster.empty(), None)
    scan = f"SELECT sum(wire_ns), sum(bytes), uniq(rank, peer, channel) FROM transfer_stats WHERE job = '{_JOB}'"
    matrix, bare = [], []
    for _ in range(_QUERIES):
        matrix.append(1e3 * clocked(lambda: read_pairs(store, context))[1])
        bare.append(1e3 * clocked(lambda: store.query(scan))[1])
    return median(matrix), median(bare)


def _cpu_seconds(store: Store, work: Callable[[], object]) -> float:
    """Return the CPU time of all threads until the work is done and its parts are merged."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    while store.query_system("SELECT count() AS n FROM system.merges")["n"][0].as_py():
        time.sleep(0.1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
