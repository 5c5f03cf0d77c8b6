"""topograph's graph and its models become the same tree, with accelerator domains as racks."""

import pytest

from tests.importers.topology.build import (
    TREE_LINKS,
    TREE_TIERS,
    complaints,
    links_of,
    read,
    said,
    source,
    stored,
    tiers_of,
)


@pytest.mark.parametrize("name", ["topograph.json", "topograph.yaml"])
def test_graph_and_model_tell_the_same_fabric(name: str) -> None:
    imported = read("topograph", stored(name))
    assert links_of(imported.topology) == TREE_LINKS
    assert tiers_of(imported.topology) == TREE_TIERS
    assert [host.rack for host in imported.topology.hosts] == ["nvl-a", "nvl-a", "nvl-b", "nvl-b"]
    assert said(imported, "accelerator domains are kept as racks")


def test_narrower_domain_is_the_rack() -> None:
    labels = '{"x.run/domain": "wide", "x.run/sub-domain": "narrow"}'
    imported = read("topograph", f'{{"instances": [{{"id": "a", "network_layers": ["l"], "labels": {labels}}}]}}')
    assert imported.topology.hosts[0].rack == "narrow"


def test_instance_without_switches_is_a_host_without_a_cable() -> None:
    imported = read("topograph", '{"instances": [{"id": "a"}]}')
    assert [host.id for host in imported.topology.hosts] == ["a"]
    assert said(imported, "no switch is known for a")


def test_leaf_without_nodes_stays_a_leaf() -> None:
    imported = read("topograph", "switches: {s: {switches: [l1, l2]}}\nblocks: [{switch: l1, nodes: [a]}]")
    assert tiers_of(imported.topology) == {"s": "spine", "l1": "leaf", "l2": "leaf"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '{"instances": [{"id": "a", "network_layers": ["l", "s", "l"]}]}',
            "switch l is its own ancestor: l > s > l",
        ),
        (
            '{"instances": [{"id": "a", "network_layers": ["l"]}, {"id": "a", "network_layers": ["m"]}]}',
            "instance a is there twice",
        ),
        ('{"nodes": []}', "instances: Field required"),
        ('{"instances": [{"id": 7}]}', "instances.0.id: Input should be a valid string"),
        ("{", "is not JSON"),
        ("words: here", "is no model: it has neither switches nor blocks"),
        ("blocks: [{switch: l, nodes: ['n[']}]", "is no list of names"),
        ("switches: {a: {switches: [b]}, b: {switches: [a]}}", "switch a is its own ancestor: a > b > a"),
    ],
)
def test_file_that_contradicts_itself_or_has_another_shape_is_refused(text: str, reason: str) -> None:
    found = complaints(("topograph", [source(text, "graph")]))
    assert any(reason in complaint and complaint.startswith("graph: ") for complaint in found), found


def test_table_becomes_three_tiers() -> None:
    imported = read("lingjun", stored("lingjun.csv"))
    assert links_of(imported.topology) == {*TREE_LINKS, "spine1--G1"}
    assert tiers_of(imported.topology) == {**TREE_TIERS, "G1": "core"}


def test_same_number_below_two_switches_is_two_leaves() -> None:
    imported = read("lingjun", "ip,DSW,PSW,ASW\na,G,P1,S1\nb,G,P2,S1\nc,G,P2,S2\n")
    assert links_of(imported.topology) == {
        "a/nic0--P1-S1",
        "b/nic0--P2-S1",
        "c/nic0--S2",
        "P1-S1--P1",
        "P2-S1--P2",
        "S2--P2",
        "P1--G",
        "P2--G",
    }
    assert said(imported, "S1 stand below several PSWs: taken for another leaf below each")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no column ip, DSW, PSW, ASW"),
        ("ip,PSW\na,b\n", "has no column DSW, ASW"),
        ("ip,DSW,PSW,ASW\na,G,P\n", "line 2: has an empty column or too few"),
        ("ip,DSW,PSW,ASW\na,G,P,S\na,G,P,T\n", "host a is under switch S and under switch T, but has one leaf"),
        ("ip,DSW,PSW,ASW\na,G,G,S\n", "switch G is its own ancestor: G > G"),
    ],
)
def test_table_that_cannot_be_is_refused(text: str, reason: str) -> None:
    assert complaints(("lingjun", [source(text, "topo.csv")])) == [f"topo.csv: {reason}"]
