"""Everything that may be at fault when some pairs are slow, and which pairs run through each of it.

Only parts that carry a slow pair are suspects: the others can explain nothing. A part that has two directions is
three suspects: sending, receiving, and both.

Cost: O(wires), with a dozen parts per wire at most.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from analyzer.delay_matrix.matrix import DelayMatrix, Hop, InnerMatrix, Pair, PathKey, Paths, paths_through
from analyzer.windows.window import End
from lockstep.topology import TopologyIndex, host_name, nic_name, split_end, switch_name
from lockstep.verdict import Side

Kind = Literal["pair", "nic", "pcie", "nvlink", "host", "link", "switch"]

_LOWEST_FIRST: tuple[Kind, ...] = ("pair", "nic", "pcie", "nvlink", "link", "host", "switch")  # among equals
_SIDES: tuple[Side | None, ...] = ("tx", "rx", None)
_LEAST_SHARE = 1 / 16  # a link that a pair uses less often is never told from the fifteen others beside it


@dataclass(frozen=True, slots=True)
class Part:
    """Something that can break, and in which direction."""

    kind: Kind
    component: str
    side: Side | None = None
    gpu: int | None = None  # what this GPU sends or receives, and who shares its port: nobody knows which that is

    @property
    def ends(self) -> tuple[str, ...]:
        """Return the ends of a pair or link, none of anything else."""
        return tuple(self.component.removeprefix("link:").split("--")) if self.kind in ("pair", "link") else ()

    @property
    def joins_nics(self) -> bool:
        """Return whether it is a pair of which both NICs are known."""
        return self.kind == "pair" and all(split_end(end)[1] for end in self.ends)


Through = dict[Part, dict[int, float]]  # the pairs through each part, with the probability that they are


@dataclass(frozen=True)
class Suspects:
    """Parts, and in three parallel arrays an entry for each pair through each of them."""

    parts: tuple[Part, ...]
    part: np.ndarray
    pair: np.ndarray
    share: np.ndarray  # probability that the wire runs through the part; 1 where it is known

    @cached_property
    def _bounds(self) -> np.ndarray:
        return np.searchsorted(self.part, np.arange(len(self.parts) + 1))

    def members(self, number: int) -> np.ndarray:
        """Return the pairs through a part."""
        members: np.ndarray = self.pair[self.entries(number)]
        return members

    def entries(self, number: int) -> slice:
        """Return the entries of a part."""
        return slice(int(self._bounds[number]), int(self._bounds[number + 1]))

    def touched(self, marked: np.ndarray) -> np.ndarray:
        """Return how many of the marked wires may run through each part, however unlikely."""
        return np.bincount(self.part, weights=marked[self.pair], minlength=len(self.parts))

    def count(self, marked: np.ndarray) -> np.ndarray:
        """Return how many of the marked pairs run through each part, as far as that is known."""
        return np.bincount(self.part, weights=marked[self.pair] * (self.share > 0.5), minlength=len(self.parts))


def list_suspects(matrix: DelayMatrix, topology: TopologyIndex | None) -> Suspects:
    """Return every part that a slow pair runs through."""
    paths = paths_through(topology) if topology else None
    slow = [matrix.pairs[number] for number in np.flatnonzero(matrix.slow).tolist()]
    suspected = {part for pair in slow for group in _groups_of(pair, paths) for part, _ in _parts_of(group)}
    through: Through = {part: {} for part in sorted(suspected, key=_order)}
    _list_by_ends(through, matrix.pairs, {end.host for pair in slow for end in (pair.src, pair.dst)})
    through |= _split_ports(through, matrix.pairs)
    if paths:
        _list_by_paths(through, matrix.pairs, paths)
    return _flatten(_without_single_nic_hosts(_join_directions(through), matrix.pairs))


def _list_by_ends(through: Through, pairs: tuple[Pair, ...], hosts: set[str]) -> None:
    """Note the pairs that begin or end at suspected hosts; the others have nothing to do with their parts."""
    for number, pair in enumerate(pairs):
        if pair.src.host in hosts or pair.dst.host in hosts:
            for group in _groups_of(pair, None):
                for part, share in _parts_of(group):
                    if part in through:
                        through[part][number] = share


def _split_ports(through: Through, pairs: tuple[Pair, ...]) -> Through:
    """Return what may be one port of a NIC that is known as several: the GPUs nearest to it use that, others not.

    Two GPUs of a host that are slow alike share a port sooner than that the PCIe of both is at fault.
    """
    split: Through = {}
    for part, numbers in through.items():
        ports = _count_ports(part.component)
        if part.kind != "nic" or ports == 1:
            continue
        gpu_of = {number: pairs[number].src_gpu if part.side == "tx" else pairs[number].dst_gpu for number in numbers}
        gpus = sorted({gpu for gpu in gpu_of.values() if gpu is not None})
        size = len(gpus) // ports
        for first in range(0, len(gpus), size) if size > 1 and len(gpus) % ports == 0 else ():
            near = gpus[first : first + size]
            split[replace(part, gpu=near[0])] = {number: 1.0 for number in numbers if gpu_of[number] in near}
    return split


def _list_by_paths(through: Through, pairs: tuple[Pair, ...], paths: Paths) -> None:
    """Note the pairs that cross suspected links and switches: few different paths, many pairs."""
    crossed: dict[PathKey, list[tuple[dict[int, float], float]]] = {}  # what is noted for the pairs of each path
    for number, pair in enumerate(pairs):
        path = paths.path_of(pair)
        if path not in crossed:
            parts = _parts_of(paths.hops(pair))
            crossed[path] = [(through[part], share) for part, share in parts if part in through]
        for members, share in crossed[path]:
            members[number] = share


def list_inner_suspects(inner: InnerMatrix) -> Suspects:
    """Return every NVLink and host inside which a group of GPUs is slow; the groups stand for wires."""
    slow = {inner.groups[number].host for number in np.flatnonzero(inner.slow).tolist()}
    through: Through = {}
    for number, group in enumerate(inner.groups):
        if group.host in slow:
            parts = [Part("host", host_name(group.host)), *(_nvlink(group.host, gpu) for gpu in group.gpus)]
            for part in parts:
                through.setdefault(part, {})[number] = 1.0
    return _flatten(through)


def _nvlink(host: str, gpu: int) -> Part:
    return Part("nvlink", f"nvlink:{host}/{gpu}")


# What pairs have in common and what names parts: two ends, an end with its GPU and direction, or a path through the
# fabric.
_Group = tuple[End, End] | tuple[End, int | None, Side] | tuple[Hop, ...]


def _groups_of(pair: Pair, paths: Paths | None) -> tuple[_Group, ...]:
    ends: tuple[_Group, ...] = ((pair.src, pair.dst), (pair.src, pair.src_gpu, "tx"), (pair.dst, pair.dst_gpu, "rx"))
    return (*ends, paths.hops(pair)) if paths else ends


def _parts_of(group: _Group) -> Iterator[tuple[Part, float]]:
    """Yield the parts that a group names, one direction each, with the probability that its pairs use it."""
    match group:
        case (End() as src, End() as dst):
            yield Part("pair", f"link:{src}--{dst}", "tx"), min(_share_of_port(src), _share_of_port(dst))
        case (End() as end, int() | None as gpu, "tx" | "rx" as side):
            yield from _parts_at(end, gpu, side)
        case hops:
            yield from ((_part_of(hop), hop.share) for hop in hops if hop.share >= _LEAST_SHARE)


def _parts_at(end: End, gpu: int | None, side: Side) -> Iterator[tuple[Part, float]]:
    yield Part("host", host_name(end.host), side), 1.0
    if end.nic:
        yield Part("nic", nic_name(end.host, end.nic), side), _share_of_port(end)
        if gpu is not None:
            yield Part("pcie", f"pcie:{end.host}/{gpu}"), 1.0
    elif gpu is not None:  # its PCIe and its NIC cannot be told apart
        yield Part("host", host_name(end.host), side, gpu), 1.0


def _share_of_port(end: End) -> float:
    """Return how likely a pair runs through the port that breaks, where a NIC is known as several."""
    return 1 / _count_ports(end.nic or "")


def _count_ports(nic: str) -> int:
    return nic.count(",") + 1


def _part_of(hop: Hop) -> Part:
    return Part("link", hop.name, hop.side) if hop.side else Part("switch", switch_name(hop.name))


def _join_directions(through: Through) -> Through:
    """Return the parts together with their two directions taken as one, where both carry something."""
    joined: Through = {}
    for part, pairs in through.items():
        other = _opposite(part)
        if other is not None and other in through:
            both = dict(pairs)
            for number, share in through[other].items():
                both[number] = max(share, both.get(number, 0.0))
            joined[replace(part, side=None)] = both
    return {**through, **joined}


def _opposite(part: Part) -> Part | None:
    """Return the other direction of a part that is one of two; each two are asked for once."""
    if part.kind != "pair":
        return replace(part, side="rx") if part.side == "tx" else None
    near, far = part.ends
    return replace(part, component=f"link:{far}--{near}") if near < far else None


def _without_single_nic_hosts(through: Through, pairs: tuple[Pair, ...]) -> Through:
    """Leave out hosts that are no more than one NIC: it stands for them."""
    nics: dict[str, set[str | None]] = defaultdict(set)
    for part, numbers in through.items():
        if part.kind == "host":
            ends = (end for number in numbers for end in (pairs[number].src, pairs[number].dst))
            nics[part.component] |= {end.nic for end in ends if host_name(end.host) == part.component}
    return {
        part: numbers
        for part, numbers in through.items()
        if part.kind != "host" or len(nics[part.component]) > 1 or None in nics[part.component]
    }


def _flatten(through: Through) -> Suspects:
    parts = tuple(sorted(through, key=_order))
    sizes = [len(through[part]) for part in parts]
    return Suspects(
        parts=parts,
        part=np.repeat(np.arange(len(parts)), sizes),
        pair=_gather((through[part].keys() for part in parts), np.int64),
        share=_gather((through[part].values() for part in parts), np.float64),
    )


def _gather(values: Iterable[Iterable[float]], kind: type[np.generic]) -> np.ndarray:
    return np.array([value for each in values for value in each], kind)


def _order(part: Part) -> tuple[int, int, str, int]:
    """Return what decides among equals: as far as possible not its name, which says nothing."""
    return _LOWEST_FIRST.index(part.kind), _SIDES.index(part.side), part.component, part.gpu or 0
