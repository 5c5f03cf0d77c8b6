"""What happened on hosts, as their collectors tell it: kernel log, carriers, and NCCL's own complaints."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from analyzer.context import Context
from analyzer.hosts import OF_HOSTS, list_hosts
from analyzer.signs.signs import HardFact, Sign
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store

# What happened a minute ago may well be why the job is slow now.
BACK_NS = 60 * NS_PER_S
_MOST_EVENTS = 1_000  # a flood is folded by the collectors already; more tell nothing new

# How much likelier an event is when its part is at fault, by kind: from what the event says, not measured.
_WEIGHTS = {
    "link_down": 3.0,
    "link_flapping": 3.0,
    "nic_health": 3.0,
    "nic_timeout": 2.5,
    "nic_error": 2.0,
    "nic_module": 2.0,
    "nic_power": 2.0,
    "gpu_lost": 3.0,
    "xid": 2.0,
    "sxid": 2.0,
    "pcie_aer": 1.5,
    "pcie_lost": 2.5,
    # The peer did not answer: the NIC that complains is one of several parts on the way.
    "ib_completion_error": 0.5,
    "socket_closed": 0.0,
    "oom": 1.0,
}
_BY_SEVERITY = {"info": 0.3, "warning": 0.7}  # of the weight; errors count in full
_APPLICATION = "blame application"  # as the collector words an XID that leaves the GPU healthy

_QUERY = f"""
SELECT ts_ns, host, source, kind, component, severity, message FROM events
WHERE {OF_HOSTS} AND ts_ns >= {{back:Int64}} AND ts_ns < {{end:Int64}}
    AND kind IN {{kinds:Array(String)}}
ORDER BY ts_ns, host, component LIMIT {{most:UInt32}}
"""


def read_events(store: Store, context: Context) -> pa.Table:
    """Return the events of the job's hosts in the look and shortly before it."""
    parameters = {
        "hosts": list_hosts(context.roster.hosts),
        "back": context.window.start_ns - BACK_NS,
        "end": context.window.end_ns,
        "kinds": sorted(_WEIGHTS),
        "most": _MOST_EVENTS,
    }
    return store.query(_QUERY, parameters)


def judge_events(rows: pa.Table) -> Iterator[Sign]:
    """Yield a sign for each part and kind of event, however often it came; a carrier that is back speaks less."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows.to_pylist():
        newest[row["component"], row["kind"]] = row
    for (component, kind), row in newest.items():
        weight = _WEIGHTS.get(kind, 0.0) * _BY_SEVERITY.get(row["severity"], 1.0)
        if weight and _APPLICATION not in row["message"]:
            yield Sign(component, weight, _evidence(row))


def find_broken(rows: pa.Table) -> Iterator[HardFact]:
    """Yield what parts said themselves to be broken for good: GPUs of no more use, carriers lost."""
    for row in rows.to_pylist():
        if row["component"].startswith("gpu:") and _is_dead_gpu(row):
            reason = f"{row['component']} is of no use until it is reset or repaired: {row['message']}"
            yield HardFact(row["ts_ns"], "crash", row["component"], reason, _evidence(row))
        elif row["component"].startswith("nic:") and row["kind"] == "link_down":
            reason = f"{row['component']} lost its carrier: {row['message']}"
            yield HardFact(row["ts_ns"], "comm_hang", row["component"], reason, _evidence(row))


def _is_dead_gpu(row: dict[str, Any]) -> bool:
    is_hardware = _APPLICATION not in row["message"] and row["severity"] == "critical"
    return row["kind"] == "gpu_lost" or (row["kind"] == "xid" and is_hardware)


def _evidence(row: dict[str, Any]) -> dict[str, Any]:
    told = {name: row[name] for name in ("ts_ns", "host", "source", "severity", "message")}
    return {"kind": "event", "event": row["kind"], **told, "what": f"{row['source']} told of {row['kind']}"}
