"""A node is one however many tell of it; what they tell differently is reported, what nobody told is said."""

from lockstep.intake.topologies.nodes import merge_nodes, rename_ports, settle_kinds
from lockstep.intake.topologies.survey import End, SeenCable, SeenNic, SeenNode
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
