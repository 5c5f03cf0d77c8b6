"""Every pair of NICs is probed within a lap, nobody by many at once, and never across planes that do not meet."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.fabrics import dual_plane, fat_tree, leaf_spine, rail_optimised
from lockstep.probing import Mesh, Pair
from lockstep.topology import Link, Nic, Node, Topology, TopologyIndex


def lap(topology: Topology, host: str, seed: int = 0) -> list[Pair]:
    mesh = Mesh(topology, host, seed)
    return [pair for step in range(mesh.steps_per_lap) if (pair := mesh.pair_at(step))]


@pytest.mark.parametrize(
    "topology",
    [
        leaf_spine(hosts=6, nics_per_host=2, leaves=3, spines=2),
        leaf_spine(hosts=3, nics_per_host=1, leaves=1, spines=1),
        leaf_spine(hosts=3, nics_per_host=1, leaves=3, spines=1),
        fat_tree(4),
        rail_optimised(hosts=4, rails=3, spines=2, pods=2),
    ],
    ids=["two tiers", "one leaf", "one host a leaf", "three tiers", "rails"],
)
def test_each_nic_of_all_other_hosts_is_probed_from_each_own_nic_within_a_lap(topology: Topology) -> None:
    for host in topology.hosts:
        theirs = [(node.id, nic.id) for node in topology.hosts if node != host for nic in node.nics]
        wanted = {(nic.id, *port) for nic, port in product(host.nics, theirs)}
        assert {(pair.src_nic, pair.dst, pair.dst_nic) for pair in lap(topology, host.id)} == wanted


@given(st.integers(0, 5), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_leaves_of_unequal_size_are_covered_too(seed: int, sizes: list[int]) -> None:
    hosts = [(f"h{leaf}-{number}", f"leaf{leaf}") for leaf, size in enumerate(sizes) for number in range(size)]
    nodes = [Node(id=host, kind="host", nics=(Nic(id="eth0"),)) for host, _ in hosts]
    switches = [Node(id=f"leaf{leaf}", kind="switch") for leaf in range(len(sizes))]
    links = [Link(id=f"{host}/eth0", a=f"{host}/eth0", b=leaf, gbps=1.0) for host, leaf in hosts]
    topology = Topology(routing="ecmp", nodes=(*nodes, *switches), links=tuple(links))
    for host, _ in hosts:
        assert {pair.dst for pair in lap(topology, host, seed)} == {other for other, _ in hosts} - {host}


def test_planes_are_probed_apart_each_nic_once_a_step_and_by_turns_inside_and_beyond_its_leaf() -> None:
    topology = dual_plane(hosts=4, leaves_per_plane=2, spines_per_plane=1)
    pairs = lap(topology, "h0")
    assert {(pair.src_nic, pair.dst_nic) for pair in pairs} == {("eth0", "eth0"), ("eth1", "eth1")}
    assert {pair.dst for pair in pairs} == {"h1", "h2", "h3"}
    topology = leaf_spine(hosts=24, nics_per_host=1, leaves=4, spines=2)
    meshes = [Mesh(topology, host.id, seed=3) for host in topology.hosts]
    for step in range(meshes[0].steps_per_lap):
        targets = Counter(pair.dst for mesh in meshes if (pair := mesh.pair_at(step)))
        assert set(targets.values()) == {1}
    topology = leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=2)
    index = TopologyIndex(topology)
    kinds = [index.leaf_of(pair.dst, pair.dst_nic) == "leaf0" for pair in lap(topology, "h0")]
    assert kinds == [True, False] * (len(kinds) // 2)


def test_all_leaves_have_been_reached_from_a_leaf_long_before_all_pairs_are_done() -> None:
    topology = leaf_spine(hosts=64, nics_per_host=1, leaves=16, spines=2)
    index = TopologyIndex(topology)
    mates = [Mesh(topology, f"h{number}") for number in range(4)]  # all of leaf0
    steps = 2 * 4  # by turns inside and beyond, where each of four takes four of the other 15 leaves
    pairs = [pair for mesh in mates for step in range(steps) if (pair := mesh.pair_at(step))]
    reached = {index.leaf_of(pair.dst, pair.dst_nic) for pair in pairs}
    assert reached == {leaf.id for leaf in topology.switches if leaf.tier == "leaf"}
    assert steps * 4 < mates[0].steps_per_lap
    large = leaf_spine(hosts=1_000, nics_per_host=1, leaves=40, spines=8)
    assert Mesh(large, "h500").steps_per_lap == 39 * 25 * 2
    assert len({pair.dst for pair in lap(large, "h500")}) == 999


def test_seed_gives_the_order_and_laps_are_counted_so_that_ports_can_change() -> None:
    topology = leaf_spine(hosts=32, nics_per_host=1, leaves=4, spines=2)
    assert lap(topology, "h0", seed=1) == lap(topology, "h0", seed=1)
    assert lap(topology, "h0", seed=1) != lap(topology, "h0", seed=2)
    mesh = Mesh(leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1), "h0")
    assert [mesh.pair_at(step) for step in range(2)] == [Pair("eth0", "h1", "eth0", lap) for lap in range(2)]


@pytest.mark.parametrize("host", ["h0", "stranger"])
def test_host_with_nobody_to_probe_has_no_pair(host: str) -> None:
    mesh = Mesh(leaf_spine(hosts=1, nics_per_host=1, leaves=1, spines=1), host)
    assert (mesh.steps_per_lap, mesh.pair_at(5)) == (0, None)
