"""What the ports of switches count and say of their own state, as signs for or against links, NICs and switches."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analyzer.context import Context
from analyzer.signs.growth import SPANS_SQL, moments, read_growth, readings_sql
from analyzer.signs.signs import Sign
from lockstep.store.store import Store
from lockstep.topology import Link, TopologyIndex, link_name, split_end, switch_name
from lockstep.verdict import Side


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a counter of a switch port means; weights are reasoned from that, because nobody has measured them."""

    name: str
    inwards: bool  # it speaks of what comes in from the other end, else of what goes out to it
    link: float  # weight for the link
    nic: float  # weight for the NIC at its other end, where there is one
    what: str


_RULES = (
    # Frames that arrive broken were spoilt on the cable, or by the transceivers at its ends.
    _Rule("errors", True, 2.0, 1.0, "received broken frames"),
    _Rule("fec_uncorrected", True, 2.0, 1.0, "received code words beyond repair"),
    # What overflows is the queue towards something slower than the traffic; congestion does that, too.
    _Rule("drops", False, 1.0, 1.0, "dropped frames"),
    # A NIC that tells its switch to pause takes slowly; a switch that does so only passes on what it was told.
    _Rule("pause_rx", False, 0.0, 2.0, "was told to pause"),
    # A NIC that is told to pause would send faster: it is not what is slow.
    _Rule("pause_tx", True, 0.0, -1.0, "told the other end to pause"),
)
_DOWN, _BELOW = 3.0, 3.0  # a link without carrier, or at a lower rate than it is built for, is slow for certain
_BELOW_SHARE = 0.9  # rates are negotiated in steps of a half or a quarter
_SWITCH = 1.5  # a switch of which most ports are in trouble; a cable has only one at each end
_FEWEST_PORTS = 3

_QUERY = (
    "SELECT switch, port, argMax(up, ts_ns) AS is_up, argMax(toNullable(speed_mbps), ts_ns) AS speed_now, "
    + readings_sql([rule.name for rule in _RULES])
    + f", {SPANS_SQL} FROM fabric_counters WHERE switch IN {{switches:Array(String)}} "
    "AND ts_ns >= {back:Int64} AND ts_ns < {end:Int64} GROUP BY switch, port ORDER BY switch, port"
)


def read_ports(store: Store, context: Context) -> pa.Table | None:
    """Return one row per port of the switches in the topology; None without one: ports would mean nothing."""
    if context.topology is None:
        return None
    switches = [switch.id for switch in context.topology.topology.switches]
    return store.query(_QUERY, {"switches": switches, **moments(context)})


def judge_ports(rows: pa.Table, topology: TopologyIndex) -> Iterator[Sign]:
    """Yield what the rows say for or against links, the NICs at their other ends, and switches as a whole."""
    links = _links_by_port(topology)
    ports = list(zip(rows["switch"].to_pylist(), rows["port"].to_pylist(), strict=True))
    for number, rule in enumerate(_RULES):
        growth = read_growth(rows, number)
        troubled = [row for row in np.flatnonzero(growth.strength).tolist() if ports[row] in links]
        for row in troubled:
            yield from _counted(
                rule, ports[row], links[ports[row]], float(growth.now[row]), float(growth.strength[row]), topology
            )
        if rule.link > 0:
            yield from _whole_switches(rule, Counter(ports[row][0] for row in troubled), ports)
    for port, is_up, speed in zip(ports, rows["is_up"].to_pylist(), rows["speed_now"].to_pylist(), strict=True):
        if port in links:
            yield from _stands(port, links[port], is_up, speed)


def _links_by_port(topology: TopologyIndex) -> dict[tuple[str, str], Link]:
    """Return the link at each port of a switch; where the topology names no port, it goes by what it leads to."""
    found: dict[tuple[str, str], Link] = {}
    for link in topology.topology.links:
        for near, far in ((link.a, link.b), (link.b, link.a)):
            switch, port = split_end(near)
            found[switch, port or far] = link
    return found


def _counted(
    rule: _Rule, port: tuple[str, str], link: Link, now: float, strength: float, topology: TopologyIndex
) -> Iterator[Sign]:
    switch, name = port
    far = link.b if split_end(link.a)[0] == switch else link.a
    evidence = {"kind": "port_counter", "port": f"{switch}/{name}", "counter": rule.name, "grew_by": int(now)}
    evidence["what"] = f"{switch} {rule.what} on its port to {far} ({int(now)})"
    if rule.link:
        side: Side = "tx" if (far == link.a) == rule.inwards else "rx"
        yield Sign(link_name(link), strength * rule.link, evidence, side)
    if topology.leaf_of(*_nic(far)):
        yield Sign(f"nic:{far}", strength * rule.nic, evidence, "tx" if rule.inwards else "rx")


def _nic(end: str) -> tuple[str, str]:
    node, port = split_end(end)
    return node, port or ""


def _whole_switches(rule: _Rule, troubled: Counter[str], ports: list[tuple[str, str]]) -> Iterator[Sign]:
    every = Counter(switch for switch, _ in ports)
    for switch, count in troubled.items():
        if count >= _FEWEST_PORTS and count > every[switch] / 2:
            what = f"{switch} {rule.what} on {count} of its {every[switch]} ports"
            yield Sign(switch_name(switch), _SWITCH, {"kind": "switch", "counter": rule.name, "what": what})


def _stands(port: tuple[str, str], link: Link, is_up: bool, speed: int | None) -> Iterator[Sign]:
    evidence = {"kind": "port_state", "port": "/".join(port)}
    if not is_up:
        yield Sign(link_name(link), _DOWN, {**evidence, "what": f"{port[0]} has no carrier towards {port[1]}"})
    elif speed and speed < _BELOW_SHARE * link.gbps * 1e3:
        what = f"{port[0]} runs at {speed / 1e3:g} of {link.gbps:g} Gb/s towards {port[1]}"
        yield Sign(link_name(link), _BELOW, {**evidence, "what": what})
