"""Groups share out the ranks; lanes visit every member once and leave and enter hosts by the NICs of their GPUs."""

import numpy as np
import pytest

from lockstep.sim.communicators import Communicators
from lockstep.sim.network import Network
from lockstep.sim.placement import Lanes, Placement, build_lanes, place
from lockstep.sim.story import ClusterShape, GroupKind, JobShape, Layout, build_topology
from tests.lockstep.sim.build import cluster, story

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


def placed(shape: ClusterShape) -> Placement:
    return place(story(cluster=shape))


def world_lanes(shape: ClusterShape) -> Lanes:
    placement = placed(shape)
    return build_lanes(placement, placement.groups("world"), shape.nics_per_host)


@every_shape
def test_every_rank_stands_once_in_every_lane(shape: ClusterShape) -> None:
    ranks = range(shape.hosts * shape.gpus_per_host)
    rank = world_lanes(shape).rank
    assert rank.shape == (shape.nics_per_host, len(ranks))
    assert all(sorted(lane) == list(ranks) for lane in rank.tolist())


@every_shape
def test_lane_leaves_every_host_once(shape: ClusterShape) -> None:
    lanes, host_of = world_lanes(shape), placed(shape).host_of
    following = np.roll(lanes.rank, -1, axis=1)
    assert (lanes.crosses == (host_of[lanes.rank] != host_of[following])).all()
    for lane, crosses in zip(lanes.rank, lanes.crosses, strict=True):
        assert sorted(host_of[lane[crosses]]) == list(range(shape.hosts))


@every_shape
def test_edges_between_hosts_use_the_nics_of_their_gpus(shape: ClusterShape) -> None:
    gpus = [gpu for host in build_topology(shape).hosts for gpu in host.gpus]
    nics = [f"eth{number}" for number in range(shape.nics_per_host)] * shape.hosts
    lanes = world_lanes(shape)
    following = np.roll(lanes.rank, -1, axis=1)
    for ranks, numbers in ((lanes.rank, lanes.tx_nic), (following, lanes.rx_nic)):
        for rank, nic in zip(ranks[lanes.crosses], numbers[lanes.crosses], strict=True):
            assert gpus[rank].nics == (nics[nic],)
            assert rank // shape.gpus_per_host == nic // shape.nics_per_host


@every_shape
def test_every_nic_is_loaded_alike_in_both_directions(shape: ClusterShape) -> None:
    lanes = world_lanes(shape)
    for numbers in (lanes.tx_nic, lanes.rx_nic):
        load = np.bincount(numbers[lanes.crosses], minlength=shape.hosts * shape.nics_per_host)
        assert load.tolist() == [1] * (shape.hosts * shape.nics_per_host)


@pytest.mark.parametrize(("gpus", "nics"), [(8, 4), (4, 2), (2, 1)])
def test_channel_enters_and_leaves_a_host_through_its_own_nic(gpus: int, nics: int) -> None:
    """With several GPUs to a NIC; with one each, a channel leaves by the NIC before its own."""
    lanes = world_lanes(cluster(gpus_per_host=gpus, nics_per_host=nics))
    channel = np.nonzero(lanes.crosses)[0]
    assert (lanes.tx_nic[lanes.crosses] % nics == channel).all()
    assert (lanes.rx_nic[lanes.crosses] % nics == channel).all()


def test_lanes_stay_on_their_plane_and_use_both_nics_of_a_gpu() -> None:
    lanes = world_lanes(cluster(hosts=4, gpus_per_host=2, nics_per_host=2, fabric="dual_plane"))
    assert (lanes.tx_nic % 2 == lanes.rx_nic % 2).all()
    assert set((lanes.tx_nic[lanes.crosses] % 2).tolist()) == {0, 1}


LAYOUTS = [Layout(tp=4), Layout(tp=2, pp=2), Layout(tp=2, cp=2, pp=2), Layout(ep=4), Layout(tp=2, ep=2, pp=2)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", ["world", "tp", "cp", "dp", "pp", "ep"])
def test_groups_of_a_kind_have_every_rank_once(layout: Layout, kind: GroupKind) -> None:
    groups = place(story(job=JobShape(layout=layout))).groups(kind)
    assert sorted(groups.ravel().tolist()) == list(range(16))


def test_groups_count_tp_first_and_pp_last_as_megatron_does() -> None:
    placement = place(story(job=JobShape(layout=Layout(tp=2, cp=2, pp=2))))
    assert placement.layout == (2, 2, 2, 2, 1)
    assert placement.groups("tp")[0].tolist() == [0, 1]
    assert placement.groups("cp")[0].tolist() == [0, 2]
    assert placement.groups("dp")[0].tolist() == [0, 4]
    assert placement.groups("pp")[0].tolist() == [0, 8]
    assert placement.stage_of().tolist() == [0] * 8 + [1] * 8
    assert placement.replica_of().tolist() == ([0] * 4 + [1] * 4) * 2


def test_two_groups_of_different_kinds_meet_in_one_rank() -> None:
    placement = place(story(job=JobShape(layout=Layout(tp=4))))
    for tensor in placement.groups("tp"):
        assert all(len(np.intersect1d(tensor, data)) == 1 for data in placement.groups("dp"))


def test_fewer_hosts_have_fewer_replicas() -> None:
    told = story(job=JobShape(layout=Layout(tp=4)))
    shrunk = place(told, np.array([0, 1, 3]))
    assert (shrunk.ranks, shrunk.layout) == (12, (4, 1, 3, 1, 1))
    assert shrunk.host_of.tolist() == [0] * 4 + [1] * 4 + [3] * 4


def test_spare_host_brings_its_own_nics() -> None:
    told = story(cluster=cluster(hosts=3, spares=1))
    moved = place(told, np.array([0, 3, 2]))
    assert moved.nic_of.tolist() == [0, 0, 1, 1, 6, 6, 7, 7, 4, 4, 5, 5]
    lanes = build_lanes(moved, moved.groups("world"), 2)
    assert set(lanes.tx_nic[lanes.crosses].tolist()) == {0, 1, 4, 5, 6, 7}


def test_large_world_is_laid_out_like_a_small_one() -> None:
    """The members of each host stay together, in the same order on each."""
    shape = cluster(hosts=128, gpus_per_host=8, nics_per_host=8, hosts_per_leaf=16)
    placement = placed(shape)
    comms = Communicators("world", placement, Network(build_topology(shape), 8), attempt=0)
    inside = comms.lanes.place.reshape(8, 128, 8) % 8
    assert (inside == inside[:, :1]).all()
    assert inside[:, 0, 0].tolist() == list(range(8))
