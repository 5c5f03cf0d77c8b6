"""Cables alone tell tiers, planes and rails, as far as they can."""

from lockstep.intake.topologies.structure import infer_planes, infer_rails, infer_tiers


def test_tier_is_the_distance_to_the_nearest_host() -> None:
    neighbours = {"l": {"s"}, "s": {"l", "c"}, "c": {"s", "d"}, "d": {"c"}}
    assert infer_tiers(["l"], neighbours) == {"l": "leaf", "s": "spine", "c": "core", "d": "core"}


def test_switch_with_a_host_is_a_leaf_whatever_else_it_joins() -> None:
    assert infer_tiers(["l", "s"], {"l": {"s"}, "s": {"l"}}) == {"l": "leaf", "s": "leaf"}


def test_switch_that_reaches_no_host_has_no_tier() -> None:
    assert infer_tiers(["l"], {"l": set(), "x": set()}) == {"l": "leaf"}


def test_planes_need_a_host_on_both() -> None:
    apart = {"a": set[str](), "b": set[str]()}
    assert infer_planes({("h", "e0"): "a", ("h", "e1"): "b"}, apart) == {("h", "e0"): 0, ("h", "e1"): 1}
    assert infer_planes({("h", "e0"): "a", ("g", "e0"): "b"}, apart) == {}


def test_switches_that_meet_are_one_plane() -> None:
    joined = {"a": {"s"}, "b": {"s"}, "s": {"a", "b"}}
    assert infer_planes({("h", "e0"): "a", ("h", "e1"): "b"}, joined) == {}


def test_rails_are_numbered_in_the_order_of_the_names() -> None:
    plugs = {(host, f"e{nic}"): f"leaf{nic}" for host in ("g", "h") for nic in range(11)}
    assert {nic: rail for (_, nic), rail in infer_rails(plugs).items()} == {f"e{nic}": nic for nic in range(11)}


def test_one_host_proves_no_rails() -> None:
    assert infer_rails({("h", "e0"): "a", ("h", "e1"): "b"}) == {}
