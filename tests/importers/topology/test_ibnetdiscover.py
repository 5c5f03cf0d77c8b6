"""ibnetdiscover's text becomes switches, hosts and cables with rates, and both ends must agree."""

import pytest

from tests.importers.topology.build import (
    complaints,
    join,
    links_of,
    read,
    said,
    source,
    stored,
    tiers_of,
)

FABRIC = stored("ibnetdiscover.txt")
LEAF1_SEES_N1 = '[1]\t"H-0c42a10300120001"[1](0c42a10300120001)\t\t# "n1 mlx5_0" lid 20 4xHDR'
N1_SEES_LEAF1 = '# lid 20 lmc 0 "MF0;leaf1:MQM8700/U1" lid 11 4xHDR'


def fabric_with(old: str, new: str) -> str:
    assert old in FABRIC
    return FABRIC.replace(old, new)


def ib_complaints(text: str) -> list[str]:
    return complaints(("ibnetdiscover", [source(text, "ib.txt")]))


def test_switches_hosts_and_cables_are_read_with_their_ports() -> None:
    topology = read("ibnetdiscover", FABRIC).topology
    assert links_of(topology) == {
        "n1/mlx5_0--leaf1/1",
        "n2/mlx5_0--leaf1/2",
        "n3/mlx5_0--leaf2/1",
        "n4/mlx5_0--leaf2/2",
        "leaf1/31--spine1/1",
        "leaf1/32--spine2/1",
        "leaf2/31--spine1/2",
        "leaf2/32--spine2/2",
    }


def test_tiers_are_inferred_and_that_is_said() -> None:
    imported = read("ibnetdiscover", FABRIC)
    assert tiers_of(imported.topology) == {"leaf1": "leaf", "leaf2": "leaf", "spine1": "spine", "spine2": "spine"}
    assert said(imported, "inferred from the distance to the nearest host (2 leaf, 2 spine, 0 core)")


def test_rate_is_width_times_lane() -> None:
    rates = {link.id: link.gbps for link in read("ibnetdiscover", FABRIC).topology.links}
    assert rates["n1/mlx5_0--leaf1/1"] == 200
    assert rates["leaf1/31--spine1/1"] == 400


@pytest.mark.parametrize(
    ("word", "gbps"), [("4xEDR", 100), ("2xHDR", 100), ("4xFDR", 56), ("4xXDR", 800), ("1xSDR", 2.5)]
)
def test_every_width_and_speed_has_its_rate(word: str, gbps: float) -> None:
    links = read("ibnetdiscover", FABRIC.replace("4xNDR", word)).topology.links
    assert {link.gbps for link in links if link.a.startswith("leaf")} == {gbps}


def test_name_that_looks_like_a_rate_is_none() -> None:
    topology = read("ibnetdiscover", FABRIC.replace("MF0;spine1:MQM8700/U1", "1xSDR")).topology
    assert {link.gbps for link in topology.links if "1xSDR" in link.b} == {400}


def test_speed_that_nobody_knows_is_not_told() -> None:
    imported = read("ibnetdiscover", FABRIC.replace("4xNDR", "4xZZZ"))
    assert said(imported, "the rate of 4 links is unknown: 400 Gbit/s is assumed")


def test_part_of_a_switch_that_adds_up_is_no_host() -> None:
    imported = read("ibnetdiscover", FABRIC)
    assert [host.id for host in imported.topology.hosts] == ["n1", "n2", "n3", "n4"]
    assert said(imported, "no hosts, left out: 1")


def test_routing_is_static_unless_said_otherwise() -> None:
    imported = read("ibnetdiscover", FABRIC)
    assert imported.topology.routing == "static"
    assert said(imported, "unless --routing adaptive says otherwise")


def test_switches_of_one_chassis_are_told_apart_by_their_place() -> None:
    text = fabric_with("MF0;spine1:MQM8700/U1", "MF0;core:MCS8500/S01/U1")
    text = text.replace("MF0;spine2:MQM8700/U1", "MF0;core:MCS8500/S02/U1")
    assert set(tiers_of(read("ibnetdiscover", text).topology)) == {"leaf1", "leaf2", "core.S01.U1", "core.S02.U1"}


def test_switches_that_call_themselves_the_same_go_by_their_guid() -> None:
    text = FABRIC.replace("MF0;spine1:MQM8700/U1", "Quantum").replace("MF0;spine2:MQM8700/U1", "Quantum")
    assert {"S-0000000000000b01", "S-0000000000000b02"} < set(tiers_of(read("ibnetdiscover", text).topology))


def test_cable_that_its_ends_describe_differently_is_refused() -> None:
    text = fabric_with('"S-0000000000000a01"[1]\t\t# lid 20', '"S-0000000000000a01"[7]\t\t# lid 20')
    assert ib_complaints(text) == [
        (
            "n1/mlx5_0 is cabled to leaf1/1 as leaf1/1 says in ib.txt and to leaf1/7 as n1/mlx5_0 says in ib.txt, "
            "but takes one cable"
        )
    ]


def test_rate_that_differs_at_the_two_ends_is_refused() -> None:
    text = fabric_with(N1_SEES_LEAF1, N1_SEES_LEAF1.replace("4xHDR", "4xEDR"))
    assert ib_complaints(text) == [
        (
            "the cable from leaf1/1 to n1/mlx5_0 runs at 200 Gbit/s as leaf1/1 says in ib.txt "
            "and 100 Gbit/s as n1/mlx5_0 says in ib.txt"
        )
    ]


def test_all_contradictions_are_told_at_once() -> None:
    text = fabric_with(N1_SEES_LEAF1, N1_SEES_LEAF1.replace("4xHDR", "4xEDR"))
    text = text.replace('"S-0000000000000a02"[1]\t\t# lid 22', '"S-0000000000000a02"[9]\t\t# lid 22')
    assert len(ib_complaints(text)) == 2


def test_adapters_that_cannot_be_told_apart_are_refused() -> None:
    found = ib_complaints(FABRIC.replace("n2 mlx5_0", "n1 mlx5_0"))
    assert "ib.txt: two adapters call themselves 'n1 mlx5_0' and cannot be told apart: H-0c42a10300120002" in found


def test_second_port_of_an_adapter_has_its_number_in_the_name() -> None:
    first = '[1](0c42a10300120001)\t"S-0000000000000a01"[1]'
    second = '[2](0c42a10300120011)\t"S-0000000000000a02"[5]\t\t# lid 60 4xHDR'
    topology = read("ibnetdiscover", fabric_with(first, f"{second}\n{first}")).topology
    assert {"n1/mlx5_0--leaf1/1", "n1/mlx5_0:2--leaf2/5"} < links_of(topology)


def test_ports_with_a_number_on_the_chassis_are_read() -> None:
    text = fabric_with('[31]\t"S-0000000000000b01"[1]', '[31][ext 3]\t"S-0000000000000b01"[1][ext 9]')
    assert links_of(read("ibnetdiscover", text).topology) == links_of(read("ibnetdiscover", FABRIC).topology)


def test_cable_that_one_end_does_not_show_counts() -> None:
    text = "\n".join(line for line in FABRIC.splitlines() if not line.startswith(LEAF1_SEES_N1))
    assert "n1/mlx5_0--leaf1/1" in links_of(read("ibnetdiscover", text).topology)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no switch and no adapter"),
        ("[1] nonsense", "line 1: is no port of a switch or an adapter: '[1] nonsense'"),
        ("Switch what", "line 1: cannot be understood: 'Switch what'"),
        ('Switch 2 "S-1" # "a"\nSwitch 2 "S-1" # "a"', "S-1 is described 2 times"),
        ('Switch 2 "S-1" # "a"\n[1] "S-2"[1] # "b"', "a is cabled to S-2, which is not described"),
    ],
)
def test_text_that_is_something_else_is_refused(text: str, reason: str) -> None:
    assert ib_complaints(text) == [f"ib.txt: {reason}"]


def test_two_parts_of_a_fabric_in_two_files_are_joined() -> None:
    blocks = FABRIC.split("\n\n\n")
    half = [source("\n\n\n".join(blocks), "a.txt"), source("\n\n\n".join(blocks), "b.txt")]
    assert links_of(join(("ibnetdiscover", half)).topology) == links_of(read("ibnetdiscover", FABRIC).topology)
