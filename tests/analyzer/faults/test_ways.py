"""Which links and switches a wire crosses, for sure or with a probability."""

import pytest

from analyzer.faults.ways import Hop, Ways
from lockstep.fabrics import fat_tree, leaf_spine
from lockstep.topology import TopologyIndex
from tests.analyzer.faults.build import routed, wires

FABRIC = TopologyIndex(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))


def test_known_path_is_crossed_in_the_order_of_travel() -> None:
    path = ("h0/eth0--leaf0", "leaf0--spine1", "leaf1--spine1", "h3/eth0--leaf1")
    assert Ways(FABRIC).hops(routed("h0/eth0", "h3/eth0", *path)) == (
        Hop("leaf0", None, 1.0),
        Hop("link:leaf0--spine1", "tx", 1.0),
        Hop("spine1", None, 1.0),
        Hop("link:leaf1--spine1", "rx", 1.0),
        Hop("leaf1", None, 1.0),
    )


def test_path_that_breaks_off_is_followed_as_far_as_it_goes() -> None:
    path = ("h0/eth0--leaf0", "leaf1--spine1", "h3/eth0--leaf1")
    assert Ways(FABRIC).hops(routed("h0/eth0", "h3/eth0", *path)) == (Hop("leaf0", None, 1.0),)


def test_unknown_path_is_spread_over_all_equal_ways() -> None:
    (wire,) = wires([("h0/eth0", "h3/eth0")])
    shares = {f"{hop.name} {hop.side}": hop.share for hop in Ways(FABRIC).hops(wire)}
    assert shares == {
        "leaf0 None": 1.0,
        "leaf1 None": 1.0,
        **{f"spine{number} None": 0.5 for number in (0, 1)},
        **{f"link:leaf0--spine{number} tx": 0.5 for number in (0, 1)},
        **{f"link:leaf1--spine{number} rx": 0.5 for number in (0, 1)},
    }


def test_wire_inside_a_leaf_crosses_only_it() -> None:
    (wire,) = wires([("h0/eth0", "h1/eth0")])
    assert Ways(FABRIC).hops(wire) == (Hop("leaf0", None, 1.0),)


def test_shares_of_every_tier_add_up_to_one() -> None:
    (wire,) = wires([("h0/eth0", "h15/eth0")])
    hops = Ways(TopologyIndex(fat_tree(4))).hops(wire)
    for tier, number in {"leaf": 2, "spine": 2, "core": 1}.items():
        total = sum(hop.share for hop in hops if hop.side is None and tier in hop.name)
        assert total == pytest.approx(number)


@pytest.mark.parametrize("end", ["h9/eth0", "h1/eth7"])
def test_unknown_end_leads_nowhere(end: str) -> None:
    (wire,) = wires([("h0/eth0", end)])
    assert Ways(FABRIC).hops(wire) == (Hop("leaf0", None, 1.0),)
