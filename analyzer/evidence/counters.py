"""What NICs count and say of their own state, as evidence for or against them and their cables."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.evidence.observations import SPANS_SQL, Observation, numbers, read_growth, readings_sql, timestamps
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import OF_HOSTS
from lockstep.topology import Link, TopologyIndex, link_name, nic_name, split_end, switch_name
from lockstep.verdict import Side


@dataclass(frozen=True, slots=True)
class _NicRule:
    """What a counter of a NIC means; weights are reasoned from that, because nobody has measured them."""

    counter: str
    side: Side
    nic: float  # weight for the NIC
    cable: float  # weight for the cable
    what: str


_NIC_RULES = (
    # Frames that arrive broken were spoilt on the cable, or by the transceivers at its ends.
    _NicRule("rx_errors", "rx", 1.5, 2.0, "received broken frames"),
    _NicRule("tx_errors", "tx", 2.5, 0.5, "could not send frames"),
    # A host too slow to take frames out looks the same as a NIC that is.
    _NicRule("rx_drops", "rx", 1.0, 0.0, "dropped frames that it had received"),
    _NicRule("tx_drops", "tx", 1.5, 0.5, "dropped frames before sending them"),
    _NicRule("extra['qdisc_drops']", "tx", 1.5, 0.5, "dropped packets in front of the NIC, which is full"),
    # It waits for credits or was told to pause: what slows it is further on.
    _NicRule("extra['port_xmit_wait']", "tx", -1.0, -1.0, "was asked to pause by what it sends to"),
    # Something on the way loses packets; that it is this NIC is one possibility of several.
    _NicRule("retrans", "tx", 0.3, 0.3, "sent packets again"),
)
# A NIC that sends slower than it is given packets lets them wait in its host's queue. One that waits for a slow
# receiver does not: TCP hands it no more than arrives. A healthy NIC at its full rate has a queue, too: compare.
_QUEUE = _NicRule("extra['qdisc_backlog_bytes']", "tx", 2.5, 1.0, "packets wait in front of")
_FEWEST_READINGS = 4
_NEARLY_ALWAYS, _AT_MOST_ELSEWHERE = 0.8, 0.5
_FEWEST_PEERS = 2
_MOST_FULL = 16  # more at once are how this job sends, and each would be held against all others
_AS_MUCH = 0.5  # of the bytes: in a ring every NIC sends the same
_NIC_SLACK_NS = 3 * NS_PER_S  # NICs are read every second; what was before that is not the window's
_DOWN, _BELOW = 3.0, 3.0  # a link without carrier, or at a lower rate than it is built for, is slow for certain
_BELOW_SHARE = 0.9  # rates are negotiated in steps of a half or a quarter

_NIC_QUERY = (
    "SELECT /*ask,*/ host, nic, argMax(up, ts_ns) AS is_up, argMax(toNullable(speed_mbps), ts_ns) AS speed_now, "
    "maxIf(speed_mbps, ts_ns < {turn:Int64}) AS speed_before, "
    + readings_sql([rule.counter for rule in _NIC_RULES])
    + ", countIf(ts_ns >= {start:Int64}) AS readings, "
    f"countIf(ts_ns >= {{start:Int64}} AND {_QUEUE.counter} > 0) AS waiting, "
    "maxIf(tx_bytes, ts_ns >= {start:Int64}) - minIf(tx_bytes, ts_ns >= {start:Int64}) AS sent"
    f", {SPANS_SQL} FROM nic_counters WHERE {OF_HOSTS} "
    "AND ts_ns >= {back:Int64} AND ts_ns < {end:Int64} GROUP BY /*ask,*/ host, nic ORDER BY host, nic"
)


def read_nics(store: Store, context: Context) -> pa.Table:
    """Return one row per NIC of the job's hosts: its state, and how its counters grew."""
    readings = {"hosts": context.list_reporting("nic_counters"), **timestamps(context, _NIC_SLACK_NS)}
    return store.query(_NIC_QUERY, readings)


def judge_nics(rows: pa.Table, topology: TopologyIndex | None) -> Iterator[Observation]:
    """Yield what the rows say for or against NICs and cables."""
    hosts, nics = rows["host"].to_pylist(), rows["nic"].to_pylist()
    for number, rule in enumerate(_NIC_RULES):
        growth = read_growth(rows, number)
        for row in np.flatnonzero(growth.strength).tolist():
            yield from _judge_nic_counter(
                rule, hosts[row], nics[row], float(growth.now[row]), float(growth.strength[row]), topology
            )
    yield from _judge_queues(rows, topology)
    odd = np.flatnonzero(_may_be_slow(rows, topology))
    states = rows.select(["is_up", "speed_now", "speed_before"]).take(pa.array(odd)).to_pylist()
    for row, state in zip(odd.tolist(), states, strict=True):
        yield from _judge_nic_state(hosts[row], nics[row], state, topology)


def _may_be_slow(rows: pa.Table, topology: TopologyIndex | None) -> np.ndarray:
    """Return which NICs are down or slower than the fastest link there is: few, and only those need a second look."""
    fastest = 1e3 * max((link.gbps for link in topology.topology.links), default=0.0) if topology else 0.0
    speed, before = numbers(rows, "speed_now"), numbers(rows, "speed_before")
    is_slow = (speed > 0) & (speed < _BELOW_SHARE * np.maximum(before, fastest))
    suspects: np.ndarray = is_slow | ~np.asarray(rows["is_up"]).astype(bool)
    return suspects


def _judge_nic_counter(
    rule: _NicRule, host: str, nic: str, now: float, strength: float, topology: TopologyIndex | None
) -> Iterator[Observation]:
    evidence = {"kind": "nic_counter", "nic": f"{host}/{nic}", "counter": rule.counter, "grew_by": int(now)}
    evidence["what"] = f"{host}/{nic} {rule.what} ({int(now)})"
    yield from _observe(rule, host, nic, strength, evidence, topology)


def _judge_queues(rows: pa.Table, topology: TopologyIndex | None) -> Iterator[Observation]:
    """Yield the NICs in front of which packets nearly always wait, while those that send as much are often idle."""
    readings, waiting, sent = (numbers(rows, column) for column in ("readings", "waiting", "sent"))
    full = np.flatnonzero((readings >= _FEWEST_READINGS) & (waiting >= _NEARLY_ALWAYS * readings)).tolist()
    for row in full if len(full) <= _MOST_FULL else ():
        peers = (sent >= _AS_MUCH * sent[row]) & (np.arange(len(sent)) != row)
        elsewhere, of_peers = waiting[peers].sum(), readings[peers].sum()
        if elsewhere <= _AT_MOST_ELSEWHERE * of_peers and np.count_nonzero(peers & (readings > 0)) >= _FEWEST_PEERS:
            host, nic = rows["host"][row].as_py(), rows["nic"][row].as_py()
            seen = {"waiting": int(waiting[row]), "readings": int(readings[row])}
            what = (
                f"{_QUEUE.what} {host}/{nic} in {seen['waiting']} of {seen['readings']} readings, "
                f"in front of NICs that send as much in {elsewhere:.0f} of {of_peers:.0f}"
            )
            evidence = {"kind": "nic_queue", "nic": f"{host}/{nic}", **seen, "what": what}
            yield from _observe(_QUEUE, host, nic, 1.0, evidence, topology)


def _observe(
    rule: _NicRule, host: str, nic: str, strength: float, evidence: dict[str, Any], topology: TopologyIndex | None
) -> Iterator[Observation]:
    """Yield what a rule's counter says of the NIC, and of its cable."""
    yield Observation(nic_name(host, nic), strength * rule.nic, evidence, rule.side)
    cable = topology.host_link(host, nic) if topology else None
    if cable and rule.cable:
        is_from_nic = cable.a == f"{host}/{nic}"
        side: Side = "tx" if is_from_nic == (rule.side == "tx") else "rx"
        yield Observation(link_name(cable), strength * rule.cable, evidence, side)


def _judge_nic_state(
    host: str, nic: str, state: dict[str, int | None], topology: TopologyIndex | None
) -> Iterator[Observation]:
    """Yield what the state of a NIC says, whatever it counts."""
    cable = topology.host_link(host, nic) if topology else None
    names = [nic_name(host, nic), *([link_name(cable)] if cable else [])]
    evidence = {"kind": "nic_state", "nic": f"{host}/{nic}"}
    speed = state["speed_now"]
    built_for = max(cable.gbps * 1e3 if cable else 0.0, float(state["speed_before"] or 0))
    if not state["is_up"]:
        down = {**evidence, "what": f"{host}/{nic} has no carrier"}
        yield from (Observation(name, _DOWN, down, is_down=True) for name in names)
    elif speed and speed < _BELOW_SHARE * built_for:
        what = f"{host}/{nic} runs at {speed / 1e3:g} of {built_for / 1e3:g} Gb/s"
        yield from (Observation(name, _BELOW, {**evidence, "what": what}) for name in names)


@dataclass(frozen=True, slots=True)
class _PortRule:
    """What a counter of a switch port means; weights are reasoned from that, because nobody has measured them."""

    name: str
    inwards: bool  # it speaks of what comes in from the other end, else of what goes out to it
    link: float  # weight for the link
    nic: float  # weight for the NIC at its other end, where there is one
    what: str


_PORT_RULES = (
    # Frames that arrive broken were spoilt on the cable, or by the transceivers at its ends.
    _PortRule("errors", True, 2.0, 1.0, "received broken frames"),
    _PortRule("fec_uncorrected", True, 2.0, 1.0, "received code words beyond repair"),
    # What overflows is the queue towards something slower than the traffic; congestion does that, too.
    _PortRule("drops", False, 1.0, 1.0, "dropped frames"),
    # A NIC that tells its switch to pause takes slowly; a switch that does so only passes on what it was told.
    _PortRule("pause_rx", False, 0.0, 2.0, "was asked to pause"),
    # A NIC that is told to pause would send faster: it is not what is slow.
    _PortRule("pause_tx", True, 0.0, -1.0, "asked the other end to pause"),
)
_SWITCH = 1.5  # a switch of which most ports are in trouble; a cable has only one at each end
_FEWEST_PORTS = 3

_PORT_QUERY = (  # a port of which no reading comes any more says nothing
    "SELECT /*ask,*/ switch, port, argMax(up, ts_ns) AS is_up, argMax(toNullable(speed_mbps), ts_ns) AS speed_now, "
    + readings_sql([rule.name for rule in _PORT_RULES])
    + f", {SPANS_SQL} FROM fabric_counters WHERE switch IN {{switches:Array(String)}} "
    "AND ts_ns >= {back:Int64} AND ts_ns < {end:Int64} GROUP BY /*ask,*/ switch, port "
    "HAVING max(ts_ns) >= {turn:Int64} ORDER BY switch, port"
)


def read_ports(store: Store, context: Context) -> pa.Table | None:
    """Return one row per port of the switches in the topology; None without one: ports would mean nothing."""
    if context.topology is None:
        return None
    switches = [switch.id for switch in context.topology.topology.switches]
    return store.query(_PORT_QUERY, {"switches": switches, **timestamps(context)})


def judge_ports(rows: pa.Table, topology: TopologyIndex) -> Iterator[Observation]:
    """Yield what the rows say for or against links, the NICs at their other ends, and switches as a whole."""
    links = topology.links_by_port
    ports = list(zip(rows["switch"].to_pylist(), rows["port"].to_pylist(), strict=True))
    for number, rule in enumerate(_PORT_RULES):
        growth = read_growth(rows, number)
        troubled = [row for row in np.flatnonzero(growth.strength).tolist() if ports[row] in links]
        for row in troubled:
            yield from _judge_port_counter(
                rule, ports[row], links[ports[row]], float(growth.now[row]), float(growth.strength[row]), topology
            )
        if rule.link > 0:
            yield from _whole_switches(rule, Counter(ports[row][0] for row in troubled), ports)
    for port, is_up, speed in zip(ports, rows["is_up"].to_pylist(), rows["speed_now"].to_pylist(), strict=True):
        if port in links:
            yield from _judge_port_state(port, links[port], is_up, speed)


def _judge_port_counter(
    rule: _PortRule, port: tuple[str, str], link: Link, now: float, strength: float, topology: TopologyIndex
) -> Iterator[Observation]:
    switch, name = port
    far = link.b if split_end(link.a)[0] == switch else link.a
    evidence = {"kind": "port_counter", "port": f"{switch}/{name}", "counter": rule.name, "grew_by": int(now)}
    evidence["what"] = f"{switch} {rule.what} on its port to {far} ({int(now)})"
    if rule.link:
        side: Side = "tx" if (far == link.a) == rule.inwards else "rx"
        yield Observation(link_name(link), strength * rule.link, evidence, side)
    if topology.leaf_of(*_nic(far)):
        yield Observation(f"nic:{far}", strength * rule.nic, evidence, "tx" if rule.inwards else "rx")


def _nic(end: str) -> tuple[str, str]:
    node, port = split_end(end)
    return node, port or ""


def _whole_switches(rule: _PortRule, troubled: Counter[str], ports: list[tuple[str, str]]) -> Iterator[Observation]:
    every = Counter(switch for switch, _ in ports)
    for switch, count in troubled.items():
        if count >= _FEWEST_PORTS and count > every[switch] / 2:
            what = f"{switch} {rule.what} on {count} of its {every[switch]} ports"
            yield Observation(switch_name(switch), _SWITCH, {"kind": "switch", "counter": rule.name, "what": what})


def _judge_port_state(port: tuple[str, str], link: Link, is_up: bool, speed: int | None) -> Iterator[Observation]:
    evidence = {"kind": "port_state", "port": "/".join(port)}
    if not is_up:
        yield Observation(link_name(link), _DOWN, {**evidence, "what": f"{port[0]} has no carrier towards {port[1]}"})
    elif speed and speed < _BELOW_SHARE * link.gbps * 1e3:
        what = f"{port[0]} runs at {speed / 1e3:g} of {link.gbps:g} Gb/s towards {port[1]}"
        yield Observation(link_name(link), _BELOW, {**evidence, "what": what})
