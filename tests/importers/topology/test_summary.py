"""A topology in figures: what each tier carries, and what is unlike the rest, in words."""

import pytest

from importers.topology.summary import Changes, find_changes, find_uneven, summarise
from lockstep.fabrics import FabricOptions, dual_plane, fat_tree, leaf_spine, rail_optimised
from lockstep.topology import Topology


def without(topology: Topology, *links: str) -> Topology:
    assert {link.id for link in topology.links} >= set(links)
    return topology.model_copy(update={"links": tuple(link for link in topology.links if link.id not in links)})


def altered(topology: Topology, name: str, **facts: object) -> Topology:
    assert any(link.id == name for link in topology.links)
    links = [link.model_copy(update=facts) if link.id == name else link for link in topology.links]
    return topology.model_copy(update={"links": tuple(links)})


def test_counts_are_those_of_the_topology() -> None:
    summary = summarise(fat_tree(4))
    assert (summary.hosts, summary.gpus, summary.nics, summary.links, summary.down) == (16, 128, 16, 48, 0)
    assert [(tier.tier, tier.switches) for tier in summary.tiers] == [("leaf", 8), ("spine", 8), ("core", 4)]
    assert summarise(dual_plane(4, 2, 1)).planes == {"0": 4, "1": 4}
    assert summarise(rail_optimised(4, 3, 1)).rails == {"0": 4, "1": 4, "2": 4}
    empty = summarise(Topology(routing="ecmp", nodes=(), links=()))
    assert (empty.hosts, empty.tiers, empty.uneven) == (0, (), ())
    topology = leaf_spine(2, 1, 1, 1)
    nodes = tuple(node.model_copy(update={"tier": None}) for node in topology.nodes)
    (tier,) = summarise(topology.model_copy(update={"nodes": nodes})).tiers
    assert (tier.tier, tier.switches, tier.oversubscription) == ("unknown", 2, None)


def test_oversubscription_is_what_comes_from_below_over_what_goes_up() -> None:
    options = FabricOptions(gbps=400, uplink_gbps=200)
    leaf, spine = summarise(leaf_spine(8, 1, 2, 2, options)).tiers
    assert (leaf.oversubscription, leaf.down_gbps, leaf.up_gbps) == (4.0, 3200, 800)
    assert (spine.oversubscription, spine.up_gbps) == (None, 0)
    tier = summarise(altered(leaf_spine(8, 1, 2, 2), "leaf1--spine0", up=False)).tiers[0]
    assert (tier.worst, tier.worst_switch) == (4.0, "leaf1")
    assert tier.oversubscription == pytest.approx(8 / 3)


SMALL = leaf_spine(8, 1, 2, 2)
TWIN = SMALL.model_copy(update={"links": (*SMALL.links, SMALL.links[-1].model_copy(update={"id": "twin"}))})


PAIRS, IN_A_POD = "pairs like them have 1", "pod1-leaf0--pod1-spine1"


def test_what_is_unlike_the_rest_is_named_with_what_is_usual() -> None:
    for even in (fat_tree(4), leaf_spine(8, 2, 4, 4), rail_optimised(8, 4, 2, pods=2), dual_plane(4, 2, 3)):
        assert list(find_uneven(even)) == []
    slow = "link leaf0--spine1 runs at 100 Gbit/s, 3 of the 4 links between leaves and spines at 400"
    for topology, sentence in (
        (without(leaf_spine(8, 1, 4, 4), "leaf2--spine1"), f"leaf2 has no link to spine1, 15 of the 16 {PAIRS}"),
        (without(fat_tree(4), IN_A_POD), f"pod1-leaf0 has no link to pod1-spine1, 3 of the 4 {PAIRS}"),
        (TWIN, f"leaf1 has 2 links to spine1, 3 of the 4 {PAIRS}"),
        (altered(SMALL, "leaf0--spine1", gbps=100.0), slow),
        (altered(SMALL, "leaf0--spine1", up=False), "link leaf0--spine1 is down"),
    ):
        assert list(find_uneven(topology)) == [sentence]


def test_host_unlike_the_others_is_named_and_a_fabric_of_few_links_misses_none() -> None:
    topology = leaf_spine(6, 1, 6, 6)
    ring = {f"leaf{n}--spine{(n + step) % 6}" for n in range(6) for step in (0, 1)}
    apart = {link.id for link in topology.links if link.a.startswith("leaf")} - ring
    assert list(find_uneven(without(topology, *apart))) == []
    topology = without(leaf_spine(4, 2, 2, 1), "h1/eth1--leaf0")
    poorer = topology.nodes[3].model_copy(update={"gpus": topology.nodes[3].gpus[:7]})
    topology = topology.model_copy(update={"nodes": (*topology.nodes[:3], poorer, *topology.nodes[4:])})
    assert list(find_uneven(topology)) == [
        "host h3 has 7 GPUs, 3 of 4 hosts have 8",
        "host h1 has 1 cabled NICs, 3 of 4 hosts have 2",
    ]


FABRIC = leaf_spine(hosts=2, nics_per_host=2, leaves=2, spines=2)


def altered_fabric(**facts: object) -> Topology:
    return FABRIC.model_copy(update=facts)


def link_altered(**facts: object) -> Topology:
    return altered_fabric(links=(FABRIC.links[0].model_copy(update=facts), *FABRIC.links[1:]))


def host_altered(**facts: object) -> Topology:
    return altered_fabric(nodes=(FABRIC.nodes[0].model_copy(update=facts), *FABRIC.nodes[1:]))


def changes(new: Topology) -> tuple[str, ...]:
    found = find_changes(FABRIC, new)
    assert (found.added, found.removed) == ((), ())
    return found.changed


def test_nodes_and_links_are_added_and_removed_by_name_and_parallel_ones_told_apart() -> None:
    assert find_changes(FABRIC, altered_fabric(nodes=FABRIC.nodes[::-1], links=FABRIC.links[::-1])).is_empty
    turned = link_altered(id="another", a=FABRIC.links[0].b, b=FABRIC.links[0].a)
    assert find_changes(FABRIC, turned).is_empty, "written the other way round"
    larger = leaf_spine(hosts=2, nics_per_host=2, leaves=2, spines=3)
    words = ("switch spine2", "link leaf0--spine2", "link leaf1--spine2")
    assert find_changes(FABRIC, larger) == Changes(added=words)
    assert find_changes(larger, FABRIC) == Changes(removed=words)
    found = find_changes(FABRIC, dual_plane(2, 1, 1))
    assert "switch leaf0" in found.removed
    assert "switch plane0-leaf0" in found.added
    assert "host h0: NIC eth0, eth1 is another now" in found.changed
    twin = FABRIC.links[-1].model_copy(update={"id": "twin"})
    assert find_changes(FABRIC, altered_fabric(links=(*FABRIC.links, twin))).added == ("link twin",)


def test_what_changed_says_from_what_to_what() -> None:
    name, host = FABRIC.links[0].id, FABRIC.nodes[0]
    moved = host.nics[0].model_copy(update={"rail": 3})
    assert changes(link_altered(gbps=100.0)) == (f"link {name}: 400 Gbit/s became 100",)
    assert changes(link_altered(up=False)) == (f"link {name}: went down",)
    assert changes(host_altered(rack="r1")) == ("host h0: rack unknown became r1",)
    assert changes(host_altered(gpus=host.gpus[:7])) == ("host h0: lost GPU gpu7",)
    assert changes(host_altered(nics=(moved, host.nics[1]))) == ("host h0: NIC eth0 is another now",)
    assert changes(altered_fabric(routing="adaptive")) == ("routing: ecmp became adaptive",)
