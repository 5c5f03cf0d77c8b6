"""topology.conf becomes a tree of switches, and every line that cannot be true is named."""

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


def conf_complaints(text: str) -> list[str]:
    return complaints(("slurm", [source(text, "topology.conf")]))


def test_switches_and_hosts_are_read_with_comments_and_continued_lines() -> None:
    imported = read("slurm", stored("topology.conf"))
    assert links_of(imported.topology) == TREE_LINKS
    assert tiers_of(imported.topology) == TREE_TIERS


def test_what_slurm_does_not_tell_is_said() -> None:
    imported = read("slurm", stored("topology.conf"))
    assert said(imported, "LinkSpeed has no unit in Slurm and was not used")
    assert said(imported, "may stand for several")
    assert said(imported, "NICs are unknown: one per cable is assumed, called nic0 and so on: n1, n2, n3 and 1 more")
    assert said(imported, "the rate of 6 links is unknown: 400 Gbit/s is assumed for each")
    assert said(imported, "ecmp is assumed")


def test_three_tiers_are_leaf_spine_and_core() -> None:
    imported = read(
        "slurm", "SwitchName=l Nodes=n1\nSwitchName=s Switches=l\nSwitchName=c Switches=s\nSwitchName=d Switches=c"
    )
    assert tiers_of(imported.topology) == {"l": "leaf", "s": "spine", "c": "core", "d": "core"}
    assert said(imported, "has 4 tiers; the third and all above are core")


def test_switch_that_is_only_named_is_an_empty_leaf() -> None:
    imported = read("slurm", "SwitchName=l1 Nodes=n1\nSwitchName=s Switches=l[1-2]")
    assert tiers_of(imported.topology) == {"l1": "leaf", "s": "spine", "l2": "leaf"}
    assert said(imported, "names l2 and tells nothing more of it: taken for a leaf without hosts")


def test_blocks_alone_become_racks_with_a_leaf_each() -> None:
    imported = read("slurm", "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n3\nBlockSizes=2,4")
    assert links_of(imported.topology) == {"n1/nic0--b1", "n2/nic0--b1", "n3/nic0--b2"}
    assert {host.id: host.rack for host in imported.topology.hosts} == {"n1": "b1", "n2": "b1", "n3": "b2"}
    assert said(imported, "each is taken for a rack with one leaf, joined by nothing")


def test_blocks_beside_switches_are_racks_only() -> None:
    imported = read("slurm", stored("topology.conf") + "BlockName=b1 Nodes=n[1-3]\n")
    assert links_of(imported.topology) == TREE_LINKS
    assert [host.rack for host in imported.topology.hosts] == ["b1", "b1", "b1", None]


def test_host_under_two_leaves_is_refused() -> None:
    assert conf_complaints("SwitchName=l1 Nodes=n[1-2]\nSwitchName=l2 Nodes=n[2-3]") == [
        "topology.conf: host n2 is under switch l1 and under switch l2, but has one leaf"
    ]


def test_switch_above_itself_is_refused_with_the_circle() -> None:
    assert conf_complaints("SwitchName=a Switches=b\nSwitchName=b Switches=c\nSwitchName=c Switches=a") == [
        "topology.conf: switch a is its own ancestor: a > b > c > a"
    ]
    assert conf_complaints("SwitchName=a Switches=a") == ["topology.conf: switch a is its own ancestor: a > a"]


def test_leaf_below_two_spines_is_no_circle() -> None:
    text = "SwitchName=l Nodes=n1\nSwitchName=s1 Switches=l\nSwitchName=s2 Switches=l\nSwitchName=c Switches=s[1-2]"
    assert tiers_of(read("slurm", text).topology) == {"l": "leaf", "s1": "spine", "s2": "spine", "c": "core"}


def test_name_of_both_a_host_and_a_switch_is_refused() -> None:
    assert conf_complaints("SwitchName=a Nodes=b\nSwitchName=b Nodes=c") == [
        "node b is a switch as topology.conf says and a host as topology.conf says"
    ]


def test_host_in_two_blocks_is_refused() -> None:
    assert "topology.conf: host n1 is in block a and in block b" in conf_complaints(
        "BlockName=a Nodes=n1\nBlockName=b Nodes=n1"
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("SwitchName=l1 Nodes=n1", "l1 is described again, after line 1"),
        ("SwitchName=l2", "switch l2 has neither Nodes nor Switches"),
        ("SwitchName=l[2-3] Nodes=n9", "'l[2-3]' must be one name"),
        ("SwitchName=l2 Nodes=n[1-", "is no list of names"),
        ("SwitchName=l2 Nodes=n9 Colour=red", "colour is not known beside switchname"),
        ("Include other.conf", "is not made of NAME=VALUE: 'Include other.conf'"),
        ("NodeName=n1", "begins with nodename, and only SwitchName, BlockName and BlockSizes are known"),
    ],
)
def test_line_that_cannot_be_understood_is_named_by_its_number(line: str, reason: str) -> None:
    (complaint,) = conf_complaints(f"SwitchName=l1 Nodes=n1\n\n{line}\n")
    assert complaint.startswith("topology.conf: line 3: ")
    assert reason in complaint


def test_all_lines_are_complained_of_at_once() -> None:
    text = "SwitchName=a Nodes=n1\nNodeName=x\nSwitchName=b Nodes=n[\n"
    assert len(conf_complaints(text)) == 2


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


def test_blocks_of_yaml_alone_become_racks_with_a_leaf_each() -> None:
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
