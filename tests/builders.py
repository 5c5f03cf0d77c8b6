"""Short constructors for records and rows, with sensible defaults, so that a test names only what it is about."""

import dataclasses
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import pyarrow as pa

from lockstep.arrow import rows_of
from lockstep.records import (
    Agent,
    Collective,
    Comm,
    Connection,
    Event,
    FabricCounter,
    HostRecord,
    NicCounter,
    OpStat,
    Path,
    PluginHealth,
    Probe,
    Progress,
    Transfer,
    TransferStat,
)
from lockstep.tables import TABLES

R = TypeVar("R", bound=HostRecord)

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND  # when tests happen

# What is neither null nor zero nor empty where a test does not say it.
_COMMON: dict[type[HostRecord], dict[str, Any]] = {
    Connection: {
        "peer": 1,
        "channel": 0,
        "direction": "send",
        "transport": "socket",
        "nic": "eth0",
        "source": "nccl_log",
        "confidence": 1.0,
        "seen_ns": T0,
    },
    Comm: {
        "name": "world",
        "nranks": 4,
        "nnodes": 4,
        "pid": 1,
        "gpu": 0,
        "plugin_version": "test",
        "detail": "steps",
        "init_ns": T0,
    },
    Collective: {
        "peer": -1,
        "seq_valid": True,
        "captured": False,
        "algo": "RING",
        "proto": "SIMPLE",
        "dtype": "ncclFloat32",
        "bytes": 1024,
        "channels": 2,
        "enqueue_ns": T0,
        "start_ns": T0 + 10,
        "end_ns": T0 + 1_010,
        "clock": "gpu",
    },
    OpStat: {"size_class": 10, "n": 1, "bytes": 1024, "dur_sum_ns": 1_000, "dur_max_ns": 1_000},
    Transfer: {
        "peer": 1,
        "direction": "send",
        "transport": "ib",
        "nic": "eth0",
        "bytes": 1024,
        "steps": 2,
        "detail": "steps",
        "gpu_wait_ns": 0,
        "peer_wait_ns": 0,
        "wire_ns": 100,
        "first_ns": T0,
        "last_ns": T0 + 1_000,
    },
    TransferStat: {
        "size_class": 10,
        "peer": 1,
        "direction": "send",
        "transport": "ib",
        "nic": "eth0",
        "n": 1,
        "bytes": 1024,
        "gpu_wait_ns": 0,
        "peer_wait_ns": 0,
        "wire_ns": 100,
        "wire_max_ns": 100,
    },
    Progress: {"peer": -1, "head_state": "idle"},
    Agent: {"version": "test", "watermark_ns": T0},
    PluginHealth: {"version": "test", "level": "steps", "lowered": "no", "dear": False},
    Event: {"source": "test", "kind": "xid", "severity": "info", "message": "m"},
    NicCounter: {"nic": "eth0", "up": True, "speed_mbps": 200_000, "extra": {}},
    FabricCounter: {"extra": {}},
    Path: {"proto": "roce", "dport": 4791, "seen_ns": T0, "confidence": 1.0},
    Probe: {"src_nic": "eth0", "dst": "h1", "dst_nic": "eth0", "proto": "udp", "hops": []},
}
_SHARED = {"host": "h0", "func": "AllReduce", "ts_ns": T0}
_JOB = {"job": "j1", "attempt": 0, "comm": 7, "rank": 0}


def make(record: type[R], **fields: Any) -> R:
    """Return a record with defaults for everything that is not given."""
    known = record.__dataclass_fields__
    shared = {name: value for name, value in {**_SHARED, **(_JOB if "job" in known else {})}.items() if name in known}
    part = {"component": f"gpu:{fields.get('host', 'h0')}/0"} if record is Event else {}
    return record(**{**_BLANKS[record], **shared, **part, **_COMMON.get(record, {}), **fields})


def _blank(record: type[HostRecord]) -> dict[str, Any]:
    """Return null, zero or nothing for the fields of a record that have no default of their own."""
    hints, blank = get_type_hints(record), {int: 0, str: ""}
    needed = [field.name for field in dataclasses.fields(record) if field.default is dataclasses.MISSING]
    return {
        name: blank.get(hints[name]) for name in needed if hints[name] in blank or NoneType in get_args(hints[name])
    }


_BLANKS = {table.record: _blank(table.record) for table in TABLES}


def rows(*records: HostRecord) -> pa.Table:
    """Return records of one kind as rows of their table."""
    table = next(table for table in TABLES if table.record is type(records[0]))
    return rows_of(table, list(records))
