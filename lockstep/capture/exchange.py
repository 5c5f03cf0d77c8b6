"""Captures and stores: load one into the other, export a stretch of time as a capture."""

import hashlib
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from lockstep.arrow import conform
from lockstep.capture.files import Capture, CaptureInfo, CaptureWriter
from lockstep.errors import NotPresent
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME, TABLES, Table, columns_of
from lockstep.topology import Topology
from lockstep.verdict import Verdict

_ROWS_PER_INSERT = 500_000  # below the engine's block size, so that each insert is one block
_SLICE_NS = 60_000_000_000  # a minute at a time bounds the memory of an export
_INVENTORIES = frozenset({"comms", "connections", "paths", "transits"})  # what held, not when it was seen

# The list of jobs is kept by inserts of communicators and statistics, which many captures lack.
_ADD_ATTEMPTS = """
INSERT INTO {0}.attempts (job, attempt, ranks, first_ns, last_ns)
SELECT job, attempt, max(ranks), min(first), max(last) FROM (
    SELECT job, attempt, toUInt64(world_rank) + 1 AS ranks, start_ns AS first, end_ns AS last
    FROM {0}.steps WHERE job = {{job:String}}
    UNION ALL
    SELECT job, attempt, 0, enqueue_ns, ifNull(end_ns, enqueue_ns) FROM {0}.collectives WHERE job = {{job:String}}
) GROUP BY job, attempt
"""


def load_capture(store: Store, capture: Capture, watch: Callable[[int, int], None] = lambda done, due: None) -> int:
    """Put all rows of a capture into a store and return how many; `watch` is called with rows done and rows in all.

    The same capture again changes nothing while the store remembers it: for DEDUPLICATION_BLOCKS inserts.
    """
    due: int = sum(rows.num_rows for rows in capture.tables.values())
    done = 0
    for name, rows in capture.tables.items():
        digest = _digest(rows)
        for number, begin in enumerate(range(0, rows.num_rows, _ROWS_PER_INSERT)):
            part = rows.slice(begin, _ROWS_PER_INSERT)
            store.insert(TABLE_BY_NAME[name], part, token=f"capture/{name}/{digest}/{number}")
            done += part.num_rows
            watch(done, due)
    store.command(_ADD_ATTEMPTS.format(store.database), parameters={"job": capture.info.job})
    return due


def export_capture(
    store: Store,
    writer: CaptureWriter,
    job: str,
    start_ns: int,
    end_ns: int,
    topology: Topology | None,
    verdicts: Sequence[Verdict] | None = None,
) -> CaptureInfo:
    """Write what the store knows of a job from start to end, end excluded; raise NotPresent when that is nothing.

    Verdicts go with it where they are given, so that an incident can be judged anew and compared.
    """
    hosts = _hosts_of(store, job, start_ns, end_ns)
    if not hosts:
        raise NotPresent(f"the store knows no job {job!r}")
    for table in TABLES:
        for rows in _stretch(store, table, job, hosts, start_ns, end_ns):
            writer.write(table, conform(table, rows))
    info = CaptureInfo(job=job, start_ns=start_ns, end_ns=end_ns, hosts=hosts)
    writer.finish(info, topology, verdicts)
    return info


def _hosts_of(store: Store, job: str, start_ns: int, end_ns: int) -> tuple[str, ...]:
    """Return every host with rows of the job; not from communicators alone, which many captures lack."""
    selects = (
        f"SELECT host FROM {table.name} WHERE job = {{job:String}}"
        + ("" if table.name in _INVENTORIES else f" AND {_window(table)}")
        for table in TABLES
        if table.has_job
    )
    sql = f"SELECT DISTINCT host FROM ({' UNION ALL '.join(selects)}) ORDER BY host"
    rows = store.query(sql, {"job": job, "begin": start_ns, "end": end_ns})
    return tuple(rows["host"].to_pylist())


def _stretch(
    store: Store, table: Table, job: str, hosts: tuple[str, ...], start_ns: int, end_ns: int
) -> Iterator[pa.Table]:
    whose = _whose(table)
    final = " FINAL" if table.name == "comms" else ""
    select = f"SELECT {', '.join(columns_of(table))} FROM {table.name}{final} WHERE {whose}"
    parameters = {"job": job} if table.has_job else {"hosts": list(hosts)}
    if table.name in _INVENTORIES:
        yield store.query(select, parameters)
        return
    # Slices that have rows: a day of a quiet table is one question then, and not a thousand.
    slices = f"SELECT DISTINCT intDiv({table.time}, {_SLICE_NS}) AS number FROM {table.name} WHERE {whose}"
    span = parameters | {"begin": start_ns, "end": end_ns}
    for number in store.query(f"{slices} AND {_window(table)} ORDER BY number", span)["number"].to_pylist():
        begin, end = max(start_ns, number * _SLICE_NS), min(end_ns, (number + 1) * _SLICE_NS)
        window = parameters | {"begin": begin, "end": end}
        yield store.query(f"{select} AND {_window(table)} ORDER BY {table.time}", window)


def _whose(table: Table) -> str:
    """Return which rows concern the job; those of switches are made by whoever asked the switch, so all of them."""
    if table.name == "fabric_counters":
        return "true"
    return "job = {job:String}" if table.has_job else "host IN {hosts:Array(String)}"


def _window(table: Table) -> str:
    return f"{table.time} >= {{begin:Int64}} AND {table.time} < {{end:Int64}}"


def _digest(rows: pa.Table) -> str:
    sink = hashlib.sha256()
    for batch in rows.combine_chunks().to_batches():
        sink.update(batch.serialize())
    return sink.hexdigest()[:32]
