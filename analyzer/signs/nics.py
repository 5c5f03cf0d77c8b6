"""What NICs count and say of their own state, as signs for or against them and their cables."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analyzer.context import Context
from analyzer.hosts import OF_HOSTS, list_hosts
from analyzer.signs.growth import SPANS_SQL, moments, read_growth, readings_sql
from analyzer.signs.signs import Sign
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex, link_name, nic_name
from lockstep.verdict import Side


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a counter of a NIC means; weights are reasoned from that, because nobody has measured them."""

    counter: str
    side: Side
    nic: float  # weight for the NIC
    cable: float  # weight for the cable
    what: str


_RULES = (
    # Frames that arrive broken were spoilt on the cable, or by the transceivers at its ends.
    _Rule("rx_errors", "rx", 1.5, 2.0, "received broken frames"),
    _Rule("tx_errors", "tx", 2.5, 0.5, "could not send frames"),
    # A host too slow to take frames out looks the same as a NIC that is.
    _Rule("rx_drops", "rx", 1.0, 0.0, "dropped frames that it had received"),
    _Rule("tx_drops", "tx", 1.5, 0.5, "dropped frames before sending them"),
    _Rule("extra['qdisc_drops']", "tx", 1.5, 0.5, "dropped packets in front of the NIC, which is full"),
    # It waits for credits or was told to pause: what slows it is further on.
    _Rule("extra['port_xmit_wait']", "tx", -1.0, -1.0, "was told to pause by what it sends to"),
    # Something on the way loses packets; that it is this NIC is one possibility of several.
    _Rule("retrans", "tx", 0.3, 0.3, "sent packets again"),
)
_DOWN, _BELOW = 3.0, 3.0  # a link without carrier, or at a lower rate than it is built for, is slow for certain
_BELOW_SHARE = 0.9  # rates are negotiated in steps of a half or a quarter

_QUERY = (
    "SELECT host, nic, argMax(up, ts_ns) AS is_up, argMax(toNullable(speed_mbps), ts_ns) AS speed_now, "
    "maxIf(speed_mbps, ts_ns < {turn:Int64}) AS speed_before, "
    + readings_sql([rule.counter for rule in _RULES])
    + f", {SPANS_SQL} FROM nic_counters WHERE {OF_HOSTS} "
    "AND ts_ns >= {back:Int64} AND ts_ns < {end:Int64} GROUP BY host, nic ORDER BY host, nic"
)


def read_nics(store: Store, context: Context) -> pa.Table:
    """Return one row per NIC of the job's hosts: its state, and how its counters grew."""
    return store.query(_QUERY, {"hosts": list_hosts(context.roster.hosts), **moments(context)})


def judge_nics(rows: pa.Table, topology: TopologyIndex | None) -> Iterator[Sign]:
    """Yield what the rows say for or against NICs and cables."""
    hosts, nics = rows["host"].to_pylist(), rows["nic"].to_pylist()
    for number, rule in enumerate(_RULES):
        growth = read_growth(rows, number)
        for row in np.flatnonzero(growth.strength).tolist():
            yield from _counted(
                rule, hosts[row], nics[row], float(growth.now[row]), float(growth.strength[row]), topology
            )
    states = rows.select(["is_up", "speed_now", "speed_before"]).to_pylist()
    for host, nic, state in zip(hosts, nics, states, strict=True):
        yield from _stands(host, nic, state, topology)


def _counted(
    rule: _Rule, host: str, nic: str, now: float, strength: float, topology: TopologyIndex | None
) -> Iterator[Sign]:
    evidence = {"kind": "nic_counter", "nic": f"{host}/{nic}", "counter": rule.counter, "grew_by": int(now)}
    evidence["what"] = f"{host}/{nic} {rule.what} ({int(now)})"
    yield Sign(nic_name(host, nic), strength * rule.nic, evidence, rule.side)
    cable = topology.host_link(host, nic) if topology else None
    if cable and rule.cable:
        is_from_nic = cable.a == f"{host}/{nic}"
        side: Side = "tx" if is_from_nic == (rule.side == "tx") else "rx"
        yield Sign(link_name(cable), strength * rule.cable, evidence, side)


def _stands(host: str, nic: str, state: dict[str, int | None], topology: TopologyIndex | None) -> Iterator[Sign]:
    """Yield what the state of a NIC says, whatever it counts."""
    cable = topology.host_link(host, nic) if topology else None
    names = [nic_name(host, nic), *([link_name(cable)] if cable else [])]
    evidence = {"kind": "nic_state", "nic": f"{host}/{nic}"}
    speed = state["speed_now"]
    built_for = max(cable.gbps * 1e3 if cable else 0.0, float(state["speed_before"] or 0))
    if not state["is_up"]:
        told = {**evidence, "what": f"{host}/{nic} has no carrier"}
        yield from (Sign(name, _DOWN, told, is_down=True) for name in names)
    elif speed and speed < _BELOW_SHARE * built_for:
        what = f"{host}/{nic} runs at {speed / 1e3:g} of {built_for / 1e3:g} Gb/s"
        yield from (Sign(name, _BELOW, {**evidence, "what": what}) for name in names)
