"""Advice for stock NCCL keeps rings inside leaves, NICs on their rails, and dead NICs out."""

from lockstep.fabrics import FabricOptions, fat_tree, leaf_spine
from planner.paths.advice import advise_nccl, count_crossings, order_hosts
from planner.paths.network import build_network, without

MIXED = ["h0", "h4", "h1", "h5"]


def test_hosts_of_one_leaf_and_leaves_of_one_pod_follow_each_other() -> None:
    network = build_network(leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=4))
    advice = advise_nccl(network, MIXED)
    assert (advice.host_order, advice.crossings) == (("h0", "h1", "h4", "h5"), (4, 2))
    assert advice.notes[0].startswith("this is advice")
    assert "2 hops of a ring leave a leaf instead of 4" in advice.notes[1]
    tree = build_network(fat_tree(4))
    order = order_hosts(tree, ["h0", "h8", "h2", "h10", "h1", "h9"])
    assert order == ["h0", "h1", "h2", "h8", "h9", "h10"]
    assert count_crossings(tree, order) == 4


def test_queue_pairs_are_split_where_switches_hash_and_not_where_they_choose_themselves() -> None:
    by_hash, by_itself = (
        advise_nccl(build_network(leaf_spine(8, 1, 2, 4, FabricOptions(routing=routing))), MIXED).variables
        for routing in ("ecmp", "adaptive")
    )
    assert by_hash["NCCL_IB_QPS_PER_CONNECTION"] == "4"
    assert "NCCL_IB_QPS_PER_CONNECTION" not in by_itself
    assert by_itself["NCCL_IB_ADAPTIVE_ROUTING"] == "1"


def test_a_host_goes_without_its_dead_nic_and_says_so() -> None:
    network = without(build_network(leaf_spine(hosts=4, nics_per_host=3, leaves=2, spines=2)), ["nic:h1/eth2"])
    advice = advise_nccl(network, ["h0", "h1", "nobody"])
    assert advice.by_host == {"h1": {"NCCL_IB_HCA": "=eth0,eth1"}}
    assert advice.notes[-1] == "h1 goes without the NICs that carry nothing: NCCL_IB_HCA=eth0,eth1"
