"""Flows take paths that exist, and no link ever carries more than it can."""

from itertools import pairwise

import numpy as np
import pytest

from lockstep.errors import BadScenario
from lockstep.topology import split_end
from simulator.job import place_ranks
from simulator.network import BYTES_PER_NS, Communicators, Network, flow_key
from simulator.scenario import ClusterShape, GroupKind, JobShape, Layout, Scenario, build_topology
from tests.simulator.build import cluster, scenario

SHAPES = {
    "leaf_spine": cluster(hosts=8, hosts_per_leaf=2, spines=3),
    "rails": cluster(hosts=8, gpus_per_host=4, nics_per_host=4, hosts_per_leaf=4, fabric="rails"),
    "dual_plane": cluster(hosts=8, hosts_per_leaf=2, fabric="dual_plane"),
}


def network_of(shape: ClusterShape) -> Network:
    return Network(build_topology(shape), shape.nics_per_host)


@pytest.mark.parametrize("fabric", list(SHAPES))
def test_path_leads_link_by_link_from_nic_to_nic(fabric: str) -> None:
    shape = SHAPES[fabric]
    network = network_of(shape)
    nics = shape.hosts * shape.nics_per_host
    src, dst = np.nonzero(~np.eye(nics, dtype=bool))
    if fabric == "dual_plane":
        src, dst = src[src % 2 == dst % 2], dst[src % 2 == dst % 2]
    paths = network.choose_paths(src, dst, np.arange(len(src)))
    for start, end, path in zip(src.tolist(), dst.tolist(), paths.tolist(), strict=True):
        ends = [_ends(network, link) for link in path if link != network.nowhere]
        assert ends[0][0] == f"h{start // shape.nics_per_host}/eth{start % shape.nics_per_host}"
        assert ends[-1][1] == f"h{end // shape.nics_per_host}/eth{end % shape.nics_per_host}"
        assert all(split_end(one[1])[0] == split_end(two[0])[0] for one, two in pairwise(ends))


def _ends(network: Network, link: int) -> tuple[str, str]:
    wire = network.links[link // 2]
    return (wire.a, wire.b) if link % 2 == 0 else (wire.b, wire.a)


def test_flows_under_one_leaf_stay_there_and_planes_are_never_joined() -> None:
    network = network_of(SHAPES["leaf_spine"])
    path = network.choose_paths(np.array([0]), np.array([2]), np.array([7]))[0].tolist()
    assert [link for link in path if link != network.nowhere] == [path[0], path[3]]
    network = network_of(SHAPES["dual_plane"])
    with pytest.raises(BadScenario, match="no way to each other"):
        network.choose_paths(np.array([0]), np.array([15]), np.array([0]))


def test_planned_flows_share_links_evenly_where_hashed_ones_collide() -> None:
    network = network_of(SHAPES["leaf_spine"])
    src, dst = np.array([0, 1, 2, 3, 0, 1]), np.array([8, 9, 10, 11, 12, 13])
    planned = network.choose_paths(src, dst, network.spread_evenly(src, dst))[:, 1]
    assert np.bincount(planned).max() == 2
    hashed = network.choose_paths(src, dst, np.array([flow_key("x", n) for n in range(6)]))[:, 1]
    assert np.bincount(hashed).max() > 2

    def slowest(routing: str) -> float:
        shape = cluster(hosts=8, gpus_per_host=4, nics_per_host=4, hosts_per_leaf=1, spines=4, routing=routing)
        flows = comms_of(scenario(cluster=shape), "world").ring_flows(np.arange(1))
        capacity = Network(build_topology(shape), 4).capacity
        return float(flows.rates(capacity, nvlink=300.0)[flows.crosses].min()) / (100.0 * BYTES_PER_NS)

    assert slowest("planned") == pytest.approx(1.0)
    assert slowest("ecmp") <= 0.5


def test_links_are_found_by_name() -> None:
    network = network_of(SHAPES["leaf_spine"])
    there, back = network.links_of("leaf1--spine2")
    assert (_ends(network, there), _ends(network, back)) == (("leaf1", "spine2"), ("spine2", "leaf1"))
    assert (len(network.links_at("leaf0")), len(network.links_between_switches())) == (2 * (2 * 2 + 3), 2 * 4 * 3)
    up, down = network.links_of_nic(3)
    assert (_ends(network, up)[0], _ends(network, down)[1]) == ("h1/eth1", "h1/eth1")
    assert (network.capacity[[there, up]] / BYTES_PER_NS).tolist() == pytest.approx([400.0 / 3, 100.0])


SHARDED = scenario(job=JobShape(layout=Layout(tp=4)))


def comms_of(told: Scenario, kind: GroupKind, attempt: int = 0) -> Communicators:
    return Communicators(
        kind, place_ranks(told), Network(build_topology(told.cluster), told.cluster.nics_per_host), attempt
    )


def test_communicators_have_their_own_ids_and_a_channel_per_nic_or_two() -> None:
    ids = [comms_of(SHARDED, kind, attempt).ids for kind in ("tp", "dp", "world") for attempt in (0, 1)]
    assert len(np.unique(np.concatenate(ids))) == 2 * (4 + 4 + 1)
    assert (comms_of(SHARDED, "dp").ids == comms_of(SHARDED, "dp").ids).all()
    assert comms_of(scenario(cluster=cluster(gpus_per_host=4, nics_per_host=4)), "world").channels == 4
    assert comms_of(SHARDED, "tp").channels == 2
    assert comms_of(SHARDED, "dp").channels == 2
    assert not comms_of(SHARDED, "tp").ring_flows(np.arange(4)).crosses.any()
    assert comms_of(SHARDED, "dp").ring_flows(np.arange(4)).crosses.all()


def test_edges_of_rings_trees_and_pairs_join_the_members_asked_for() -> None:
    comms = comms_of(SHARDED, "dp")
    flows = comms.ring_flows(np.array([1, 3]))
    assert flows.src.shape == (4, 4)  # two groups on two channels
    assert (flows.dst == np.roll(flows.src, -1, axis=1)).all()
    assert (comms.members[flows.group, flows.src_index] == flows.src).all()
    assert (comms.members[flows.group, flows.dst_index] == flows.dst).all()
    assert set(flows.group.ravel().tolist()) == {1, 3}
    comms = comms_of(scenario(), "world")
    tree = comms.tree(np.arange(1))
    up, down = (comms.tree_flows(np.arange(1), tree, is_up) for is_up in (True, False))
    assert (up.src == down.dst).all()
    assert (up.dst == down.src).all()
    assert len(up.src) == comms.channels * 15
    comms = comms_of(SHARDED, "dp")
    flows = comms.pair_flows(np.array([0, 2]), np.array([0, 1]), np.array([3, 2]))
    assert (flows.src.tolist(), flows.dst.tolist()) == ([0, 6], [12, 10])
    back = comms.pair_flows(np.array([0, 2]), np.array([0, 1]), np.array([1, 0]))
    assert back.dst.tolist() == [4, 2]


def test_connection_keeps_its_port_and_way_and_another_attempt_has_others() -> None:
    told = scenario(cluster=cluster(routing="ecmp", hosts=8, spines=4))
    one, same, other = (comms_of(told, "world", attempt).ring_flows(np.arange(1)) for attempt in (0, 0, 1))
    assert (one.sport == same.sport).all()
    assert (one.paths == same.paths).all()
    assert (one.sport != other.sport).any()
    assert ((one.sport >= 49152) & (one.sport < 65536) == one.crosses).all()
    assert (one.sport[~one.crosses] == 0).all()


def test_groups_that_share_a_nic_share_its_rate() -> None:
    """Four data-parallel groups on two NICs a host, two channels each: four connections through every NIC."""
    comms = comms_of(SHARDED, "dp")
    flows = comms.ring_flows(np.arange(4))
    capacity = Network(build_topology(SHARDED.cluster), 2).capacity
    assert flows.rates(capacity, 300.0).max() == pytest.approx(100.0 * BYTES_PER_NS / 4)
    alone = comms.ring_flows(np.arange(1))
    assert alone.rates(capacity, 300.0).max() == pytest.approx(100.0 * BYTES_PER_NS / 2)


def test_trees_and_pairs_stay_on_their_plane_and_use_both() -> None:
    told = scenario(cluster=cluster(fabric="dual_plane"))
    comms = comms_of(told, "world")
    src, dst = np.nonzero(~np.eye(16, dtype=bool))
    tree = comms.tree(np.arange(1))
    for flows in (comms.pair_flows(np.zeros_like(src), src, dst), comms.tree_flows(np.arange(1), tree, up=True)):
        assert (flows.tx_nic % 2 == flows.rx_nic % 2).all()
        assert set((flows.tx_nic[flows.crosses] % 2).tolist()) == {0, 1}
