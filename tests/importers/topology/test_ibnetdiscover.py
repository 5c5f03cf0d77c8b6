"""ibnetdiscover's text becomes switches, hosts and cables with rates, and both ends must agree."""

import re

from tests.importers.topology.build import complaints, join, links_of, read, said, source, stored, tiers_of

FABRIC = stored("ibnetdiscover.txt")
LINKS = {f"n{n}/mlx5_0--leaf{(n + 1) // 2}/{2 - n % 2}" for n in (1, 2, 3, 4)}
LINKS |= {f"leaf{leaf}/{30 + spine}--spine{spine}/{leaf}" for leaf in (1, 2) for spine in (1, 2)}
LEAF1_SEES_N1 = '[1]\t"H-0c42a10300120001"[1](0c42a10300120001)\t\t# "n1 mlx5_0" lid 20 4xHDR'
N1_SEES_LEAF1 = '# lid 20 lmc 0 "MF0;leaf1:MQM8700/U1" lid 11 4xHDR'
SPINE1, SPINE2 = "MF0;spine1:MQM8700/U1", "MF0;spine2:MQM8700/U1"
FIRST_PORT = '[1](0c42a10300120001)\t"S-0000000000000a01"[1]'
SECOND_PORT = '[2](0c42a10300120011)\t"S-0000000000000a02"[5]\t\t# lid 60 4xHDR'


def fabric_with(*changes: tuple[str, str]) -> str:
    text = FABRIC
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def ib_complaints(text: str) -> list[str]:
    return complaints(("ibnetdiscover", [source(text, "ib.txt")]))


def test_switches_hosts_and_cables_are_read_and_what_was_inferred_is_said() -> None:
    imported = read("ibnetdiscover", FABRIC)
    assert links_of(imported.topology) == LINKS
    assert tiers_of(imported.topology) == {"leaf1": "leaf", "leaf2": "leaf", "spine1": "spine", "spine2": "spine"}
    assert said(imported, "inferred from the distance to the nearest host (2 leaf, 2 spine, 0 core)")
    rates = {link.id: link.gbps for link in imported.topology.links}
    assert (rates["n1/mlx5_0--leaf1/1"], rates["leaf1/31--spine1/1"]) == (200, 400)
    assert [host.id for host in imported.topology.hosts] == ["n1", "n2", "n3", "n4"]
    assert said(imported, "no hosts, left out: 1"), "the part of a switch that adds up"
    assert imported.topology.routing == "static"
    assert said(imported, "unless --routing adaptive says otherwise")


def test_rate_is_width_times_lane_and_one_that_nobody_knows_is_assumed() -> None:
    rates = {"4xEDR": 100, "2xHDR": 100, "4xFDR": 56, "4xXDR": 800, "1xSDR": 2.5, "4xZZZ": 400}
    for word, gbps in rates.items():
        imported = read("ibnetdiscover", fabric_with(("4xNDR", word)))
        assert {link.gbps for link in imported.topology.links if link.a.startswith("leaf")} == {gbps}
        assert said(imported, "the rate of 4 links is unknown: 400 Gbit/s is assumed") == (word == "4xZZZ")
    topology = read("ibnetdiscover", fabric_with((SPINE1, "1xSDR"))).topology
    assert {link.gbps for link in topology.links if "1xSDR" in link.b} == {400}, "it is the name of a switch"


FACTORY = "MT4123 ConnectX6   Mellanox Technologies"


def test_switches_are_told_apart_by_place_or_guid_and_adapters_with_the_factory_s_name_by_guid_and_card() -> None:
    for first, second, spines in (
        ("MF0;core:MCS8500/S01/U1", "MF0;core:MCS8500/S02/U1", {"core.S01.U1", "core.S02.U1"}),  # of one chassis
        ("Quantum", "Quantum", {"S-0000000000000b01", "S-0000000000000b02"}),
    ):
        topology = read("ibnetdiscover", fabric_with((SPINE1, first), (SPINE2, second))).topology
        assert set(tiers_of(topology)) == {"leaf1", "leaf2", *spines}
    imported = read("ibnetdiscover", fabric_with(*((f"n{n} mlx5_0", FACTORY) for n in (1, 2, 3, 4))))
    by_guid = re.sub(r"n(\d)/mlx5_0", r"H-0c42a1030012000\1/H-0c42a1030012000\1", " ".join(LINKS))
    assert links_of(imported.topology) == set(by_guid.split())
    assert said(imported, "4 adapters have no name of their own ('MT4123 ConnectX6   Mellanox Technologies')")
    one = read("ibnetdiscover", fabric_with(("n4 mlx5_0", FACTORY)))
    assert [host.id for host in one.topology.hosts] == ["n1", "n2", "n3", "H-0c42a10300120004"]
    twice = read("ibnetdiscover", fabric_with(("n2 mlx5_0", "n1 mlx5_0")))
    assert len(twice.topology.hosts) == 4, "two machines that call themselves alike are two"
    text = fabric_with(*((f"n{n} mlx5_0", FACTORY) for n in (1, 2)))
    images = sorted(set(re.findall(r"sysimgguid=(0x0?c42a1030012000[12])", text)))
    (host, *_) = read("ibnetdiscover", text.replace(images[1], images[0])).topology.hosts
    assert [nic.id for nic in host.nics] == ["H-0c42a10300120001", "H-0c42a10300120002"]


def test_ports_may_have_numbers_of_their_own_and_be_shown_by_one_end_only() -> None:
    second = read("ibnetdiscover", fabric_with((FIRST_PORT, f"{SECOND_PORT}\n{FIRST_PORT}")))
    assert links_of(second.topology) == LINKS | {"n1/mlx5_0:2--leaf2/5"}
    chassis = ('[31]\t"S-0000000000000b01"[1]', '[31][ext 3]\t"S-0000000000000b01"[1][ext 9]')
    assert links_of(read("ibnetdiscover", fabric_with(chassis)).topology) == LINKS
    one_end = "\n".join(line for line in FABRIC.splitlines() if not line.startswith(LEAF1_SEES_N1))
    assert links_of(read("ibnetdiscover", one_end).topology) == LINKS
    twice = [source(FABRIC, "a.txt"), source(FABRIC, "b.txt")]
    assert links_of(join(("ibnetdiscover", twice)).topology) == LINKS


def test_cables_that_their_ends_describe_differently_are_all_refused() -> None:
    slower = (N1_SEES_LEAF1, N1_SEES_LEAF1.replace("4xHDR", "4xEDR"))
    elsewhere = ('"S-0000000000000a02"[1]\t\t# lid 22', '"S-0000000000000a02"[9]\t\t# lid 22')
    places = "n3/mlx5_0 is cabled to leaf2/1 as leaf2/1 says in ib.txt and to leaf2/9 as n3/mlx5_0 says in ib.txt"
    rates = "runs at 200 Gbit/s as leaf1/1 says in ib.txt and 100 Gbit/s as n1/mlx5_0 says in ib.txt"
    assert ib_complaints(fabric_with(slower, elsewhere)) == [
        f"{places}, but takes one cable",
        f"the cable from leaf1/1 to n1/mlx5_0 {rates}",
    ]


def test_text_that_is_something_else_or_ambiguous_is_refused() -> None:
    refused = {
        "": "holds no switch and no adapter",
        "[1] nonsense": "line 1: is no port of a switch or an adapter: '[1] nonsense'",
        "Switch what": "line 1: cannot be understood: 'Switch what'",
        'Switch 2 "S-1" # "a"\nSwitch 2 "S-1" # "a"': "S-1 is described 2 times",
        'Switch 2 "S-1" # "a"\n[1] "S-2"[1] # "b"': "a is cabled to S-2, which is not described",
    }
    for text, reason in refused.items():
        assert f"ib.txt: {reason}" in ib_complaints(text)
