"""Captures and stores: load one into the other, export a stretch of time as a capture."""

import hashlib
from collections.abc import Iterator

import pyarrow as pa

from lockstep.arrow import conform
from lockstep.capture.contents import Capture, CaptureInfo
from lockstep.capture.writing import CaptureWriter
from lockstep.errors import NotPresent
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME, TABLES, Table, columns_of
from lockstep.topology import Topology

_ROWS_PER_INSERT = 500_000  # below the engine's block size, so that each insert is one block
_SLICE_NS = 60_000_000_000  # a minute at a time bounds the memory of an export


def load_capture(store: Store, capture: Capture) -> int:
    """Put all rows of a capture into a store and return how many; the same capture again changes nothing."""
    for name, rows in capture.tables.items():
        digest = _digest(rows)
        for number, part in enumerate(_parts(rows)):
            store.insert(TABLE_BY_NAME[name], part, token=f"capture/{name}/{digest}/{number}")
    return sum(rows.num_rows for rows in capture.tables.values())


def export_capture(
    store: Store, writer: CaptureWriter, job: str, start_ns: int, end_ns: int, topology: Topology | None
) -> CaptureInfo:
    """Write what the store knows of a job from start to end, end excluded; raise NotPresent when that is nothing."""
    hosts = _hosts_of(store, job)
    if not hosts:
        raise NotPresent(f"the store knows no job {job!r}")
    for table in TABLES:
        for rows in _stretch(store, table, job, hosts, start_ns, end_ns):
            writer.write(table, conform(table, rows))
    info = CaptureInfo(job=job, start_ns=start_ns, end_ns=end_ns, hosts=hosts)
    writer.finish(info, topology)
    return info


def _hosts_of(store: Store, job: str) -> tuple[str, ...]:
    rows = store.query("SELECT DISTINCT host FROM comms WHERE job = {job:String} ORDER BY host", {"job": job})
    return tuple(rows["host"].to_pylist())


def _stretch(
    store: Store, table: Table, job: str, hosts: tuple[str, ...], start_ns: int, end_ns: int
) -> Iterator[pa.Table]:
    whose = "job = {job:String}" if table.has_job else "host IN {hosts:Array(String)}"
    final = " FINAL" if table.name == "comms" else ""
    select = f"SELECT {', '.join(columns_of(table))} FROM {table.name}{final} WHERE {whose}"
    parameters = {"job": job} if table.has_job else {"hosts": list(hosts)}
    if table.name in ("comms", "connections", "paths", "transits"):  # inventories: what held, not when it was seen
        yield store.query(select, parameters)
        return
    for begin in range(start_ns, end_ns, _SLICE_NS):
        end = min(begin + _SLICE_NS, end_ns)
        window = f"{table.time} >= {{begin:Int64}} AND {table.time} < {{end:Int64}}"
        yield store.query(f"{select} AND {window} ORDER BY {table.time}", parameters | {"begin": begin, "end": end})


def _digest(rows: pa.Table) -> str:
    sink = hashlib.sha256()
    for batch in rows.combine_chunks().to_batches():
        sink.update(batch.serialize())
    return sink.hexdigest()[:32]


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    for begin in range(0, rows.num_rows, _ROWS_PER_INSERT):
        yield rows.slice(begin, _ROWS_PER_INSERT)
