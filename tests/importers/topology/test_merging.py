"""A node is one however many tell of it; what they tell differently is reported, what nobody told is said."""

from importers.topology.merging import Matched, match_cables, merge_nodes, rename_ports, settle_kinds
from importers.topology.survey import End, SeenCable, SeenNic, SeenNode
from lockstep.topology import Gpu, Kind

GPU = Gpu(id="gpu0", index=0)


def told(
    source: str, *nics: SeenNic, gpus: tuple[Gpu, ...] = (), kind: Kind | None = "host", **facts: str
) -> SeenNode:
    rack = facts.get("rack")
    return SeenNode("h", source, kind, rack=rack, gpus=gpus, nics=nics)


def test_facts_of_several_sources_add_up() -> None:
    node = merge_nodes([told("a", SeenNic("e0", gbps=100)), told("b", SeenNic("e0", rail=3), rack="r1")]).nodes["h"]
    assert node.rack == "r1"
    assert node.nics == {"e0": SeenNic("e0", gbps=100, rail=3)}


def test_racks_that_differ_are_reported() -> None:
    assert merge_nodes([told("a", rack="r1"), told("b", rack="r2")]).complaints == [
        "sources disagree on the rack of h: 'r1' as a says and 'r2' as b says"
    ]


def test_facts_of_a_nic_that_differ_are_reported_one_by_one() -> None:
    one, two = SeenNic("e0", gbps=100, plane=0, rail=1), SeenNic("e0", gbps=200, plane=1, rail=1)
    assert merge_nodes([told("a", one), told("b", two)]).complaints == [
        "the rate in Gbit/s of NIC h/e0 is 100 as a says and 200 as b says",
        "the plane of NIC h/e0 is 0 as a says and 1 as b says",
    ]


def test_neighbours_that_guess_differently_are_reported() -> None:
    guesses: tuple[Kind, Kind] = ("host", "switch")
    merged = merge_nodes([SeenNode("h", kind, kind, is_sure=False) for kind in guesses])
    assert merged.complaints == ["node h is a host as host says and a switch as switch says"]


def test_nics_of_one_guid_get_the_name_that_the_gpus_use() -> None:
    merged = merge_nodes(
        [told("ib", SeenNic("HCA-1", guid="aa")), told("xml", SeenNic("mlx5_0", guid="aa"), gpus=(GPU,))]
    )
    assert list(merged.nodes["h"].nics) == ["mlx5_0"]
    (cable,) = rename_ports(merged, [SeenCable(End("h", "HCA-1"), End("leaf", "1"), "ib")])
    assert str(cable.near) == "h/mlx5_0"


def test_ports_of_one_card_share_a_guid_and_keep_their_names() -> None:
    ports = (SeenNic("HCA-1", guid="aa"), SeenNic("HCA-1:2", guid="aa"))
    merged = merge_nodes([told("ib", *ports), told("xml", SeenNic("mlx5_0", guid="aa"), gpus=(GPU,))])
    assert merged.renamed == {}
    assert set(merged.nodes["h"].nics) == {"HCA-1", "HCA-1:2", "mlx5_0"}


def test_who_looks_out_is_a_host_and_who_is_looked_at_a_switch() -> None:
    merged = merge_nodes([SeenNode("a", "x"), SeenNode("b", "x")])
    settle_kinds(merged, [SeenCable(End("a", "1"), End("b", "1"), "x")])
    assert {node.id: node.kind for node in merged.nodes.values()} == {"a": "host", "b": "switch"}
    assert len(merged.assumed) == 2


def test_who_looks_at_a_host_is_a_switch() -> None:
    merged = merge_nodes([SeenNode("a", "x"), told("x")])
    settle_kinds(merged, [SeenCable(End("a", "1"), End("h", "1"), "x")])
    assert merged.nodes["a"].kind == "switch"


def cable(near: str, far: str, source: str = "x", up: bool = True) -> SeenCable:
    """Return what a source sees; ends are written a/p1, or a where the port is not known."""
    ends = [End(node, port or None) for node, _, port in (near.partition("/"), far.partition("/"))]
    return SeenCable(ends[0], ends[1], source, up=up)


def match(*claims: SeenCable, hosts: frozenset[str] = frozenset()) -> Matched:
    return match_cables(claims, hosts)


def found(*claims: SeenCable) -> list[tuple[str, str]]:
    matched = match(*claims)
    assert matched.complaints == []
    return sorted((str(one.a), str(one.b)) for one in matched.cables)


def test_cable_that_both_ends_tell_is_one() -> None:
    assert found(cable("a/1", "b/2"), cable("b/2", "a/1")) == [("a/1", "b/2")]


def test_cable_whose_far_port_is_told_by_the_far_end_is_one() -> None:
    assert found(cable("a/1", "b/2"), cable("b/2", "a")) == [("a/1", "b/2")]


def test_ends_that_each_know_their_own_port_only_are_put_together() -> None:
    assert found(cable("a/1", "b"), cable("b/2", "a")) == [("a/1", "b/2")]


def test_several_such_ends_are_put_together_in_order_and_that_is_said() -> None:
    matched = match(cable("a/1", "b"), cable("a/2", "b"), cable("b/7", "a"), cable("b/8", "a"))
    assert [(str(one.a), str(one.b)) for one in matched.cables] == [("a/1", "b/7"), ("a/2", "b/8")]
    assert matched.assumed == ["which of 2 ports of a and b belong together is unknown: in order"]


def test_port_that_is_told_to_go_to_two_nodes_is_reported() -> None:
    matched = match(cable("a/1", "b", "x"), cable("a/1", "c", "y"))
    assert matched.complaints == [
        "a/1 is cabled to b as a/1 says in x and to c as a/1 says in y, but takes one cable"
    ]


def test_port_known_by_one_end_and_contradicted_by_both_others_is_reported() -> None:
    matched = match(cable("a/1", "b/2", "x"), cable("a/1", "c", "y"))
    assert matched.complaints == [
        "a/1 is cabled to c as a/1 says in y and to b/2 as a/1 says in x, but takes one cable"
    ]


def test_lines_of_one_source_are_parallel_cables_and_several_sources_tell_the_same() -> None:
    twice = (cable("a", "b", "x"), cable("a", "b", "x"))
    assert found(*twice) == [("a", "b"), ("a", "b")]
    assert found(*twice, cable("b", "a", "y")) == [("a", "b"), ("a", "b")]


def test_who_sees_no_ports_adds_nothing_where_a_cable_is_known() -> None:
    assert found(cable("a/1", "b/2"), cable("a", "b", "tree")) == [("a/1", "b/2")]


def test_who_sees_no_ports_contradicts_the_cables_of_two_nodes() -> None:
    matched = match(cable("a/1", "b/1"), cable("c/1", "d/1"), cable("a", "c", "tree"))
    assert matched.complaints == [
        "a and c are joined as tree says, but no cable goes from one to the other as x says"
    ]


def test_host_that_is_cabled_gets_no_other_cable_from_who_sees_no_ports() -> None:
    claims = (cable("h/1", "b/1"), cable("h", "rack", "tree"))
    assert len(match(*claims).cables) == 2
    assert len(match(*claims, hosts=frozenset({"h"})).complaints) == 1


def test_cable_is_down_where_anybody_says_so() -> None:
    (one,) = match(cable("a/1", "b/1"), cable("b/1", "a/1", up=False)).cables
    assert not one.up
