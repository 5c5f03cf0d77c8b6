"""LLDP neighbours of every node become cables, and what two nodes say of one port must agree."""

import json
from typing import Any

import pytest

from importers.topology.survey import Source
from tests.importers.topology.build import changed, complaints, join, links_of, said, source, stored_folder, tiers_of

FABRIC = stored_folder("lldp")
LINKS = {f"n{n}/eth0--leaf{(n + 1) // 2}/swp{2 - n % 2}" for n in (1, 2, 3, 4)}
LINKS |= {f"leaf{leaf}/swp{30 + spine}--spine{spine}/swp{leaf}" for leaf in (1, 2) for spine in (1, 2)}


def neighbour(node: str, port: str = "swp1", kind: str = "Bridge", medium: str = "", **more: str) -> dict[str, Any]:
    told = {"id": {"type": "ifname", "value": port}, "auto-negotiation": {"current": medium}, **more}
    return {"chassis": {node: {"capability": [{"type": kind, "enabled": True}]}}, "port": told}


def nameless(node: str) -> dict[str, Any]:
    return {**neighbour(node), "port": {"id": {"type": "mac", "value": "02:00"}}}


def seen(**interfaces: dict[str, Any]) -> str:
    return json.dumps({"lldp": {"interface": [{name: entry} for name, entry in interfaces.items()]}})


def test_all_nodes_together_or_the_leaves_alone_tell_every_cable_once() -> None:
    topology = join(("lldp", FABRIC)).topology
    assert links_of(topology) == LINKS
    assert tiers_of(topology) == {"leaf1": "leaf", "leaf2": "leaf", "spine1": "spine", "spine2": "spine"}
    assert {link.gbps for link in topology.links if link.a.startswith("n")} == {100}
    leaves = [one for one in FABRIC if one.node.startswith("leaf")]
    assert links_of(join(("lldp", leaves)).topology) == LINKS


STATION = neighbour("n1", "eth0", "Station")


def files_of(**nodes: str) -> list[Source]:
    return [source(text, f"{node}.json", node) for node, text in nodes.items()]


JSON0 = """{"lldp": [{"interface": [{
    "name": "eth0",
    "chassis": [{
        "name": [{"value": "leaf1"}],
        "id": [{"type": "mac", "value": "x"}],
        "capability": [{"type": "Bridge", "enabled": true}]
    }],
    "port": [{"id": [{"type": "ifname", "value": "swp1"}]}]
}]}]}"""
TWO_HOSTS = seen(swp1=STATION, swp2=neighbour("n2", "eth0", "Station"))
IN_A_DOMAIN = {"n1": seen(eth0=neighbour("leaf1.example.org"))}
IN_A_DOMAIN["leaf1"] = seen(swp1=neighbour("n1.example.org", "eth0", "Station"))
OWN_NAME = {"n1": seen(eth0=neighbour("leaf1", "etp1", descr="Ethernet0")), "leaf1": seen(Ethernet0=STATION)}
NAMELESS = {"a": seen(p1=nameless("b"), p2=nameless("b")), "b": seen(q1=nameless("a"))}


@pytest.mark.parametrize(
    ("files", "links"),
    [
        (files_of(n1=JSON0), {"n1/eth0--leaf1/swp1"}),
        (files_of(leaf1=TWO_HOSTS), {"n1/eth0--leaf1/swp1", "n2/eth0--leaf1/swp2"}),
        (files_of(**IN_A_DOMAIN), {"n1/eth0--leaf1/swp1"}),
        (files_of(**OWN_NAME), {"n1/eth0--leaf1/Ethernet0"}),
        (files_of(**NAMELESS), {"a/p1--b/q1", "a/p2--b"}),
    ],
    ids=[
        "json0",
        "who sees hosts is a switch",
        "domain",
        "as its own node calls it",
        "named by their own nodes only",
    ],
)
def test_neighbours_become_cables(files: list[Source], links: set[str]) -> None:
    assert links_of(join(("lldp", files)).topology) == links


def test_neighbour_without_a_name_goes_by_its_id_and_the_medium_tells_the_rate() -> None:
    entry = {"chassis": {"id": {"type": "mac", "value": "0c:42"}}, "port": {"id": {"type": "ifname", "value": "1"}}}
    imported = join(("lldp", [source(seen(eth0=entry))]))
    assert links_of(imported.topology) == {"n1/eth0--0c:42/1"}
    assert said(imported, "taken for a host: n1")
    assert said(imported, "taken for a switch: 0c:42")
    media = {"100GbaseCR4 - 100GbE": 100, "10GigBaseX - X PCS": 10, "1000BaseTFD - Four-pair": 1, "2p5GigBaseT": 2.5}
    for medium, gbps in (media | {"unknown": 400, "": 400}).items():
        (link,) = join(("lldp", [source(seen(eth0=neighbour("leaf1", medium=medium)))])).topology.links
        assert link.gbps == gbps


def test_nodes_that_disagree_on_a_cable_or_its_rate_are_reported() -> None:
    assert complaints(("lldp", changed(FABRIC, "n1", '"swp1"', '"swp2"'))) == [
        (
            "n1/eth0 is cabled to leaf1/swp1 as leaf1/swp1 says in leaf1.json "
            "and to leaf1/swp2 as n1/eth0 says in n1.json, but takes one cable"
        ),
        (
            "leaf1/swp2 is cabled to n2/eth0 as leaf1/swp2 says in leaf1.json "
            "and to n1/eth0 as n1/eth0 says in n1.json, but takes one cable"
        ),
    ]
    (complaint,) = complaints(("lldp", changed(FABRIC, "n1", "100Gbase", "25Gbase")))
    assert "from leaf1/swp1 to n1/eth0 runs at 100 Gbit/s" in complaint
    assert "and 25 Gbit/s as n1/eth0 says in n1.json" in complaint


def test_file_that_is_something_else_is_refused() -> None:
    twice = json.dumps({"lldp": {"interface": [{"eth0": neighbour("a")}, {"eth0": neighbour("b")}]}})
    refused = {
        twice: "port eth0 of n1 has 2 neighbours, but takes one cable",
        "[]": "shows no neighbour; expected what `lldpctl -f json` prints",
        '{"lldp": {}}': "shows no neighbour",
        "{": "is not JSON",
        seen(eth0={"port": {}}): "the neighbour on eth0 has neither a name nor an id",
        '{"lldp": {"interface": {"eth0": {"chassis": [1, "x"], "port": 3}}}}': "neither a name nor an id",
    }
    for text, reason in refused.items():
        (complaint,) = complaints(("lldp", [source(text, "n1.json")]))
        assert complaint.startswith("n1.json: ")
        assert reason in complaint
