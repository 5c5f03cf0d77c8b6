"""Which wire is slow: a delay per byte for every pair of NICs, held against what its peers need.

Traffic of one kind is homogeneous, so pairs that carry the same size class over the same transport need about the
same time per byte and gigabit. A pair's excess is the logarithm of its delay over the median of its kind, pooled
over size classes by bytes; its spread is the median absolute deviation of all pairs. The median stands as long as
fewer than half of the pairs are slow: what hits everybody at once is not seen here.

Cost: O(rows log rows) for the medians. Reference: the delay matrix of C4D (HPCA'25).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from analyzer.facts import End
from lockstep.topology import TopologyIndex

if TYPE_CHECKING:
    import torch

_MIN_NS_PER_BYTE = 1e-6  # a petabyte a second: a wire time of zero is a clock too coarse, not a fast wire
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

    pairs: tuple[tuple[End, End], ...]
    transports: frozenset[str | None]
    ratio: np.ndarray  # delay over the median of its kind; 1 is normal
    sigmas: np.ndarray  # excess in units of the spread between pairs
    hot: np.ndarray  # whether it is slow
    ns_per_byte: np.ndarray


def build_matrix(rows: pa.Table, topology: TopologyIndex | None, options: DelayOptions) -> DelayMatrix | None:
    """Return the delay matrix of a window, or None when too few pairs can be compared."""
    pair_of_row = _pairs_of(rows)
    pairs = tuple(dict.fromkeys(pair_of_row))
    if len(pairs) < options.min_pairs:
        return None
    import torch  # two seconds to import, and only needed once there is a window to look at

    number = {pair: index for index, pair in enumerate(pairs)}
    places = torch.tensor([number[pair] for pair in pair_of_row])
    gbps = torch.tensor([_nominal_gbps(pair, topology) for pair in pairs], dtype=torch.float64)
    size = torch.from_numpy(rows["bytes"].to_numpy().astype(np.float64))
    delay = torch.from_numpy(rows["wire_ns"].to_numpy().astype(np.float64)) / size
    excess = _minus_median_of_kind(torch.log(delay.clamp(min=_MIN_NS_PER_BYTE) * gbps[places]), _kinds(rows))
    pooled = _mean_by_pair(excess, size, places, len(pairs))
    pooled = pooled - pooled.median()
    spread = max(float(pooled.abs().median()) * _MAD_TO_SIGMA, options.min_spread)
    ratio, sigmas = torch.exp(pooled), pooled / spread
    return DelayMatrix(
        pairs=pairs,
        transports=frozenset(rows["transport"].to_pylist()),
        ratio=ratio.numpy(),
        sigmas=sigmas.numpy(),
        hot=((ratio >= options.hot_ratio) & (sigmas >= options.hot_sigmas)).numpy(),
        ns_per_byte=_mean_by_pair(delay, size, places, len(pairs)).numpy(),
    )


def _pairs_of(rows: pa.Table) -> list[tuple[End, End]]:
    columns = (rows[name].to_pylist() for name in ("src_host", "src_nic", "dst_host", "dst_nic"))
    return [(End(src, src_nic), End(dst, dst_nic)) for src, src_nic, dst, dst_nic in zip(*columns, strict=True)]


def _kinds(rows: pa.Table) -> list[tuple[str | None, int]]:
    """Return what makes rows comparable: the same transport and the same size of operation."""
    return list(zip(rows["transport"].to_pylist(), rows["size_class"].to_pylist(), strict=True))


def _nominal_gbps(pair: tuple[End, End], topology: TopologyIndex | None) -> float:
    """Return the rate that the slower of the two host links is built for, so that mixed fabrics compare; else 1."""
    links = [topology.host_link(end.host, end.nic) for end in pair if topology and end.nic]
    return min((link.gbps for link in links if link), default=1.0)


def _minus_median_of_kind(values: "torch.Tensor", kinds: list[tuple[str | None, int]]) -> "torch.Tensor":
    import torch

    result = values.clone()
    for kind in dict.fromkeys(kinds):
        mask = torch.tensor([other == kind for other in kinds])
        result[mask] -= values[mask].median()
    return result


def _mean_by_pair(
    values: "torch.Tensor", weights: "torch.Tensor", places: "torch.Tensor", pairs: int
) -> "torch.Tensor":
    import torch

    total = torch.zeros(pairs, dtype=values.dtype).index_add(0, places, values * weights)
    return total / torch.zeros(pairs, dtype=values.dtype).index_add(0, places, weights)
