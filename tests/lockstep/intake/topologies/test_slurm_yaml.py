"""topology.yaml holds several topologies: the default tree gives the switches, the blocks give the racks."""

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

TWO_TREES = """
- topology: small
  tree: {switches: [{switch: l1, nodes: n1}]}
- topology: whole
  cluster_default: TRUE
  tree: {switches: [{switch: l2, nodes: "n[1-2]"}]}
"""


def yaml_complaints(text: str) -> list[str]:
    return complaints(("slurm", [source(text, "topology.yaml")]))


def test_tree_and_blocks_are_read_together() -> None:
    imported = read("slurm", stored("topology.yaml"))
    assert links_of(imported.topology) == TREE_LINKS
    assert tiers_of(imported.topology) == TREE_TIERS
    assert [host.rack for host in imported.topology.hosts] == ["a", "a", "b", "b"]
    assert said(imported, "fabric, racks used, everything left out")


def test_default_tree_is_used_and_the_other_is_named() -> None:
    imported = read("slurm", TWO_TREES)
    assert links_of(imported.topology) == {"n1/nic0--l2", "n2/nic0--l2"}
    assert said(imported, "whole used, small left out")


def test_blocks_alone_become_racks_with_a_leaf_each() -> None:
    imported = read("slurm", "- topology: b\n  block: {blocks: [{block: b1, nodes: 'n[1-2]'}]}")
    assert links_of(imported.topology) == {"n1/nic0--b1", "n2/nic0--b1"}
    assert said(imported, "joined by nothing")


def test_names_that_look_like_numbers_stay_as_they_are() -> None:
    text = "- topology: t\n  tree: {switches: [{switch: 007, nodes: 0x10}]}"
    assert links_of(read("slurm", text).topology) == {"0x10/nic0--007"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: b", "is no list of topologies"),
        ("- topology: t\n  flat: true", "holds neither a tree nor blocks"),
        ("- topology: t\n  tree: {switches: [{nodes: n1}]}", "tree.switches.0.switch: Field required"),
        ("- topology: t\n  tree: {switches: [{switch: [a], nodes: n1}]}", "Input should be a valid string"),
        ("- topology: t\n  tree: {switches: [{switch: a, nodes: 'n['}]}", "is no list of names"),
        (
            "- topology: t\n  tree: {switches: [{switch: a, nodes: n1}, {switch: a, nodes: n2}]}",
            "switch a is described twice",
        ),
        ("- topology: t\n  topology: u\n", "topology is there twice in line 1"),
        ("- [", "is not YAML"),
        ("- " * 5000 + "a", "is not YAML"),
    ],
)
def test_file_of_another_shape_is_refused_with_a_sentence(text: str, reason: str) -> None:
    (complaint,) = yaml_complaints(text)
    assert complaint.startswith("topology.yaml: ")
    assert reason in complaint
