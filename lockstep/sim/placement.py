"""Which rank sits where, and the rings NCCL would build: one per NIC, in and out of each host through it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.sim.story import ClusterShape

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rings:
    """All rings of a communicator over all ranks; a channel is a row, a place in its ring a column."""

    rank: Ints  # (channels, ranks): which rank stands at this place
    crosses: NDArray[np.bool_]  # (channels, ranks): whether the edge to the next place leaves the host
    tx_nic: Ints  # (channels, ranks): NIC the edge leaves through, as host * nics_per_host + nic
    rx_nic: Ints  # (channels, ranks): NIC the edge comes in through


def host_of(rank: Ints, shape: ClusterShape) -> Ints:
    return rank // shape.gpus_per_host


def build_rings(shape: ClusterShape) -> Rings:
    """Return one ring per NIC of a host. GPUs share NICs evenly, and a rank uses the NIC of its GPU.

    Channel c enters every host at the first GPU of NIC c and leaves it at the last one (with one GPU per
    NIC: at the GPU before it), so an all-reduce loads every NIC in both directions.
    """
    orders = np.stack([_order_in_host(channel, shape) for channel in range(shape.nics_per_host)])
    hosts = np.arange(shape.hosts)[None, :, None] * shape.gpus_per_host
    rank = (hosts + orders[:, None, :]).reshape(shape.nics_per_host, -1)
    following = np.roll(rank, -1, axis=1)
    return Rings(
        rank=rank,
        crosses=host_of(rank, shape) != host_of(following, shape),
        tx_nic=_nic_of(rank, shape),
        rx_nic=_nic_of(following, shape),
    )


def _order_in_host(channel: int, shape: ClusterShape) -> Ints:
    gpus_per_nic = shape.gpus_per_host // shape.nics_per_host
    entry = channel * gpus_per_nic
    exit_gpu = (entry + gpus_per_nic - 1) if gpus_per_nic > 1 else (entry - 1) % shape.gpus_per_host
    others = [gpu for gpu in range(shape.gpus_per_host) if gpu not in (entry, exit_gpu)]
    order = [entry, *others] + ([exit_gpu] if exit_gpu != entry else [])
    return np.array(order, np.int64)


def _nic_of(rank: Ints, shape: ClusterShape) -> Ints:
    gpu = rank % shape.gpus_per_host
    return host_of(rank, shape) * shape.nics_per_host + gpu // (shape.gpus_per_host // shape.nics_per_host)
