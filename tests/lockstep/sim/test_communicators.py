"""Communicators have members, ids and channels of their own; their connections have ports, NICs and ways."""

import numpy as np
import pytest

from lockstep.sim.communicators import Communicators
from lockstep.sim.network import BYTES_PER_NS, Network
from lockstep.sim.placement import place
from lockstep.sim.story import GroupKind, JobShape, Layout, Story, build_topology
from tests.lockstep.sim.build import cluster, story

SHARDED = story(job=JobShape(layout=Layout(tp=4)))


def comms_of(told: Story, kind: GroupKind, attempt: int = 0) -> Communicators:
    return Communicators(
        kind, place(told), Network(build_topology(told.cluster), told.cluster.nics_per_host), attempt
    )


def test_every_communicator_has_its_own_id_in_every_attempt() -> None:
    ids = [comms_of(SHARDED, kind, attempt).ids for kind in ("tp", "dp", "world") for attempt in (0, 1)]
    assert len(np.unique(np.concatenate(ids))) == 2 * (4 + 4 + 1)
    assert (comms_of(SHARDED, "dp").ids == comms_of(SHARDED, "dp").ids).all()


def test_whole_hosts_have_a_channel_per_nic_and_others_two() -> None:
    assert comms_of(story(cluster=cluster(gpus_per_host=4, nics_per_host=4)), "world").channels == 4
    assert comms_of(SHARDED, "tp").channels == 2
    assert comms_of(SHARDED, "dp").channels == 2


def test_groups_inside_a_host_have_no_connections_between_hosts() -> None:
    assert not comms_of(SHARDED, "tp").ring_flows(np.arange(4)).crosses.any()
    assert comms_of(SHARDED, "dp").ring_flows(np.arange(4)).crosses.all()


def test_ring_edges_lead_from_each_place_to_the_next() -> None:
    comms = comms_of(SHARDED, "dp")
    flows = comms.ring_flows(np.array([1, 3]))
    assert flows.src.shape == (4, 4)  # two groups on two channels
    assert (flows.dst == np.roll(flows.src, -1, axis=1)).all()
    assert (comms.members[flows.group, flows.src_place] == flows.src).all()
    assert (comms.members[flows.group, flows.dst_place] == flows.dst).all()
    assert set(flows.group.ravel().tolist()) == {1, 3}


def test_tree_edges_join_children_and_parents_both_ways() -> None:
    comms = comms_of(story(), "world")
    tree = comms.tree(np.arange(1))
    up, down = (comms.tree_flows(np.arange(1), tree, is_up) for is_up in (True, False))
    assert (up.src == down.dst).all()
    assert (up.dst == down.src).all()
    assert len(up.src) == comms.channels * 15


def test_connection_keeps_its_port_and_way_and_another_attempt_has_others() -> None:
    told = story(cluster=cluster(routing="ecmp", hosts=8, spines=4))
    one, same, other = (comms_of(told, "world", attempt).ring_flows(np.arange(1)) for attempt in (0, 0, 1))
    assert (one.sport == same.sport).all()
    assert (one.paths == same.paths).all()
    assert (one.sport != other.sport).any()
    assert ((one.sport[one.crosses] >= 49152) & (one.sport[one.crosses] < 65536)).all()
    assert (one.sport[~one.crosses] == 0).all()


def test_planned_ways_share_links_evenly_where_hashed_ones_collide() -> None:
    def slowest(routing: str) -> float:
        shape = cluster(hosts=8, gpus_per_host=4, nics_per_host=4, hosts_per_leaf=1, spines=4, routing=routing)
        told = story(cluster=shape)
        comms = comms_of(told, "world")
        flows = comms.ring_flows(np.arange(1))
        capacity = Network(build_topology(shape), 4).capacity
        return float(flows.rates(capacity, nvlink=300.0)[flows.crosses].min()) / (100.0 * BYTES_PER_NS)

    assert slowest("planned") == pytest.approx(1.0)
    assert slowest("ecmp") <= 0.5


def test_groups_that_share_a_nic_share_its_rate() -> None:
    """Four data-parallel groups on two NICs a host, two channels each: four connections through every NIC."""
    comms = comms_of(SHARDED, "dp")
    flows = comms.ring_flows(np.arange(4))
    capacity = Network(build_topology(SHARDED.cluster), 2).capacity
    assert flows.rates(capacity, 300.0).max() == pytest.approx(100.0 * BYTES_PER_NS / 4)
    alone = comms.ring_flows(np.arange(1))
    assert alone.rates(capacity, 300.0).max() == pytest.approx(100.0 * BYTES_PER_NS / 2)


def test_trees_and_pairs_stay_on_their_plane_and_use_both() -> None:
    told = story(cluster=cluster(fabric="dual_plane"))
    comms = comms_of(told, "world")
    src, dst = np.nonzero(~np.eye(16, dtype=bool))
    tree = comms.tree(np.arange(1))
    for flows in (comms.pair_flows(np.zeros_like(src), src, dst), comms.tree_flows(np.arange(1), tree, up=True)):
        assert (flows.tx_nic % 2 == flows.rx_nic % 2).all()
        assert set((flows.tx_nic[flows.crosses] % 2).tolist()) == {0, 1}


def test_pairs_are_as_they_were_asked_for() -> None:
    comms = comms_of(SHARDED, "dp")
    flows = comms.pair_flows(np.array([0, 2]), np.array([0, 1]), np.array([3, 2]))
    assert flows.src.tolist() == [0, 6]
    assert flows.dst.tolist() == [12, 10]
    back = comms.pair_flows(np.array([0, 2]), np.array([0, 1]), np.array([1, 0]))
    assert back.dst.tolist() == [4, 2]
