"""Slurm's files, topograph's graphs and models and Lingjun's table become trees; what cannot be true is named."""

from collections.abc import Sequence

import pytest

from tests.importers.topology.build import complaints, links_of, read, said, source, stored, tiers_of

TREE_LINKS = {f"n{n}/nic0--leaf{(n + 1) // 2}" for n in (1, 2, 3, 4)} | {"leaf1--spine1", "leaf2--spine1"}
TREE_TIERS = {"leaf1": "leaf", "leaf2": "leaf", "spine1": "spine"}
CONF = stored("topology.conf")
TWO_TREES = """
- topology: small
  tree: {switches: [{switch: l1, nodes: n1}]}
- topology: whole
  cluster_default: TRUE
  tree: {switches: [{switch: l2, nodes: "n[1-2]"}]}
"""


NO_RACKS = [None] * 4
DOMAINS = ["nvl-a", "nvl-a", "nvl-b", "nvl-b"]
OF_A_CONF = (
    *("LinkSpeed has no unit in Slurm and was not used", "may stand for several", "ecmp is assumed"),
    "NICs are unknown: one per cable is assumed, called nic0 and so on: n1, ",
    "the rate of 6 links is unknown: 400 Gbit/s is assumed for each",
)


FOUR_TIERS = "SwitchName=l Nodes=n1\nSwitchName=s Switches=l\nSwitchName=c Switches=s\nSwitchName=d Switches=c"
UNTOLD_LEAF = "SwitchName=l1 Nodes=n1\nSwitchName=s Switches=l[1-2]"  # taken for one without hosts
DIAMOND = "SwitchName=l Nodes=n1\nSwitchName=s1 Switches=l\nSwitchName=s2 Switches=l\nSwitchName=c Switches=s[1-2]"
MODEL = "switches: {s: {switches: [l1, l2]}}\nblocks: [{switch: l1, nodes: [a]}]"
BLOCKS = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n3\nBlockSizes=2,4"
BLOCK = "- topology: b\n  block: {blocks: [{block: b1, nodes: 'n[1-2]'}]}"
NUMBERS = "- topology: t\n  tree: {switches: [{switch: 007, nodes: 0x10}]}"
TWO_PSWS = "ip,DSW,PSW,ASW\na,G,P1,S1\nb,G,P2,S1\nc,G,P2,S2\n"
TWO_PSWS_LINKS = {
    "a/nic0--P1-S1",
    "b/nic0--P2-S1",
    "c/nic0--S2",
    "P1-S1--P1",
    "P2-S1--P2",
    "S2--P2",
    "P1--G",
    "P2--G",
}


@pytest.mark.parametrize(
    ("format_name", "file", "racks", "words"),
    [
        ("slurm", "topology.conf", NO_RACKS, OF_A_CONF),
        ("slurm", "topology.yaml", ["a", "a", "b", "b"], ["fabric, racks used, everything left out"]),
        ("topograph", "topograph.json", DOMAINS, ["accelerator domains are kept as racks"]),
        ("topograph", "topograph.yaml", DOMAINS, ["accelerator domains are kept as racks"]),
    ],
)
def test_all_formats_tell_the_same_tree_and_say_what_they_do_not_tell(
    format_name: str, file: str, racks: list[str | None], words: Sequence[str]
) -> None:
    imported = read(format_name, stored(file))
    assert links_of(imported.topology) == TREE_LINKS
    assert tiers_of(imported.topology) == TREE_TIERS
    assert [host.rack for host in imported.topology.hosts] == racks
    assert all(said(imported, each) for each in words)


@pytest.mark.parametrize(
    ("format_name", "text", "tiers", "words"),
    [
        (
            "slurm",
            FOUR_TIERS,
            {"l": "leaf", "s": "spine", "c": "core", "d": "core"},
            "the third and all above are core",
        ),
        ("slurm", UNTOLD_LEAF, {"l1": "leaf", "s": "spine", "l2": "leaf"}, "names l2 and tells nothing more of it:"),
        ("slurm", DIAMOND, {"l": "leaf", "s1": "spine", "s2": "spine", "c": "core"}, "ecmp is assumed"),
        ("topograph", MODEL, {"s": "spine", "l1": "leaf", "l2": "leaf"}, "ecmp is assumed"),
        ("lingjun", stored("lingjun.csv"), {**TREE_TIERS, "G1": "core"}, "ecmp is assumed"),
        ("topograph", '{"instances": [{"id": "a"}]}', {}, "no switch is known for a"),
    ],
)
def test_tier_is_the_height_in_the_tree(format_name: str, text: str, tiers: dict[str, str], words: str) -> None:
    imported = read(format_name, text)
    assert tiers_of(imported.topology) == tiers
    assert said(imported, words)


@pytest.mark.parametrize(
    ("format_name", "text", "links", "words"),
    [
        ("slurm", BLOCKS, {"n1/nic0--b1", "n2/nic0--b1", "n3/nic0--b2"}, "a rack with one leaf, joined by nothing"),
        ("slurm", BLOCK, {"n1/nic0--b1", "n2/nic0--b1"}, "joined by nothing"),
        ("slurm", TWO_TREES, {"n1/nic0--l2", "n2/nic0--l2"}, "whole used, small left out"),
        ("slurm", NUMBERS, {"0x10/nic0--007"}, ""),
        ("lingjun", stored("lingjun.csv"), {*TREE_LINKS, "spine1--G1"}, ""),
        ("lingjun", TWO_PSWS, TWO_PSWS_LINKS, "S1 stand below several PSWs: taken for another leaf below each"),
    ],
)
def test_hosts_are_cabled_to_their_leaf(format_name: str, text: str, links: set[str], words: str) -> None:
    imported = read(format_name, text)
    assert links_of(imported.topology) == links
    assert said(imported, words)


def test_blocks_and_the_narrower_domain_are_racks() -> None:
    imported = read("slurm", CONF + "BlockName=b1 Nodes=n[1-3]\n")
    assert links_of(imported.topology) == TREE_LINKS
    assert [host.rack for host in imported.topology.hosts] == ["b1", "b1", "b1", None]
    labels = '{"x.run/domain": "wide", "x.run/sub-domain": "narrow"}'
    imported = read("topograph", f'{{"instances": [{{"id": "a", "network_layers": ["l"], "labels": {labels}}}]}}')
    assert imported.topology.hosts[0].rack == "narrow"


LINE_3 = "SwitchName=l1 Nodes=n1\n\n"
TREE = "- topology: t\n  tree: "


REFUSED = {
    "slurm": {
        f"{LINE_3}SwitchName=l1 Nodes=n1": "line 3: l1 is described again, after line 1",
        f"{LINE_3}SwitchName=l2": "line 3: switch l2 has neither Nodes nor Switches",
        f"{LINE_3}SwitchName=l[2-3] Nodes=n9": "line 3: 'l[2-3]' must be one name",
        f"{LINE_3}SwitchName=l2 Nodes=n[1-": "line 3: 'n[1-' is no list of names",
        f"{LINE_3}SwitchName=l2 Nodes=n9 Colour=red": "line 3: colour is not known beside switchname",
        f"{LINE_3}Include other.conf": "line 3: is not made of NAME=VALUE: 'Include other.conf'",
        f"{LINE_3}NodeName=n1": "begins with nodename, and only SwitchName, BlockName and BlockSizes are known",
        "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n2": "host n2 is under switch a and under switch b, but",
        "SwitchName=a Switches=b\nSwitchName=b Switches=c\nSwitchName=c Switches=a": "own ancestor: a > b > c > a",
        "SwitchName=a Switches=a": "switch a is its own ancestor: a > a",
        "BlockName=a Nodes=n1\nBlockName=b Nodes=n1": "host n1 is in block a and in block b",
        "- topology: t\n  flat: true": "holds neither a tree nor blocks",
        TREE + "{switches: [{nodes: n1}]}": "tree.switches.0.switch: Field required",
        TREE + "{switches: [{switch: [a], nodes: n1}]}": "Input should be a valid string",
        TREE + "{switches: [{switch: a, nodes: 'n['}]}": "is no list of names",
        TREE + "{switches: [{switch: a, nodes: n1}, {switch: a, nodes: n2}]}": "switch a is described twice",
        "- topology: t\n  topology: u\n": "topology is there twice in line 1",
        "- [": "is not YAML",
        "- " * 5000 + "a": "is not YAML",
    },
    "topograph": {
        '{"instances": [{"id": "a", "network_layers": ["l", "s", "l"]}]}': "switch l is its own ancestor: l > s > l",
        '{"instances": [{"id": "a"}, {"id": "a", "network_layers": ["m"]}]}': "instance a is there twice",
        '{"nodes": []}': "instances: Field required",
        '{"instances": [{"id": 7}]}': "instances.0.id: Input should be a valid string",
        "{": "is not JSON",
        "words: here": "is no model: it has neither switches nor blocks",
        "blocks: [{switch: l, nodes: ['n[']}]": "is no list of names",
        "switches: {a: {switches: [b]}, b: {switches: [a]}}": "switch a is its own ancestor: a > b > a",
    },
    "lingjun": {
        "": "has no column ip, DSW, PSW, ASW",
        "ip,PSW\na,b\n": "has no column DSW, ASW",
        "ip,DSW,PSW,ASW\na,G,P\n": "line 2: has an empty column or too few",
        "ip,DSW,PSW,ASW\na,G,P,S\na,G,P,T\n": "host a is under switch S and under switch T, but has one leaf",
        "ip,DSW,PSW,ASW\na,G,G,S\n": "switch G is its own ancestor: G > G",
    },
}


@pytest.mark.parametrize(
    ("format_name", "text", "reason"),
    [(name, text, reason) for name, told in REFUSED.items() for text, reason in told.items()],
)
def test_file_that_cannot_be_is_refused(format_name: str, text: str, reason: str) -> None:
    found = complaints((format_name, [source(text, "file")]))
    assert any(complaint.startswith("file: ") and reason in complaint for complaint in found), found


def test_yaml_of_another_shape_a_name_of_two_things_and_all_lines_are_complained_of() -> None:
    two_things = complaints(("slurm", [source("SwitchName=a Nodes=b\nSwitchName=b Nodes=c", "t.conf")]))
    assert two_things == ["node b is a switch as t.conf says and a host as t.conf says"]
    (complaint,) = complaints(("slurm", [source("a: b", "topology.yaml")]))
    assert complaint.startswith("topology.yaml: is no list of topologies")
    assert len(complaints(("slurm", [source("SwitchName=a Nodes=n1\nNodeName=x\nSwitchName=b Nodes=n[\n")]))) == 2
