"""Generated fabrics are sound, have the size that their closed forms say, and connect whom they should."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import BadTopology
from lockstep.fabrics import FabricOptions, dual_plane, fat_tree, leaf_spine, rail_optimised
from lockstep.topology import Topology, TopologyIndex, check_topology, dump_topology, parse_topology, split_end

QUICK = settings(max_examples=12)
FEW = st.integers(1, 3)
EVEN = st.sampled_from([2, 4, 6])
PLAIN = FabricOptions(gpus_per_host=2)


def nics(topology: Topology) -> list[tuple[str, str]]:
    return [(host.id, nic.id) for host in topology.hosts for nic in host.nics]


def tier_ids(topology: Topology, tier: str) -> list[str]:
    return [switch.id for switch in topology.switches if switch.tier == tier]


FABRICS: st.SearchStrategy[Topology] = st.one_of(
    st.builds(lambda n, each, nic, spines: leaf_spine(n * each, nic, n, spines), FEW, FEW, FEW, FEW),
    st.builds(fat_tree, st.sampled_from([2, 4])),
    st.builds(lambda n, each, rails, spines: rail_optimised(n * each, rails, spines, pods=n), FEW, FEW, FEW, FEW),
    st.builds(lambda n, each, nic, spines: dual_plane(n * each, n, spines, nics_per_host=nic), FEW, FEW, EVEN, FEW),
)


@QUICK
@given(FABRICS)
def test_every_fabric_is_sound_named_in_order_and_connects_nics_of_the_same_number(topology: Topology) -> None:
    assert check_topology(topology) == []
    assert parse_topology(dump_topology(topology)) == topology
    assert [host.id for host in topology.hosts] == [f"h{n}" for n in range(len(topology.hosts))]
    for host in topology.hosts:
        assert [nic.id for nic in host.nics] == [f"eth{n}" for n in range(len(host.nics))]
        assert [(gpu.id, gpu.index) for gpu in host.gpus] == [(f"gpu{n}", n) for n in range(8)]
    index = TopologyIndex(topology)
    for a, b in combinations(topology.hosts, 2):
        for nic in index.nics_of(a.id):
            assert index.links_between(a.id, nic.id, b.id, nic.id), f"{a.id} and {b.id} through {nic.id}"
    height = {"leaf": 1, "spine": 2, "core": 3}
    heights = {node.id: height[node.tier] if node.tier else 0 for node in topology.nodes}
    for link in topology.links:
        assert link.id == f"{link.a}--{link.b}"
        assert heights[split_end(link.a)[0]] + 1 == heights[split_end(link.b)[0]], "the lower tier comes first"


def two_tiers(kind: str, blocks: int, each: int, nic_count: int, spines: int) -> tuple[Topology, int]:
    hosts = blocks * each
    if kind == "leaves":
        return leaf_spine(hosts, nic_count, blocks, spines, PLAIN), blocks
    if kind == "rails":
        return rail_optimised(hosts, nic_count, spines, PLAIN, pods=blocks), blocks * nic_count
    return dual_plane(hosts, blocks, spines, PLAIN, 2 * nic_count), blocks


@pytest.mark.parametrize("kind", ["leaves", "rails", "planes"])
@QUICK
@given(blocks=FEW, each=FEW, nic_count=FEW, spines=FEW)
def test_two_tiers_have_the_links_of_their_closed_forms_and_planes_never_meet(
    kind: str, blocks: int, each: int, nic_count: int, spines: int
) -> None:
    topology, leaves = two_tiers(kind, blocks, each, nic_count, spines)
    planes = 2 if kind == "planes" else 1
    assert len(topology.links) == blocks * each * nic_count * planes + planes * leaves * spines
    index = TopologyIndex(topology)
    plane = {(host.id, nic.id): nic.plane for host in topology.hosts for nic in host.nics}
    for src, dst in combinations(nics(topology), 2):
        across = 2 + 2 * spines if plane[src] == plane[dst] else 0
        expected = 2 if index.leaf_of(*src) == index.leaf_of(*dst) else across
        assert len(index.links_between(*src, *dst)) == expected


def test_leaf_spine_fills_leaves_in_blocks_and_a_fat_tree_gives_each_spine_its_own_cores() -> None:
    topology = leaf_spine(hosts=4, nics_per_host=2, leaves=2, spines=3)
    index = TopologyIndex(topology)
    assert [index.leaf_of(host.id, "eth1") for host in topology.hosts] == ["leaf0", "leaf0", "leaf1", "leaf1"]
    ids = {link.id for link in topology.links}
    assert {"h3/eth1--leaf1", "leaf1--spine2"} <= ids
    ids = {link.id for link in fat_tree(4).links if link.b.startswith("core")}
    cores = {spine: {f"pod3-spine{spine}--core{core}" for core in (2 * spine, 2 * spine + 1)} for spine in (0, 1)}
    assert {name for name in ids if name.startswith("pod3-")} == cores[0] | cores[1]


@pytest.mark.parametrize("k", [2, 4, 6])
def test_fat_tree_has_the_size_of_its_closed_forms_and_uses_all_links_between_pods(k: int) -> None:
    topology = fat_tree(k, PLAIN)
    assert (len(topology.hosts), len(topology.links)) == (k**3 // 4, 3 * k**3 // 4)
    tiers = [len(tier_ids(topology, tier)) for tier in ("leaf", "spine", "core")]
    assert tiers == [k * k // 2, k * k // 2, k * k // 4]
    used = Counter(split_end(end)[0] for link in topology.links for end in (link.a, link.b))
    assert {used[switch.id] for switch in topology.switches} == {k}, "all ports"
    index = TopologyIndex(topology)
    same_leaf, same_pod, other_pod = "h1", f"h{k // 2}", f"h{k * k // 4}"
    links = {other_pod: 2 + k + k * k // 2} | ({same_leaf: 2, same_pod: 2 + k} if k > 2 else {})
    assert {host: len(index.links_between("h0", "eth0", host, "eth0")) for host in links} == links


@QUICK
@given(pods=FEW, hosts_per_pod=FEW, rails=st.integers(2, 4), spines=FEW)
def test_rails_meet_on_spines_only(pods: int, hosts_per_pod: int, rails: int, spines: int) -> None:
    topology = rail_optimised(pods * hosts_per_pod, rails, spines, PLAIN, pods=pods)
    index = TopologyIndex(topology)
    rails_of_leaf: dict[str | None, set[int | None]] = {}
    for host in topology.hosts:
        for nic in host.nics:
            rails_of_leaf.setdefault(index.leaf_of(host.id, nic.id), set()).add(nic.rail)
    assert sorted(map(str, rails_of_leaf)) == sorted(tier_ids(topology, "leaf"))
    assert all(len(rails) == 1 for rails in rails_of_leaf.values())
    between = index.links_between("h0", "eth0", "h0", "eth1")
    assert {split_end(link.b)[0] for link in between} >= set(tier_ids(topology, "spine"))


def test_rail_of_a_nic_is_its_number_and_leaves_carry_their_pod_where_there_are_several() -> None:
    topology = rail_optimised(hosts=2, rails=3, spines=1)
    assert [nic.rail for nic in topology.hosts[1].nics] == [0, 1, 2]
    assert [TopologyIndex(topology).leaf_of("h1", f"eth{n}") for n in range(3)] == ["leaf0", "leaf1", "leaf2"]
    pods = rail_optimised(hosts=4, rails=2, spines=1, pods=2)
    assert tier_ids(pods, "leaf") == ["pod0-leaf0", "pod0-leaf1", "pod1-leaf0", "pod1-leaf1"]
    assert TopologyIndex(pods).leaf_of("h2", "eth1") == "pod1-leaf1"


def test_nic_pairs_are_split_over_planes_and_options_set_gpus_rates_and_routing() -> None:
    host = dual_plane(2, 1, 1, FabricOptions(gpus_per_host=4), nics_per_host=4).hosts[0]
    assert [nic.plane for nic in host.nics] == [0, 1, 0, 1]
    pairs = [("eth0", "eth1"), ("eth2", "eth3")]
    assert [gpu.nics for gpu in host.gpus] == [pairs[0], pairs[0], pairs[1], pairs[1]]
    options = FabricOptions(gpus_per_host=0, gbps=200, uplink_gbps=800, routing="adaptive")
    topology = leaf_spine(1, 1, 1, 1, options)
    assert [link.gbps for link in topology.links] == [200, 800]
    assert (topology.routing, topology.hosts[0].gpus) == ("adaptive", ())
    assert {link.gbps for link in fat_tree(2, FabricOptions(gbps=100)).links} == {100}, "uplinks are as fast"


@QUICK
@given(gpus=st.integers(1, 16), nic_count=st.integers(1, 16))
def test_gpus_are_spread_over_nics_as_evenly_as_can_be(gpus: int, nic_count: int) -> None:
    host = leaf_spine(1, nic_count, 1, 1, FabricOptions(gpus_per_host=gpus)).hosts[0]
    shares = Counter(nic for gpu in host.gpus for nic in gpu.nics)
    assert set(shares) == {nic.id for nic in host.nics}
    assert max(shares.values()) - min(shares.values()) <= 1
    loads = [len(gpu.nics) for gpu in host.gpus]
    assert max(loads) - min(loads) <= 1


AT_LEAST_1 = "{} is {}, but must be at least 1"
UNEVEN = "{} is {}, which does not spread evenly over {} ({})"
ODD_OPTIONS = FabricOptions(gpus_per_host=-1, gbps=0, uplink_gbps=math.inf)


def few(**counts: int) -> list[str]:
    return [AT_LEAST_1.format(*count) for count in counts.items()]


@pytest.mark.parametrize(
    ("build", "complaints"),
    [
        (lambda: leaf_spine(0, 1, 1, 1), few(hosts=0)),
        (lambda: leaf_spine(3, 0, 2, -1), few(nics_per_host=0, spines=-1) + [UNEVEN.format("hosts", 3, "leaves", 2)]),
        (lambda: leaf_spine(1, 1, 0, 1), few(leaves=0)),
        (lambda: fat_tree(0), few(k=0)),
        (lambda: fat_tree(5), ["k is 5, but must be even: half of a switch's ports go up"]),
        (lambda: rail_optimised(4, 0, 1), few(rails=0)),
        (lambda: rail_optimised(4, 1, 1, pods=3), [UNEVEN.format("hosts", 4, "pods", 3)]),
        (
            lambda: dual_plane(5, 2, 1, nics_per_host=3),
            [UNEVEN.format("nics_per_host", 3, "planes", 2)] + [UNEVEN.format("hosts", 5, "leaves_per_plane", 2)],
        ),
        (lambda: dual_plane(1, 0, 0, nics_per_host=0), few(leaves_per_plane=0, spines_per_plane=0, nics_per_host=0)),
        (
            lambda: fat_tree(2, ODD_OPTIONS),
            ["gpus_per_host is -1, but must be at least 0"]
            + [
                f"{name} is {rate}, but a rate is finite and above 0"
                for name, rate in (("gbps", 0), ("uplink_gbps", "inf"))
            ],
        ),
    ],
)
def test_impossible_fabric_is_refused_with_every_reason(build: Callable[[], Topology], complaints: list[str]) -> None:
    with pytest.raises(BadTopology) as refusal:
        build()
    assert refusal.value.complaints == complaints
