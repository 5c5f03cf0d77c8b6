"""Which wire is slow: a delay per byte for every pair of NICs, held against what its peers need.

Traffic of one kind is homogeneous, so pairs that carry the same size class over the same transport need about the
same time per byte and gigabit. A pair's excess is the logarithm of its delay over the median of its kind, pooled
over size classes by bytes; its spread is the median absolute deviation of all pairs. The median stands as long as
fewer than half of the pairs are slow: what hits everybody at once is not seen here. A kind with too few rows for a
median is left out, and so are rows without bytes or wire time: they show a coarse clock, not a fast wire. A pair
that needs no longer than its link's rate allows is never slow, whatever the others need: on sockets, where the kernel
takes the bytes at once as long as it has room, the others may need next to nothing.

Cost: O(rows log rows) for the medians. Reference: the delay matrix of C4D (HPCA'25).
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from analyzer.context import End
from lockstep.topology import TopologyIndex

if TYPE_CHECKING:
    import torch

Pair = tuple[End, End]  # sender, receiver
K = TypeVar("K", bound=Hashable)

_NS_PER_BYTE = 8.0  # at 1 Gb/s
_MAD_TO_SIGMA = 1.4826  # for normally distributed excesses


@dataclass(frozen=True, slots=True)
class DelayOptions:
    """When a pair counts as slow."""

    min_pairs: int = 8  # fewer, and a single slow one moves the median and the spread it is judged by
    hot_ratio: float = 1.25  # below, a job loses less than restarting it costs, and congestion looks the same
    hot_sigmas: float = 6.0  # one false pair in 10^9 if excesses were normal; they are not, hence the ratio too
    min_spread: float = 0.01  # a cluster quieter than 1 % would make every hiccup many sigmas


@dataclass(frozen=True)
class DelayMatrix:
    """The delay of every pair of ends that was compared; arrays are parallel to `pairs`."""

    pairs: tuple[Pair, ...]
    transports: frozenset[str | None]
    ratio: np.ndarray  # delay over the median of its kind; 1 is normal
    sigmas: np.ndarray  # excess in units of the spread between pairs
    hot: np.ndarray  # whether it is slow
    ns_per_byte: np.ndarray


def build_matrix(rows: pa.Table, topology: TopologyIndex | None, options: DelayOptions) -> DelayMatrix | None:
    """Return the delay matrix of a window, or None when too few pairs can be compared."""
    rows = _comparable(rows, options.min_pairs)
    places, pairs = _pairs_of(rows)
    if len(pairs) < options.min_pairs:
        return None
    import torch  # two seconds to import, and only needed once there is a window to look at

    size, wire = (torch.from_numpy(rows[name].to_numpy().astype(np.float64)) for name in ("bytes", "wire_ns"))
    known = _known_gbps(pairs, topology)
    gbps = torch.tensor(_or_usual(known), dtype=torch.float64)
    excess = _minus_median_of_kind(torch.log(wire / size * gbps[places]), rows)
    pooled = _mean_by_pair(excess, size, places, len(pairs))
    pooled = pooled - pooled.median()
    spread = max(float(pooled.abs().median()) * _MAD_TO_SIGMA, options.min_spread)
    ratio, sigmas = torch.exp(pooled), pooled / spread
    ns_per_byte = _mean_by_pair(wire / size, size, places, len(pairs)).numpy()
    return DelayMatrix(
        pairs=pairs,
        transports=frozenset(rows["transport"].to_pylist()),
        ratio=ratio.numpy(),
        sigmas=sigmas.numpy(),
        hot=((ratio >= options.hot_ratio) & (sigmas >= options.hot_sigmas)).numpy()
        & (ns_per_byte >= _least_ns_per_byte(known)),
        ns_per_byte=ns_per_byte,
    )


def _comparable(rows: pa.Table, min_pairs: int) -> pa.Table:
    """Return the rows with a delay whose kind has enough of them: few would be judged by each other."""
    measured = rows.filter(pa.array((rows["bytes"].to_numpy() > 0) & (rows["wire_ns"].to_numpy() > 0)))
    kind, _ = _number(_kinds(measured))
    return measured.filter(pa.array(np.bincount(kind)[kind] >= min_pairs))


def _kinds(rows: pa.Table) -> Iterable[tuple[str | None, int]]:
    """Return what makes rows comparable: the same transport and the same size of operation."""
    return zip(rows["transport"].to_pylist(), rows["size_class"].to_pylist(), strict=True)


def _pairs_of(rows: pa.Table) -> tuple[np.ndarray, tuple[Pair, ...]]:
    """Return the number of each row's pair, and the pairs by number."""
    columns = (rows[name].to_pylist() for name in ("src_host", "src_nic", "dst_host", "dst_nic"))
    places, distinct = _number(zip(*columns, strict=True))
    return places, tuple((End(src, src_nic), End(dst, dst_nic)) for src, src_nic, dst, dst_nic in distinct)


def _number(values: Iterable[K]) -> tuple[np.ndarray, list[K]]:
    """Return a number for each value, equal for equal ones, and the values by number."""
    numbers: dict[K, int] = {}
    places = [numbers.setdefault(value, len(numbers)) for value in values]
    return np.array(places, np.int64), list(numbers)


def _known_gbps(pairs: tuple[Pair, ...], topology: TopologyIndex | None) -> list[float]:
    """Return the rate each pair is built for, that of its slower end; 0 where the topology does not know it."""
    rates = {end: _end_gbps(end, topology) for end in {end for pair in pairs for end in pair}} if topology else {}
    return [min((rates[end] for end in pair if rates.get(end)), default=0.0) for pair in pairs]


def _or_usual(known: list[float]) -> list[float]:
    """Return the rates so that mixed fabrics compare.

    Pairs that the topology does not know are taken for the usual: any other rate would make them, or everybody
    else, look slow.
    """
    usual = median_low([rate for rate in known if rate] or [1.0])
    return [rate or usual for rate in known]


def _least_ns_per_byte(known: list[float]) -> np.ndarray:
    """Return what a byte takes on each pair's slower link when nothing else does; 0 where the rate is not known."""
    return np.array([_NS_PER_BYTE / rate if rate else 0.0 for rate in known])


def _end_gbps(end: End, topology: TopologyIndex) -> float:
    """Return the rate of a NIC's cable, or of the slowest of its host while the NIC is unknown; 0: unknown."""
    nics = [end.nic] if end.nic else [nic.id for nic in topology.nics_of(end.host)]
    links = (topology.host_link(end.host, nic) for nic in nics)
    return min((link.gbps for link in links if link), default=0.0)


def _minus_median_of_kind(values: "torch.Tensor", rows: pa.Table) -> "torch.Tensor":
    kind, kinds = _number(_kinds(rows))
    result = values.clone()
    for number in range(len(kinds)):
        result[kind == number] -= values[kind == number].median()
    return result


def _mean_by_pair(values: "torch.Tensor", weights: "torch.Tensor", places: np.ndarray, pairs: int) -> "torch.Tensor":
    import torch

    into = torch.from_numpy(places)
    total = torch.zeros(pairs, dtype=values.dtype).index_add(0, into, values * weights)
    return total / torch.zeros(pairs, dtype=values.dtype).index_add(0, into, weights)
