"""Reads all evidence of one evaluation: NICs, switch ports, GPUs, events and probes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.evidence.counters import judge_nics, judge_ports, read_nics, read_ports
from analyzer.evidence.observations import (
    NO_EVIDENCE,
    SPANS_SQL,
    Evidence,
    Observation,
    gather_evidence,
    read_growth,
    readings_sql,
    timestamps,
)
from analyzer.evidence.probes import judge_probes, read_probes
from analyzer.windows.columns import filled
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import OF_HOSTS
from lockstep.topology import gpu_name

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

_EVENT_QUERY = f"""
SELECT /*ask,*/ ts_ns, host, source, kind, component, severity, message, detail FROM events
WHERE {OF_HOSTS} AND ts_ns >= {{back:Int64}} AND ts_ns < {{end:Int64}}
    AND kind IN {{kinds:Array(String)}}
ORDER BY ts_ns, host, component LIMIT {{most:UInt32}} /*BY ask*/
"""


def read_events(store: Store, context: Context) -> pa.Table:
    """Return the events of the job's hosts in the evaluation and shortly before it."""
    parameters = {
        "hosts": context.host_list,
        "back": context.window.start_ns - BACK_NS,
        "end": context.window.end_ns,
        "kinds": sorted(_WEIGHTS),
        "most": _MOST_EVENTS,
    }
    return store.query(_EVENT_QUERY, parameters)


def judge_events(rows: pa.Table) -> Iterator[Observation]:
    """Yield evidence for each part and kind of event, however often it came; a carrier that is back speaks less."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows.to_pylist():
        newest[row["component"], row["kind"]] = row
    for (component, kind), row in newest.items():
        weight = _WEIGHTS.get(kind, 0.0) * _BY_SEVERITY.get(row["severity"], 1.0)
        is_application = json.loads(row["detail"] or "{}").get("blame") == "application"  # leaves the GPU healthy
        if weight and not is_application:
            fields = {name: row[name] for name in ("ts_ns", "host", "source", "severity", "message")}
            what = f"{row['source']} reported {kind}"
            yield Observation(component, weight, {"kind": "event", "event": kind, **fields, "what": what})


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a counter of a GPU means; weights are reasoned from that, because nobody has measured them."""

    name: str
    part: str  # kind of the component it speaks of
    weight: float
    what: str
    is_hard: bool = False  # one is enough


_RULES = (
    _Rule("nvlink_errors", "nvlink", 3.0, "counted errors on its NVLinks"),
    _Rule("pcie_replays", "pcie", 2.5, "had to repeat PCIe packets"),
    # Corrected in passing; many of them come before an uncorrected one, but they slow nothing.
    _Rule("ecc_sbe", "gpu", 0.5, "corrected memory errors"),
    # The page is lost and whoever used it is ended: no healthy GPU has a single one.
    _Rule("ecc_dbe", "gpu", 3.0, "uncorrected memory errors", is_hard=True),
)
# Reasons for a lowered clock as NVML names them. Heat and a power brake are faults of the GPU or of its surroundings;
# a power cap is how a busy GPU runs, and idle ones are meant to be slow.
_THROTTLES = {
    "hw_thermal_slowdown": 3.0,
    "sw_thermal_slowdown": 2.5,
    "hw_power_brake_slowdown": 2.5,
    "hw_slowdown": 2.5,
    "sw_power_cap": 0.2,
}
_SLOW_CLOCK, _SLOW_SHARE = 2.0, 0.9  # clocks of GPUs that do the same differ by a few percent
_FEWEST_PEERS = 4  # fewer, and the median is one of the suspects itself

_HEALTH_QUERY = (
    "SELECT /*ask,*/ host, gpu, "
    "minIf(sm_mhz, ts_ns >= {turn:Int64} AND position(throttle, 'idle') = 0) AS running_mhz, "
    "arrayStringConcat(groupUniqArrayArrayIf(splitByChar(',', throttle), ts_ns >= {turn:Int64}), ',') AS reasons, "
    + readings_sql([rule.name for rule in _RULES])
    + f", {SPANS_SQL} FROM gpu_health WHERE {OF_HOSTS} "
    "AND ts_ns >= {back:Int64} AND ts_ns < {end:Int64} GROUP BY /*ask,*/ host, gpu ORDER BY host, gpu"
)


def read_health(store: Store, context: Context) -> pa.Table:
    """Return one row per GPU of the job's hosts: why its clock was lowered, and how its counters grew."""
    return store.query(_HEALTH_QUERY, {"hosts": context.list_reporting("gpu_health"), **timestamps(context)})


def judge_health(rows: pa.Table) -> Iterator[Observation]:
    """Yield what the rows say for or against GPUs and their connections."""
    names = list(zip(rows["host"].to_pylist(), rows["gpu"].to_pylist(), strict=True))
    for number, rule in enumerate(_RULES):
        growth = read_growth(rows, number, least=0) if rule.is_hard else read_growth(rows, number)
        for row in np.flatnonzero(growth.strength).tolist():
            host, gpu = names[row]
            what = f"{gpu_name(host, gpu)} {rule.what} ({int(growth.now[row])})"
            evidence = {"kind": "gpu_counter", "counter": rule.name, "grew_by": int(growth.now[row]), "what": what}
            yield Observation(f"{rule.part}:{host}/{gpu}", float(growth.strength[row]) * rule.weight, evidence)
    for (host, gpu), reasons in zip(names, rows["reasons"].to_pylist(), strict=True):
        if reasons:
            yield from _throttled(gpu_name(host, gpu), reasons)
    yield from _slow_clocks(names, rows["running_mhz"])


def _throttled(name: str, reasons: str) -> Iterator[Observation]:
    for reason in filter(None, reasons.split(",")):
        if weight := _THROTTLES.get(reason.strip(), 0.0):
            evidence = {"kind": "gpu_health", "throttle": reason, "what": f"{name} lowered its clock ({reason})"}
            yield Observation(name, weight, evidence)


def _slow_clocks(names: list[tuple[str, int]], clocks: pa.ChunkedArray) -> Iterator[Observation]:
    mhz = filled(clocks, 0).astype(np.float64)
    running = mhz[mhz > 0]  # idle GPUs have none
    if len(running) < _FEWEST_PEERS:
        return
    usual = float(np.median(running))
    for row in np.flatnonzero((mhz > 0) & (mhz < _SLOW_SHARE * usual)).tolist():
        name = gpu_name(*names[row])
        what = f"{name} runs at {mhz[row]:.0f} MHz, others at {usual:.0f}"
        yield Observation(
            name, _SLOW_CLOCK, {"kind": "gpu_health", "sm_mhz": mhz[row], "usual_mhz": usual, "what": what}
        )


def read_evidence(store: Store, context: Context) -> Evidence:
    """Return what counters, health, events and probes say of the parts of a job in an evaluation."""
    if not context.roster.hosts:
        return NO_EVIDENCE
    ports = read_ports(store, context)
    return gather_evidence(
        chain(
            judge_nics(read_nics(store, context), context.topology),
            judge_ports(ports, context.topology) if ports is not None and context.topology else (),
            judge_health(read_health(store, context)),
            judge_events(read_events(store, context)),
            judge_probes(read_probes(store, context)),
        )
    )
