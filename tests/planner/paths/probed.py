"""Probes to order: rows of packets that took known ways through a fabric, and a switch hash that is no secret."""

import zlib
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from lockstep.arrow import rows_of, schema_of
from lockstep.records import Path, Probe
from lockstep.tables import TABLE_BY_NAME
from planner.paths.network import Network
from planner.paths.sweeps import ProbeWish, count_ways
from tests.builders import SECOND, T0

PORT = 0xC000


def probe(second: float = 0, via: str = "spine0", **fields: Any) -> Probe:
    """Return a packet from h0 under leaf0 to h2 under leaf1 over a spine, which was answered."""
    usual = {"host": "h0", "src_nic": "eth0", "dst": "h2", "dst_nic": "eth0", "proto": "roce", "sport": PORT}
    usual |= {"dport": 4791, "rtt_ns": 1000, "hops": ["leaf0", via, "leaf1"], "ts_ns": T0 + int(second * SECOND)}
    return Probe(**{**usual, **fields})


def lost(second: float, **fields: Any) -> Probe:
    return probe(second, **{"rtt_ns": None, **fields})


def packets(*probes: Probe) -> pa.Table:
    table = TABLE_BY_NAME["probes"]
    return rows_of(table, list(probes)) if probes else schema_of(table).empty_table()


def entry(via: str = "spine0", **fields: Any) -> Path:
    """Return what is known of a port from h0 under leaf0 to h2 under leaf1."""
    links = ["h0/eth0--leaf0", f"leaf0--{via}", f"leaf1--{via}", "h2/eth0--leaf1"]
    usual = {"host": "h0", "src_nic": "eth0", "dst": "h2", "dst_nic": "eth0", "proto": "roce", "sport": PORT}
    return Path(**{**usual, "dport": 4791, "links": links, "seen_ns": T0, "confidence": 0.9, **fields})


def answer(wishes: Iterable[ProbeWish], network: Network, now_ns: int) -> list[Probe]:
    """Return the packets that wishes ask for, on a fabric of two tiers whose switches hash all five fields."""
    return [_send(wish, sport, network, now_ns) for wish in wishes for sport in _ports(wish)]


def _ports(wish: ProbeWish) -> range:
    return range(wish.sport, wish.sport + wish.ports)


def _send(wish: ProbeWish, sport: int, network: Network, now_ns: int) -> Probe:
    ends = f"{wish.src}/{wish.src_nic}", f"{wish.dst}/{wish.dst_nic}"
    near, far = (network.ports[end][1] for end in ends)
    five = "|".join((*ends, wish.proto, str(sport), str(wish.dport)))
    spines = network.climbs[0].tops
    assert count_ways(network)[near, far] == len(spines) or near == far
    top = spines[zlib.crc32(five.encode()) % len(spines)]
    hops = [network.leaves[near], top, network.leaves[far]] if near != far else [network.leaves[near]]
    named = {"host": wish.src, "src_nic": wish.src_nic, "dst": wish.dst, "dst_nic": wish.dst_nic}
    return Probe(**named, ts_ns=now_ns, proto=wish.proto, sport=sport, dport=wish.dport, rtt_ns=1000, hops=hops)
