"""Short constructors for records and rows, with sensible defaults, so that a test names only what it is about."""

from typing import Any, TypeVar

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
    Transfer,
    TransferStat,
)
from lockstep.tables import TABLES

R = TypeVar("R", bound=HostRecord)

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND  # when tests happen

_COMMON: dict[type[HostRecord], dict[str, Any]] = {
    Connection: {
        "peer": 1,
        "channel": 0,
        "direction": "send",
        "transport": "socket",
        "proxy_rank": None,
        "nic": "eth0",
        "local": "",
        "remote": "",
        "sport": None,
        "lqpn": None,
        "rqpn": None,
        "source": "nccl_log",
        "confidence": 1.0,
        "seen_ns": T0,
    },
    Comm: {
        "name": "world",
        "nranks": 4,
        "nnodes": 4,
        "world_rank": None,
        "pid": 1,
        "gpu": 0,
        "gpu_pci": None,
        "gpu_uuid": None,
        "nccl_version": None,
        "plugin_version": "test",
        "detail": "steps",
        "init_ns": T0,
        "destroy_ns": None,
    },
    Collective: {
        "func": "AllReduce",
        "peer": -1,
        "seq": 0,
        "replay": 0,
        "seq_valid": True,
        "captured": False,
        "epoch": 0,
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
    OpStat: {
        "func": "AllReduce",
        "size_class": 10,
        "ts_ns": T0,
        "n": 1,
        "bytes": 1024,
        "dur_sum_ns": 1_000,
        "dur_max_ns": 1_000,
        "gap_sum_ns": 0,
        "late_n": 0,
    },
    Transfer: {
        "func": "AllReduce",
        "seq": 0,
        "replay": 0,
        "epoch": 0,
        "channel": 0,
        "peer": 1,
        "direction": "send",
        "transport": "ib",
        "nic": "eth0",
        "sport": None,
        "bytes": 1024,
        "steps": 2,
        "detail": "steps",
        "gpu_wait_ns": 0,
        "peer_wait_ns": 0,
        "wire_ns": 100,
        "flush_ns": None,
        "first_ns": T0,
        "last_ns": T0 + 1_000,
    },
    TransferStat: {
        "func": "AllReduce",
        "size_class": 10,
        "channel": 0,
        "peer": 1,
        "direction": "send",
        "ts_ns": T0,
        "transport": "ib",
        "nic": "eth0",
        "n": 1,
        "bytes": 1024,
        "gpu_wait_ns": 0,
        "peer_wait_ns": 0,
        "wire_ns": 100,
        "wire_max_ns": 100,
    },
    Agent: {
        "ts_ns": T0,
        "version": "test",
        "watermark_ns": T0,
        "dropped": 0,
        "spool_bytes": 0,
        "cpu_ns": 0,
        "plugin_cost_ns": None,
    },
    Event: {
        "ts_ns": T0,
        "source": "test",
        "kind": "xid",
        "component": "gpu:h0/0",
        "severity": "info",
        "message": "m",
    },
    NicCounter: {
        "ts_ns": T0,
        "nic": "eth0",
        "up": True,
        "speed_mbps": 200_000,
        "rx_bytes": 0,
        "tx_bytes": 0,
        "rx_errors": 0,
        "tx_errors": 0,
        "rx_drops": 0,
        "tx_drops": 0,
        "retrans": None,
        "extra": {},
    },
    FabricCounter: {
        "ts_ns": T0,
        "speed_mbps": None,
        "rx_bytes": 0,
        "tx_bytes": 0,
        "errors": None,
        "drops": None,
        "pause_rx": None,
        "pause_tx": None,
        "fec_uncorrected": None,
        "extra": {},
    },
    Path: {"proto": "roce", "dport": 4791, "seen_ns": T0, "confidence": 1.0},
}
_JOB = {"job": "j1", "attempt": 0, "comm": 7, "rank": 0}


def make(record: type[R], **fields: Any) -> R:
    """Return a record with defaults for everything that is not given."""
    job = _JOB if "job" in record.__dataclass_fields__ else {}
    return record(**{"host": "h0", **job, **_COMMON[record], **fields})


def rows(*records: HostRecord) -> pa.Table:
    """Return records of one kind as rows of their table."""
    table = next(table for table in TABLES if table.record is type(records[0]))
    return rows_of(table, list(records))
