"""Which pair each row is about: its ends, GPUs and path, and the rate that it is built for.

Cost: O(rows log rows); Python objects are made once per wire.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.delay_matrix.matrix import Pair, paths_through
from analyzer.windows.columns import filled
from analyzer.windows.jobs import NOBODY, Roster
from analyzer.windows.window import Context, End
from lockstep.topology import TopologyIndex

_MOST = 2**62  # that fits into a signed integer of 64 bits


def as_floats(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column as floats, 0 where it is null."""
    return filled(column.cast(pa.float64()), 0.0)


def as_errors(rows: pa.Table) -> np.ndarray:
    """Return by how much each row's delay may be off by chance (a standard error); NaN where one value is all."""
    return filled(rows["error_ns"].cast(pa.float64()), np.nan)


def is_equal(column: pa.ChunkedArray, value: str) -> np.ndarray:
    """Return where a column of text has this value; null is another one."""
    return filled(pc.equal(column.cast(pa.string()), value), False)


def codes_of(column: pa.ChunkedArray) -> np.ndarray:
    """Return a number for each value, equal for equal ones, -1 for null."""
    indices = column.combine_chunks().dictionary_encode().indices
    codes: np.ndarray = filled(indices, -1).astype(np.int64)
    return codes


def kinds_of(rows: pa.Table, names: tuple[str, ...]) -> np.ndarray:
    """Return a number for each row, equal for rows that are equal in these columns.

    >>> kinds_of(pa.table({"func": ["AllReduce", "AllGather", "AllReduce"]}), ("func",)).tolist()
    [0, 1, 0]
    """
    return number_rows([codes_of(rows[name]) for name in names])[0]


def number_rows(columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for each row of codes, equal for equal rows, and the first row of each number.

    The codes of a row become one integer, numbered anew whenever it would not fit: sorting integers is ten times
    faster than sorting rows.
    """
    key, span = np.zeros(len(columns[0]), np.int64), 1
    for codes in columns:
        width = int(codes.max(initial=-1)) + 2  # one more for unknown, -1
        if span * width >= _MOST:
            _, key = np.unique(key, return_inverse=True)
            span = int(key.max(initial=-1)) + 1
        key, span = key * width + codes + 1, span * width
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return number.reshape(-1), first


def keys_of(rows: pa.Table, sort: str, names: tuple[str, ...], text: str = "func") -> np.ndarray:
    """Return what each row is known by in later evaluations: its sort, a text and these numbers."""
    texts = pc.fill_null(rows[text].combine_chunks(), "").dictionary_encode()
    seeds = np.array([zlib.crc32(f"{sort} {name}".encode()) for name in texts.dictionary.to_pylist()], np.uint64)
    key = seeds[np.asarray(texts.indices)] if len(seeds) else np.zeros(0, np.uint64)
    for name in names:
        key = _mixed(key ^ rows[name].to_numpy().astype(np.uint64))
    return key


def find_rows(keys: np.ndarray, wanted: np.ndarray) -> pa.Array:
    """Return the first row that has each wanted key, null where none has.

    >>> find_rows(np.array([7, 5, 7]), np.array([5, 6, 7])).to_pylist()
    [1, None, 0]
    """
    known, first = np.unique(keys, return_index=True)
    if not len(known):
        return pa.nulls(len(wanted), pa.int64())
    index = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return pa.array(first[index], mask=known[index] != wanted)


def _mixed(value: np.ndarray) -> np.ndarray:
    """Return numbers whose bits all depend on all bits of the given ones (the finaliser of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: np.ndarray = value ^ (value >> np.uint64(31))
    return result


_NS_PER_BYTE = 8.0  # at 1 Gb/s
_JOIN = "\x1f"  # parts names in keys; no host, NIC or port has it


_HostNic = tuple[str, str | None]  # host and NIC
_BETWEEN = ("src_host", "src_nic", "dst_host", "far_nic")  # columns that name the ends of a path


@dataclass(frozen=True)
class Ends:
    """The pairs of some rows, by number, and what a byte takes on them when nothing else does."""

    pairs: tuple[Pair, ...]
    indexes: np.ndarray  # number of each row's wire; rows of unknown or equal hosts are left out, see `known`
    known: np.ndarray  # which of the given rows have a pair, as a mask
    src: np.ndarray  # number of each pair's sending end
    dst: np.ndarray  # likewise, of its receiving end
    least_ns_per_byte: np.ndarray  # of each pair at its slowest known link; 0 where no rate is known
    sharers: np.ndarray  # of each pair: most pairs that share one link of its path, 1 where the path is not known


def find_ends(rows: pa.Table, paths: pa.Table, context: Context) -> Ends:
    """Return the pairs that rows with source and destination ranks, hosts, NICs and ports are about."""
    roster = context.roster
    comm = rows["comm"].to_numpy().astype(np.uint64)
    src = roster.find(comm, rows["src_rank"].to_numpy().astype(np.int64))
    dst = roster.find(comm, rows["dst_rank"].to_numpy().astype(np.int64))
    hosts = _hosts(rows["src_host"], src, roster), _hosts(rows["dst_host"], dst, roster)
    known = np.asarray((hosts[0] != "") & (hosts[1] != "") & (hosts[0] != hosts[1]), bool)
    route = _find_paths(rows, hosts, paths)
    columns = {
        "src_host": pa.array(hosts[0]),
        "src_nic": rows["src_nic"].cast(pa.string()),
        "dst_host": pa.array(hosts[1]),
        "dst_nic": rows["dst_nic"].cast(pa.string()),
        "src_gpu": pa.array(_gpus(roster, src)),
        "dst_gpu": pa.array(_gpus(roster, dst)),
        "route": pa.array(route),
    }
    found = pa.table(columns).filter(pa.array(known))
    indexes, first = number_rows([codes_of(column) for column in found.columns])
    distinct = found.take(pa.array(first))
    src_ends, dst_ends = (  # as plain pairs: they are looked up by the hundred thousand
        list(zip(distinct[f"{side}_host"].to_pylist(), distinct[f"{side}_nic"].to_pylist(), strict=True))
        for side in ("src", "dst")
    )
    pairs = _pairs(distinct, src_ends, dst_ends, paths["route"].to_pylist())
    src_end, dst_end = (
        number_rows([codes_of(distinct[f"{side}_host"]), codes_of(distinct[f"{side}_nic"])])[0]
        for side in ("src", "dst")
    )
    least = _least_ns_per_byte(pairs, context.topology)
    return Ends(pairs, indexes, known, src_end, dst_end, least, _sharers(pairs))


def _pairs(
    rows: pa.Table, src_ends: list[_HostNic], dst_ends: list[_HostNic], links: list[list[str]]
) -> tuple[Pair, ...]:
    ends = {index: End(*index) for index in {*src_ends, *dst_ends}}  # each once, however many pairs it has
    gpus = ([gpu if gpu >= 0 else None for gpu in rows[name].to_pylist()] for name in ("src_gpu", "dst_gpu"))
    routes = (tuple(links[route]) if route >= 0 else None for route in rows["route"].to_pylist())
    return tuple(
        Pair(ends[src], ends[dst], src_gpu, dst_gpu, route)
        for src, dst, src_gpu, dst_gpu, route in zip(src_ends, dst_ends, *gpus, routes, strict=True)
    )


def _hosts(reported: pa.ChunkedArray, process: np.ndarray, roster: Roster) -> np.ndarray:
    """Return the host of each end: as its rows tell it, else where its communicator says that the rank is."""
    names = np.array(pc.fill_null(reported.cast(pa.string()), "").to_pylist(), dtype=object)
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
    ends, between = (pa.array(hosts[0]), rows["src_nic"], pa.array(hosts[1]), rows["dst_nic"]), _BETWEEN
    found = pc.index_in(
        _joined(*ends, rows["sport"]), value_set=_joined(*(paths[name] for name in (*between, "sport")))
    )
    same, only, number = _compare_paths(_joined(*(paths[name] for name in between)), paths["route"])
    place = filled(pc.index_in(_joined(*ends), value_set=only), -1).astype(np.int64)
    instead = np.append(number, -1)[place]  # a port that nobody told says nothing where all ports go one way
    exact = filled(found, -1).astype(np.int64)
    result: np.ndarray = np.where(exact >= 0, np.append(same, -1)[exact], instead)
    return result


def _compare_paths(between: pa.Array, routes: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """Return the first place of each path between its ends, the ends that have only one, and its place."""
    firsts: dict[str, dict[tuple[str, ...], int]] = {}
    same = [
        firsts.setdefault(ends, {}).setdefault(tuple(links or ()), place)
        for place, (ends, links) in enumerate(zip(between.to_pylist(), routes.to_pylist(), strict=True))
    ]
    only = {ends: next(iter(known.values())) for ends, known in firsts.items() if len(known) == 1}
    return np.array(same, np.int64), pa.array(list(only), pa.string()), np.array([*only.values()], np.int64)


def _joined(*columns: pa.Array | pa.ChunkedArray) -> pa.Array:
    texts = [pa.chunked_array([column]) if isinstance(column, pa.Array) else column for column in columns]
    parts = [pc.fill_null(text.cast(pa.string()), "?").combine_chunks() for text in texts]
    return pc.binary_join_element_wise(*parts, _JOIN)


def _least_ns_per_byte(pairs: tuple[Pair, ...], topology: TopologyIndex | None) -> np.ndarray:
    if topology is None:
        return np.zeros(len(pairs))
    paths = paths_through(topology)
    rates = {end: _end_gbps(end, topology) for end in {end for pair in pairs for end in (pair.src, pair.dst)}}
    gbps = [min(rates[pair.src], rates[pair.dst], paths.gbps_of(pair)) for pair in pairs]
    return _NS_PER_BYTE / np.array(gbps, np.float64)


def _end_gbps(end: End, topology: TopologyIndex) -> float:
    """Return the rate of a NIC's cable, or of the slowest of its host while the NIC is unknown; infinite: unknown."""
    names = [end.nic] if end.nic else [each.id for each in topology.nics_of(end.host)]
    links = (topology.host_link(end.host, name) for name in names)
    return min((link.gbps for link in links if link and link.gbps > 0), default=np.inf)


def _sharers(pairs: tuple[Pair, ...]) -> np.ndarray:
    """Return how many pairs share the most crowded link of each pair's path.

    A fabric of leaves and spines is climbed and then descended, so the first half of a path goes up.
    """
    if not any(pair.path for pair in pairs):
        return np.ones(len(pairs))
    counts: dict[tuple[str, bool], int] = {}
    routes = [
        [(link, 2 * step < len(pair.path)) for step, link in enumerate(pair.path)] if pair.path else []
        for pair in pairs
    ]
    for route in routes:
        for hop in route:
            counts[hop] = counts.get(hop, 0) + 1
    return np.array([max((counts[hop] for hop in route), default=1) for route in routes], np.float64)
