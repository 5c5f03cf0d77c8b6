"""A node is one however many tell of it; what they tell differently is reported, what nobody told is said."""

import pytest

from importers.topology.merging import match_cables, merge_nodes, rename_ports, settle_kinds
from importers.topology.survey import End, SeenCable, SeenNic, SeenNode
from lockstep.topology import Gpu, Kind

GPU = Gpu(id="gpu0", index=0)


def told(source: str, *nics: SeenNic, gpus: tuple[Gpu, ...] = (), rack: str | None = None) -> SeenNode:
    return SeenNode("h", source, "host", rack=rack, gpus=gpus, nics=nics)


def test_facts_of_several_sources_add_up_and_those_that_differ_are_reported_one_by_one() -> None:
    node = merge_nodes([told("a", SeenNic("e0", gbps=100)), told("b", SeenNic("e0", rail=3), rack="r1")]).nodes["h"]
    assert (node.rack, node.nics) == ("r1", {"e0": SeenNic("e0", gbps=100, rail=3)})
    one, two = SeenNic("e0", gbps=100, plane=0, rail=1), SeenNic("e0", gbps=200, plane=1, rail=1)
    assert sorted(merge_nodes([told("a", one, rack="r1"), told("b", two, rack="r2")]).complaints) == [
        "sources disagree on the rack of h: 'r1' as a says and 'r2' as b says",
        "the plane of NIC h/e0 is 0 as a says and 1 as b says",
        "the rate in Gbit/s of NIC h/e0 is 100 as a says and 200 as b says",
    ]
    guesses: tuple[Kind, Kind] = ("host", "switch")
    merged = merge_nodes([SeenNode("h", kind, kind, is_sure=False) for kind in guesses])
    assert merged.complaints == ["node h is a host as host says and a switch as switch says"]


def test_nics_of_one_guid_get_the_name_that_the_gpus_use_unless_they_are_ports_of_one_card() -> None:
    xml = told("xml", SeenNic("mlx5_0", guid="aa"), gpus=(GPU,))
    merged = merge_nodes([told("ib", SeenNic("HCA-1", guid="aa")), xml])
    assert list(merged.nodes["h"].nics) == ["mlx5_0"]
    (renamed,) = rename_ports(merged, [cable("h/HCA-1", "leaf/1", "ib")])
    assert str(renamed.near) == "h/mlx5_0"
    merged = merge_nodes([told("ib", SeenNic("HCA-1", guid="aa"), SeenNic("HCA-1:2", guid="aa")), xml])
    assert merged.renamed == {}
    assert set(merged.nodes["h"].nics) == {"HCA-1", "HCA-1:2", "mlx5_0"}


def test_who_looks_out_is_a_host_unless_it_looks_at_one() -> None:
    merged = merge_nodes([SeenNode("a", "x"), SeenNode("b", "x")])
    settle_kinds(merged, [cable("a/1", "b/1")])
    assert {node.id: node.kind for node in merged.nodes.values()} == {"a": "host", "b": "switch"}
    assert len(merged.assumed) == 2
    merged = merge_nodes([SeenNode("a", "x"), told("x")])
    settle_kinds(merged, [cable("a/1", "h/1")])
    assert merged.nodes["a"].kind == "switch"


def cable(near: str, far: str, source: str = "x", up: bool = True) -> SeenCable:
    """Return what a source sees; ends are written a/p1, or a where the port is not known."""
    ends = [End(node, port or None) for node, _, port in (near.partition("/"), far.partition("/"))]
    return SeenCable(ends[0], ends[1], source, up=up)


@pytest.mark.parametrize(
    ("claims", "cables"),
    [
        ([cable("a/1", "b/2"), cable("b/2", "a/1")], [("a/1", "b/2")]),
        ([cable("a/1", "b/2"), cable("b/2", "a")], [("a/1", "b/2")]),
        ([cable("a/1", "b"), cable("b/2", "a")], [("a/1", "b/2")]),  # each knows its own port only
        ([cable("a", "b")] * 2, [("a", "b"), ("a", "b")]),  # lines of one source are parallel cables
        (
            [cable("a", "b"), cable("a", "b"), cable("b", "a", "y")],
            [("a", "b"), ("a", "b")],
        ),  # another tells the same
        ([cable("a/1", "b/2"), cable("a", "b", "tree")], [("a/1", "b/2")]),
    ],
)
def test_cable_that_several_tell_is_one(claims: list[SeenCable], cables: list[tuple[str, str]]) -> None:
    matched = match_cables(claims, frozenset())
    assert matched.complaints == []
    assert sorted((str(one.a), str(one.b)) for one in matched.cables) == cables


def test_claims_that_contradict_each_other_are_reported() -> None:
    twice = "a/1 is cabled to {} as a/1 says in {} and to {} as a/1 says in {}, but takes one cable"
    trees = [cable("a/1", "b/1"), cable("c/1", "d/1"), cable("a", "c", "tree")]
    for claims, complaint in (
        ([cable("a/1", "b", "x"), cable("a/1", "c", "y")], twice.format("b", "x", "c", "y")),
        ([cable("a/1", "b/2", "x"), cable("a/1", "c", "y")], twice.format("c", "y", "b/2", "x")),
        (trees, "a and c are joined as tree says, but no cable goes from one to the other as x says"),
    ):
        assert match_cables(claims, frozenset()).complaints == [complaint]


def test_ends_are_paired_in_order_a_cabled_host_gets_no_more_and_one_word_takes_a_cable_down() -> None:
    nobody = frozenset[str]()
    ends = [cable("a/1", "b"), cable("a/2", "b"), cable("b/7", "a"), cable("b/8", "a")]
    matched = match_cables(ends, nobody)
    assert [(str(one.a), str(one.b)) for one in matched.cables] == [("a/1", "b/7"), ("a/2", "b/8")]
    assert matched.assumed == ["which of 2 ports of a and b belong together is unknown: in order"]
    claims = (cable("h/1", "b/1"), cable("h", "rack", "tree"))
    assert len(match_cables(claims, nobody).cables) == 2
    assert len(match_cables(claims, frozenset({"h"})).complaints) == 1
    (one,) = match_cables([cable("a/1", "b/1"), cable("b/1", "a/1", up=False)], nobody).cables
    assert not one.up
