"""Two topologies differ in what was added, removed and changed, and in nothing when only the order differs."""

from lockstep.fabrics import dual_plane, leaf_spine
from lockstep.intake.topologies.changes import Changes, find_changes
from lockstep.topology import Topology

FABRIC = leaf_spine(hosts=2, nics_per_host=2, leaves=2, spines=2)


def link_altered(**facts: object) -> Topology:
    return FABRIC.model_copy(update={"links": (FABRIC.links[0].model_copy(update=facts), *FABRIC.links[1:])})


def host_altered(**facts: object) -> Topology:
    return FABRIC.model_copy(update={"nodes": (FABRIC.nodes[0].model_copy(update=facts), *FABRIC.nodes[1:])})


def changes(new: Topology) -> tuple[str, ...]:
    found = find_changes(FABRIC, new)
    assert (found.added, found.removed) == ((), ())
    return found.changed


def test_same_topology_in_another_order_has_no_changes() -> None:
    shuffled = FABRIC.model_copy(update={"nodes": FABRIC.nodes[::-1], "links": FABRIC.links[::-1]})
    assert find_changes(FABRIC, shuffled).is_empty


def test_link_written_the_other_way_round_is_the_same() -> None:
    turned = link_altered(id="another", a=FABRIC.links[0].b, b=FABRIC.links[0].a)
    assert find_changes(FABRIC, turned).is_empty


def test_switch_and_its_links_are_added_and_removed() -> None:
    larger = leaf_spine(hosts=2, nics_per_host=2, leaves=2, spines=3)
    words = ("switch spine2", "link leaf0--spine2", "link leaf1--spine2")
    assert find_changes(FABRIC, larger) == Changes(added=words)
    assert find_changes(larger, FABRIC) == Changes(removed=words)


def test_links_that_changed_say_from_what_to_what() -> None:
    name = FABRIC.links[0].id
    assert changes(link_altered(gbps=100.0)) == (f"link {name}: 400 Gbit/s became 100",)
    assert changes(link_altered(up=False)) == (f"link {name}: went down",)


def test_nodes_that_changed_say_what() -> None:
    host = FABRIC.nodes[0]
    assert changes(host_altered(rack="r1")) == ("host h0: rack unknown became r1",)
    assert changes(host_altered(gpus=host.gpus[:7])) == ("host h0: lost GPU gpu7",)
    moved = host.nics[0].model_copy(update={"rail": 3})
    assert changes(host_altered(nics=(moved, host.nics[1]))) == ("host h0: NIC eth0 is another now",)


def test_routing_that_changed_is_said() -> None:
    assert changes(FABRIC.model_copy(update={"routing": "adaptive"})) == ("routing: ecmp became adaptive",)


def test_another_fabric_shares_what_has_the_same_name() -> None:
    found = find_changes(FABRIC, dual_plane(2, 1, 1))
    assert "switch leaf0" in found.removed
    assert "switch plane0-leaf0" in found.added
    assert "host h0: NIC eth0, eth1 is another now" in found.changed


def test_parallel_links_are_told_apart() -> None:
    twin = FABRIC.links[-1].model_copy(update={"id": "twin"})
    assert find_changes(FABRIC, FABRIC.model_copy(update={"links": (*FABRIC.links, twin)})).added == ("link twin",)
