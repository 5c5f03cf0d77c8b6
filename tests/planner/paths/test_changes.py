"""A changed link casts doubt on the ports between the leaves that it lies between, and on no others."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.fabrics import fat_tree
from lockstep.records import Path
from lockstep.topology import TopologyIndex
from planner.paths.changes import Changes
from tests.builders import T0
from tests.planner.paths.probed import entry

TREE = fat_tree(4)
INDEX = TopologyIndex(TREE)
HOSTS = [host.id for host in TREE.hosts]


def port(src: str, dst: str, seen_ns: int = T0) -> Path:
    return entry(host=src, dst=dst, links=[], seen_ns=seen_ns)


@given(st.sampled_from(HOSTS), st.sampled_from(HOSTS), st.sampled_from(TREE.links))
def test_links_between_are_those_that_the_topology_finds_by_search(src: str, dst: str, link: object) -> None:
    name = getattr(link, "id", "")
    between = {each.id for each in INDEX.links_between(src, "eth0", dst, "eth0")} - {
        cable.id for host in (src, dst) if (cable := INDEX.host_link(host, "eth0"))
    }
    assert Changes(TREE, {name: T0 + 1}).since(port(src, dst)) == (name if name in between else "")


def test_a_link_that_is_down_lies_where_it_lay() -> None:
    links = tuple(each.model_copy(update={"up": each.id != "pod0-leaf0--pod0-spine0"}) for each in TREE.links)
    changes = Changes(TREE.model_copy(update={"links": links}), {"pod0-leaf0--pod0-spine0": T0})
    assert changes.since(port("h0", "h15")) == "pod0-leaf0--pod0-spine0"


def test_what_was_seen_since_is_not_in_doubt() -> None:
    changes = Changes(TREE, {"pod0-leaf0--pod0-spine0": T0, "pod0-leaf0--pod0-spine1": T0 + 5})
    assert changes.since(port("h0", "h15", T0 + 6)) == ""
    assert changes.since(port("h0", "h15", T0 + 1)) == "pod0-leaf0--pod0-spine1"


def test_a_later_change_elsewhere_does_not_bring_up_an_earlier_one() -> None:
    changes = Changes(TREE, {"pod0-leaf0--pod0-spine0": T0, "pod1-leaf0--pod1-spine0": T0 + 5})
    assert changes.since(port("h0", "h15", T0 + 1)) == ""


def test_links_that_are_not_in_the_topology_say_nothing() -> None:
    assert Changes(TREE, {"gone": T0}).since(port("h0", "h15", 0)) == ""
