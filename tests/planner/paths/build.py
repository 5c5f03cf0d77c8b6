"""Fabrics, flows and probes to order, for tests of plans and of what is known of ports."""

import itertools
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from lockstep.fabrics import dual_plane, fat_tree, leaf_spine, rail_optimised
from lockstep.records import HostRecord, Path, Probe
from lockstep.store.store import Store
from lockstep.tables import TABLES
from planner.paths.catalogue import FOLDED, KEY, SILENT
from planner.paths.demand import KEY as CONNECTION
from planner.paths.demand import SUMS
from planner.paths.flows import Flow
from planner.paths.network import Network, build_network
from planner.paths.ports import ProbeRequest, count_paths
from tests.builders import SECOND, T0, rows

PORT = 0xC000
_tokens = itertools.count()


def insert(store: Store, *records: HostRecord) -> None:
    for table in TABLES:
        mine = [record for record in records if type(record) is table.record]
        if mine:
            store.insert(table, rows(*mine), token=f"paths/{next(_tokens)}")


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


def probe(second: float = 0, via: str = "spine0", **fields: Any) -> Probe:
    """Return a packet from h0 under leaf0 to h2 under leaf1 over a spine, which was answered."""
    usual = {"host": "h0", "src_nic": "eth0", "dst": "h2", "dst_nic": "eth0", "proto": "roce", "sport": PORT}
    usual |= {"dport": 4791, "rtt_ns": 1000, "hops": ["leaf0", via, "leaf1"], "ts_ns": T0 + int(second * SECOND)}
    return Probe(**{**usual, **fields})


def lost(second: float, **fields: Any) -> Probe:
    return probe(second, **{"rtt_ns": None, **fields})


def fold_probes(*probes: Probe) -> pa.Table:
    """Return what `read_probes` makes of these rows, told a second time and without a store."""
    by_port: dict[tuple[Any, ...], list[Probe]] = defaultdict(list)
    for each in sorted(probes, key=lambda each: (each.ts_ns, each.hops)):
        by_port[tuple(getattr(each, name) for name in KEY)].append(each)
    folded = [(*port, *_fold(mine)) for port, mine in by_port.items()]
    return pa.table({name: [row[number] for row in folded] for number, name in enumerate(FOLDED)})


def _fold(probes: list[Probe]) -> tuple[Any, ...]:
    answered = [each for each in probes if each.rtt_ns is not None]
    whole = [each for each in probes if each.hops and SILENT not in each.hops]
    route = next((each.hops for each in [*reversed(whole)] if each in answered), whole[-1].hops if whole else [])
    same = [each.ts_ns for each in answered if each.hops == route]
    other = [each.ts_ns for each in answered if each in whole and each.hops != route]
    agreed = [at_ns for at_ns in same if at_ns > max(other, default=-1)]
    losses = [each.ts_ns for each in probes if each.rtt_ns is None]
    lost = [at_ns for at_ns in losses if at_ns > min(agreed, default=-1)]
    lost_since = [at_ns for at_ns in losses if at_ns > max((each.ts_ns for each in answered), default=-1)]
    counts = [agreed, other, same[: len(same) - len(agreed)], lost, lost_since]
    return route, *map(len, counts), max(same, default=0) if route else 0, probes[-1].ts_ns


def sum_stats(stats: pa.Table, start_ns: int, end_ns: int) -> pa.Table:
    """Return what `read_demand` makes of rows of `transfer_stats`: a row per connection and direction."""
    inside = pc.and_(pc.greater_equal(stats["ts_ns"], start_ns), pc.less(stats["ts_ns"], end_ns))
    stats = stats.filter(pc.and_(inside, pc.and_(pc.greater_equal(stats["peer"], 0), pc.greater(stats["bytes"], 0))))
    grouped = stats.sort_by("ts_ns").group_by([*CONNECTION, "direction"], use_threads=False)
    last = [(name, "last") for name in ("host", "nic", "transport", "ts_ns")]
    sums = grouped.aggregate([("bytes", "sum"), ("ts_ns", "count_distinct"), ("wire_ns", "sum"), *last])
    return sums.rename_columns([*CONNECTION, *SUMS])


def entry(via: str = "spine0", **fields: Any) -> Path:
    links = ["h0/eth0--leaf0", f"leaf0--{via}", f"leaf1--{via}", "h2/eth0--leaf1"]
    usual = {"host": "h0", "src_nic": "eth0", "dst": "h2", "dst_nic": "eth0", "proto": "roce", "sport": PORT}
    return Path(**{**usual, "dport": 4791, "links": links, "seen_ns": T0, "confidence": 0.9, **fields})


def answer(requests: Iterable[ProbeRequest], network: Network, now_ns: int) -> list[Probe]:
    """Return the packets that requests ask for, on a fabric of two tiers whose switches hash all five fields."""
    return [_send(request, sport, network, now_ns) for request in requests for sport in _ports(request)]


def _ports(request: ProbeRequest) -> range:
    return range(request.sport, request.sport + request.ports)


def _send(request: ProbeRequest, sport: int, network: Network, now_ns: int) -> Probe:
    ends = f"{request.src}/{request.src_nic}", f"{request.dst}/{request.dst_nic}"
    near, far = (network.ports[end][1] for end in ends)
    five = "|".join((*ends, request.proto, str(sport), str(request.dport)))
    spines = network.up_paths[0].spines
    assert count_paths(network)[near, far] == len(spines) or near == far
    spine = spines[zlib.crc32(five.encode()) % len(spines)]
    hops = [network.leaves[near], spine, network.leaves[far]] if near != far else [network.leaves[near]]
    named = {"host": request.src, "src_nic": request.src_nic, "dst": request.dst, "dst_nic": request.dst_nic}
    return Probe(**named, ts_ns=now_ns, proto=request.proto, sport=sport, dport=request.dport, rtt_ns=1000, hops=hops)


def flows_between(pairs: list[tuple[str, str]], gbps: float = 100.0) -> list[Flow]:
    return [Flow(id=f"f{index}", src=src, dst=dst, gbps=gbps) for index, (src, dst) in enumerate(pairs)]


def some_flows(network: Network, count: int, seed: int, sizes: tuple[float, ...] = (100.0,)) -> list[Flow]:
    rng = np.random.default_rng(seed)
    planes = {f"{host.id}/{nic.id}": nic.plane for host in network.topology.hosts for nic in host.nics}
    ports = np.array(sorted(network.ports))
    flows: list[Flow] = []
    while len(flows) < count:
        src, dst = rng.choice(ports, 2)
        if src != dst and planes[str(src)] == planes[str(dst)]:
            flows.append(Flow(id=f"f{len(flows)}", src=str(src), dst=str(dst), gbps=float(rng.choice(sizes))))
    return flows


def broken(network: Network, dead: int, slow: int, seed: int) -> Network:
    rng = np.random.default_rng(seed)
    cables = np.unique(np.flatnonzero(network.fabric) // 2)
    hit = rng.permutation(cables)[: dead + slow]
    gbps = network.gbps.copy()
    for cable, share in zip(hit.tolist(), [0.0] * dead + [0.5] * slow, strict=False):
        gbps[[2 * cable, 2 * cable + 1]] *= share
    return replace(network, gbps=gbps)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    kind = draw(st.sampled_from(("leaf_spine", "rails", "planes", "fat_tree")))
    match kind:
        case "leaf_spine":
            leaves, spines = draw(st.integers(1, 5)), draw(st.integers(1, 5))
            topology = leaf_spine(hosts=3 * leaves, nics_per_host=1, leaves=leaves, spines=spines)
        case "rails":
            topology = rail_optimised(hosts=4, rails=draw(st.sampled_from((2, 4))), spines=draw(st.integers(1, 4)))
        case "planes":
            topology = dual_plane(hosts=4, leaves_per_plane=2, spines_per_plane=draw(st.integers(1, 3)))
        case _:
            topology = fat_tree(4)
    network = build_network(topology)
    return broken(network, draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 99)))
