"""topograph's graph and its models become the same tree, with accelerator domains as racks."""

import pytest

from tests.lockstep.intake.topologies.surveying import (
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
    assert said(imported, "no switch is told for a")


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
