"""Rings visit every rank once, leave and enter hosts by the NICs of their GPUs, and load all NICs alike."""

import numpy as np
import pytest

from lockstep.sim.placement import build_rings, host_of
from lockstep.sim.story import ClusterShape, build_topology
from tests.lockstep.sim.build import cluster

SHAPES = [
    cluster(),
    cluster(hosts=2, gpus_per_host=1, nics_per_host=1),
    cluster(hosts=2, gpus_per_host=2, nics_per_host=2),
    cluster(hosts=4, gpus_per_host=8, nics_per_host=8),
    cluster(hosts=8, gpus_per_host=8, nics_per_host=4),
    cluster(hosts=6, gpus_per_host=8, nics_per_host=1),
]

every_shape = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: f"{shape.hosts} hosts {shape.gpus_per_host} GPUs {shape.nics_per_host} NICs"
)


@every_shape
def test_every_rank_stands_once_in_every_ring(shape: ClusterShape) -> None:
    ranks = range(shape.hosts * shape.gpus_per_host)
    rank = build_rings(shape).rank
    assert rank.shape == (shape.nics_per_host, len(ranks))
    assert all(sorted(ring) == list(ranks) for ring in rank.tolist())


@every_shape
def test_ring_leaves_every_host_once(shape: ClusterShape) -> None:
    rings = build_rings(shape)
    following = np.roll(rings.rank, -1, axis=1)
    assert (rings.crosses == (host_of(rings.rank, shape) != host_of(following, shape))).all()
    for ring, crosses in zip(rings.rank, rings.crosses, strict=True):
        assert sorted(host_of(ring[crosses], shape)) == list(range(shape.hosts))


@every_shape
def test_edges_between_hosts_use_the_nics_of_their_gpus(shape: ClusterShape) -> None:
    gpus = [gpu for host in build_topology(shape).hosts for gpu in host.gpus]
    nics = [f"eth{number}" for number in range(shape.nics_per_host)] * shape.hosts
    rings = build_rings(shape)
    following = np.roll(rings.rank, -1, axis=1)
    for ranks, numbers in ((rings.rank, rings.tx_nic), (following, rings.rx_nic)):
        for rank, nic in zip(ranks[rings.crosses], numbers[rings.crosses], strict=True):
            assert gpus[rank].nics == (nics[nic],)
            assert rank // shape.gpus_per_host == nic // shape.nics_per_host


@every_shape
def test_every_nic_is_loaded_alike_in_both_directions(shape: ClusterShape) -> None:
    rings = build_rings(shape)
    for numbers in (rings.tx_nic, rings.rx_nic):
        load = np.bincount(numbers[rings.crosses], minlength=shape.hosts * shape.nics_per_host)
        assert load.tolist() == [1] * (shape.hosts * shape.nics_per_host)


@pytest.mark.parametrize(("gpus", "nics"), [(8, 4), (4, 2), (2, 1)])
def test_channel_enters_and_leaves_a_host_through_its_own_nic(gpus: int, nics: int) -> None:
    """With several GPUs to a NIC; with one each, a channel leaves by the NIC before its own."""
    shape = cluster(gpus_per_host=gpus, nics_per_host=nics)
    rings = build_rings(shape)
    channel = np.nonzero(rings.crosses)[0]
    assert (rings.tx_nic[rings.crosses] % nics == channel).all()
    assert (rings.rx_nic[rings.crosses] % nics == channel).all()
