"""LLDP neighbours of every node become cables, and what two nodes say of one port must agree."""

import json
from typing import Any

import pytest

from importers.topology.survey import Source
from tests.importers.topology.build import changed, complaints, join, links_of, said, source, stored_folder, tiers_of

FABRIC = stored_folder("lldp")
LINKS = {
    "n1/eth0--leaf1/swp1",
    "n2/eth0--leaf1/swp2",
    "n3/eth0--leaf2/swp1",
    "n4/eth0--leaf2/swp2",
    "leaf1/swp31--spine1/swp1",
    "leaf1/swp32--spine2/swp1",
    "leaf2/swp31--spine1/swp2",
    "leaf2/swp32--spine2/swp2",
}


def neighbour(
    node: str, port: str = "swp1", kind: str = "Bridge", medium: str = "", descr: str = ""
) -> dict[str, Any]:
    return {
        "chassis": {node: {"capability": [{"type": kind, "enabled": True}]}},
        "port": {
            "id": {"type": "ifname", "value": port},
            "auto-negotiation": {"current": medium},
            **({"descr": descr} if descr else {}),
        },
    }


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
JSON0_CHASSIS = {
    "name": [{"value": "leaf1"}],
    "id": [{"type": "mac", "value": "x"}],
    "capability": [{"type": "Bridge", "enabled": True}],
}
JSON0_PORT = {"id": [{"type": "ifname", "value": "swp1"}]}
JSON0 = {"lldp": [{"interface": [{"name": "eth0", "chassis": [JSON0_CHASSIS], "port": [JSON0_PORT]}]}]}


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ([source(json.dumps(JSON0))], {"n1/eth0--leaf1/swp1"}),
        (
            [source(seen(swp1=STATION, swp2=neighbour("n2", "eth0", "Station")), node="leaf1")],  # so it is a switch
            {"n1/eth0--leaf1/swp1", "n2/eth0--leaf1/swp2"},
        ),
        (
            [
                source(seen(eth0=neighbour("leaf1.example.org")), "a", "n1"),
                source(seen(swp1=neighbour("n1.example.org", "eth0", "Station")), "b", "leaf1"),
            ],
            {"n1/eth0--leaf1/swp1"},
        ),
        (
            [  # a port is called as its own node calls it
                source(seen(eth0=neighbour("leaf1", "etp1", descr="Ethernet0")), "a", "n1"),
                source(seen(Ethernet0=STATION), "b", "leaf1"),
            ],
            {"n1/eth0--leaf1/Ethernet0"},
        ),
        (
            [  # ports that only their own nodes name are put together
                source(seen(p1=nameless("b"), p2=nameless("b")), "a.json", "a"),
                source(seen(q1=nameless("a")), "b.json", "b"),
            ],
            {"a/p1--b/q1", "a/p2--b"},
        ),
    ],
    ids=["json0", "sees hosts", "domain", "own name", "nameless"],
)
def test_neighbours_become_cables(files: list[Source], links: set[str]) -> None:
    assert links_of(join(("lldp", files)).topology) == links


def test_neighbour_without_a_name_goes_by_its_id() -> None:
    entry = {"chassis": {"id": {"type": "mac", "value": "0c:42"}}, "port": {"id": {"type": "ifname", "value": "1"}}}
    imported = join(("lldp", [source(seen(eth0=entry))]))
    assert links_of(imported.topology) == {"n1/eth0--0c:42/1"}
    assert said(imported, "taken for a host: n1")
    assert said(imported, "taken for a switch: 0c:42")


@pytest.mark.parametrize(
    ("medium", "gbps"),
    [
        ("100GbaseCR4 - 100GbE", 100),
        ("10GigBaseX - X PCS", 10),
        ("1000BaseTFD - Four-pair", 1),
        ("2p5GigBaseT", 2.5),
        ("unknown", 400),
        ("", 400),
    ],
)
def test_rate_is_that_of_the_medium_where_it_is_told(medium: str, gbps: float) -> None:
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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            json.dumps({"lldp": {"interface": [{"eth0": neighbour("a")}, {"eth0": neighbour("b")}]}}),
            "port eth0 of n1 has 2 neighbours, but takes one cable",
        ),
        ("[]", "shows no neighbour; expected what `lldpctl -f json` prints"),
        ('{"lldp": {}}', "shows no neighbour"),
        ("{", "is not JSON"),
        (seen(eth0={"port": {}}), "the neighbour on eth0 has neither a name nor an id"),
        ('{"lldp": {"interface": {"eth0": {"chassis": [1, "x"], "port": 3}}}}', "neither a name nor an id"),
    ],
)
def test_file_that_is_something_else_is_refused(text: str, reason: str) -> None:
    (complaint,) = complaints(("lldp", [source(text, "n1.json")]))
    assert complaint.startswith("n1.json: ")
    assert reason in complaint
