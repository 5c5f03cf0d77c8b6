"""Which wire each row is about: its ends, GPUs and path, and the rate that it is built for.

Cost: O(rows log rows); Python objects are made once per wire.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.context import Context, End
from analyzer.roster import NOBODY, Roster
from analyzer.wires.columns import codes_of, number_rows
from analyzer.wires.matrix import Wire
from lockstep.topology import TopologyIndex

_NS_PER_BYTE = 8.0  # at 1 Gb/s
_JOIN = "\x1f"  # parts names in keys; no host, NIC or port has it


_Place = tuple[str, str | None]  # host and NIC


@dataclass(frozen=True)
class Ends:
    """The wires of some rows, by number, and what a byte takes on them when nothing else does."""

    wires: tuple[Wire, ...]
    places: np.ndarray  # number of each row's wire; rows of unknown or equal hosts are left out, see `known`
    known: np.ndarray  # which of the given rows have a wire, as a mask
    least_ns_per_byte: np.ndarray  # of each wire at its slowest known link; 0 where no rate is known
    sharers: np.ndarray  # of each wire: most wires that share one link of its path, 1 where the path is not known


def find_ends(rows: pa.Table, paths: pa.Table, context: Context) -> Ends:
    """Return the wires that rows with source and destination ranks, hosts, NICs and ports are about."""
    roster = context.roster
    comm = rows["comm"].to_numpy().astype(np.uint64)
    src = roster.find(comm, rows["src_rank"].to_numpy().astype(np.int64))
    dst = roster.find(comm, rows["dst_rank"].to_numpy().astype(np.int64))
    hosts = _hosts(rows["src_host"], src, roster), _hosts(rows["dst_host"], dst, roster)
    known = np.asarray((hosts[0] != "") & (hosts[1] != "") & (hosts[0] != hosts[1]), bool)
    way = _find_paths(rows, hosts, paths)
    columns = {
        "src_host": pa.array(hosts[0]),
        "src_nic": rows["src_nic"].cast(pa.string()),
        "dst_host": pa.array(hosts[1]),
        "dst_nic": rows["dst_nic"].cast(pa.string()),
        "src_gpu": pa.array(_gpus(roster, src)),
        "dst_gpu": pa.array(_gpus(roster, dst)),
        "way": pa.array(way),
    }
    found = pa.table(columns).filter(pa.array(known))
    places, first = number_rows([codes_of(column) for column in found.columns])
    distinct = found.take(pa.array(first))
    src_ends, dst_ends = (_places(distinct, side) for side in ("src", "dst"))
    wires = _wires(distinct, src_ends, dst_ends, paths["way"].to_pylist())
    return Ends(wires, places, known, _least_ns_per_byte(src_ends, dst_ends, context.topology), _sharers(wires))


def _places(rows: pa.Table, side: str) -> list[_Place]:
    """Return host and NIC of one end of each wire, as plain pairs: they are looked up by the hundred thousand."""
    return list(zip(rows[f"{side}_host"].to_pylist(), rows[f"{side}_nic"].to_pylist(), strict=True))


def _wires(
    rows: pa.Table, src_ends: list[_Place], dst_ends: list[_Place], links: list[list[str]]
) -> tuple[Wire, ...]:
    ends = {place: End(*place) for place in {*src_ends, *dst_ends}}  # each once, however many wires it has
    gpus = ([gpu if gpu >= 0 else None for gpu in rows[name].to_pylist()] for name in ("src_gpu", "dst_gpu"))
    ways = (tuple(links[way]) if way >= 0 else None for way in rows["way"].to_pylist())
    return tuple(
        Wire(ends[src], ends[dst], src_gpu, dst_gpu, way)
        for src, dst, src_gpu, dst_gpu, way in zip(src_ends, dst_ends, *gpus, ways, strict=True)
    )


def _hosts(told: pa.ChunkedArray, process: np.ndarray, roster: Roster) -> np.ndarray:
    """Return the host of each end: as its rows tell it, else where its communicator says that the rank is."""
    names = np.array(pc.fill_null(told.cast(pa.string()), "").to_pylist(), dtype=object)
    if not len(roster):
        return names
    return np.where(names == "", np.where(process == NOBODY, "", roster.host_of[process]), names)


def _gpus(roster: Roster, process: np.ndarray) -> np.ndarray:
    if not len(roster):
        return np.full(len(process), -1, np.int64)
    return np.where(process == NOBODY, -1, roster.gpu_of[process])


def _find_paths(rows: pa.Table, hosts: tuple[np.ndarray, np.ndarray], paths: pa.Table) -> np.ndarray:
    """Return the place in `paths` of each row's way, -1 where nobody knows it."""
    if paths.num_rows == 0:
        return np.full(rows.num_rows, -1, np.int64)
    keys = _joined(pa.array(hosts[0]), rows["src_nic"], pa.array(hosts[1]), rows["dst_nic"], rows["sport"])
    catalogue = _joined(*(paths[name] for name in ("src_host", "src_nic", "dst_host", "far_nic", "sport")))
    found = pc.index_in(keys, value_set=catalogue)
    return np.asarray(pc.fill_null(found, -1)).astype(np.int64)


def _joined(*columns: pa.Array | pa.ChunkedArray) -> pa.Array:
    texts = [pa.chunked_array([column]) if isinstance(column, pa.Array) else column for column in columns]
    parts = [pc.fill_null(text.cast(pa.string()), "?").combine_chunks() for text in texts]
    return pc.binary_join_element_wise(*parts, _JOIN)


def _least_ns_per_byte(src_ends: list[_Place], dst_ends: list[_Place], topology: TopologyIndex | None) -> np.ndarray:
    if topology is None:
        return np.zeros(len(src_ends))
    rates = {place: _end_gbps(place, topology) for place in {*src_ends, *dst_ends}}
    slower = np.minimum(*(np.array([rates[place] for place in ends], np.float64) for ends in (src_ends, dst_ends)))
    return _NS_PER_BYTE / slower


def _end_gbps(place: _Place, topology: TopologyIndex) -> float:
    """Return the rate of a NIC's cable, or of the slowest of its host while the NIC is unknown; infinite: unknown."""
    host, nic = place
    nics = [nic] if nic else [each.id for each in topology.nics_of(host)]
    links = (topology.host_link(host, name) for name in nics)
    return min((link.gbps for link in links if link and link.gbps > 0), default=np.inf)


def _sharers(wires: tuple[Wire, ...]) -> np.ndarray:
    """Return how many wires share the most crowded link of each wire's path.

    A fabric of leaves and spines is climbed and then descended, so the first half of a path goes up.
    """
    if not any(wire.path for wire in wires):
        return np.ones(len(wires))
    counts: dict[tuple[str, bool], int] = {}
    ways = [
        [(link, 2 * step < len(wire.path)) for step, link in enumerate(wire.path)] if wire.path else []
        for wire in wires
    ]
    for way in ways:
        for hop in way:
            counts[hop] = counts.get(hop, 0) + 1
    return np.array([max((counts[hop] for hop in way), default=1) for way in ways], np.float64)
