"""A topology is accepted when it is sound, refused with every reason when it is not, and answers questions."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import BadTopology
from lockstep.topology import (
    Gpu,
    Link,
    Nic,
    Node,
    Tier,
    Topology,
    TopologyIndex,
    check_topology,
    checked,
    dump_topology,
    gpu_name,
    host_name,
    link_name,
    load_topology,
    nic_name,
    parse_topology,
    split_end,
    switch_name,
)

QUICK = settings(max_examples=20)


def host(name: str, *nics: str, gpus: tuple[Gpu, ...] = (), tier: Tier | None = None) -> Node:
    return Node(id=name, kind="host", nics=tuple(Nic(id=nic) for nic in nics), gpus=gpus, tier=tier)


def switch(name: str, tier: Tier | None = None, gpus: tuple[Gpu, ...] = ()) -> Node:
    return Node(id=name, kind="switch", tier=tier, gpus=gpus)


def gpu(index: int, *nics: str) -> Gpu:
    return Gpu(id=f"gpu{index}", index=index, nics=nics)


def link(a: str, b: str, gbps: float = 400, up: bool = True, name: str | None = None) -> Link:
    return Link(id=name or f"{a}--{b}", a=a, b=b, gbps=gbps, up=up)


def fabric(nodes: list[Node], links: list[Link], version: int = 1) -> Topology:
    return Topology(version=version, routing="ecmp", nodes=tuple(nodes), links=tuple(links))


def ids_between(topology: Topology, src: str, dst: str) -> set[str]:
    """Ask for the links between two NICs written host/nic, in both directions, which must agree."""
    index = TopologyIndex(topology)
    a, b = src.split("/"), dst.split("/")
    there, back = index.links_between(a[0], a[1], b[0], b[1]), index.links_between(b[0], b[1], a[0], a[1])
    assert there == back
    return {link.id for link in there}


H0 = host("h0", "eth0", gpus=(gpu(0, "eth0"),))
H1 = host("h1", "eth0", gpus=(gpu(0, "eth0"),))
LEAF, SPINE = switch("leaf0", "leaf"), switch("spine0", "spine")
CABLE0, CABLE1, UPLINK = link("h0/eth0", "leaf0"), link("h1/eth0", "leaf0"), link("leaf0", "spine0")
SOUND = fabric([H0, H1, LEAF, SPINE], [CABLE0, CABLE1, UPLINK])


class Flaw(NamedTuple):
    """Something to add to the sound topology, and what is then said about it."""

    complaint: str
    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()


def with_flaws(*flaws: Flaw) -> Topology:
    nodes = [node for flaw in flaws for node in flaw.nodes]
    links = [link for flaw in flaws for link in flaw.links]
    return fabric([*SOUND.nodes, *nodes], [*SOUND.links, *links])


def uplink(name: str, a: str = "leaf0", gbps: float = 400) -> tuple[Link, ...]:
    return (link(a, "spine0", gbps=gbps, name=name),)


SAME_INDEX = host("h3", gpus=(gpu(3), Gpu(id="other", index=3)))
FLAWS = [
    Flaw("node h0 is there more than once", (H0,)),
    Flaw("link leaf0--spine0 is there more than once", links=(UPLINK,)),
    Flaw("host h2 has NIC eth0 more than once", (host("h2", "eth0", "eth0"),)),
    Flaw("host h3 has GPU index 3 more than once", (SAME_INDEX,)),
    Flaw(
        "GPU gpu0 of host h4 uses NIC eth7, which that host does not have",
        (host("h4", "eth0", gpus=(gpu(0, "eth0", "eth7"),)),),
    ),
    Flaw("switch leaf5 has 2 GPUs, but only hosts have any", (switch("leaf5", gpus=(gpu(0), gpu(1))),)),
    Flaw("host h5 has tier spine, but only switches have one", (host("h5", tier="spine"),)),
    Flaw("node id 'leaf 1' contains whitespace", (switch("leaf 1"),)),
    Flaw("node id 'leaf--1' contains '--'", (switch("leaf--1"),)),
    Flaw("node id 'row2/leaf1' contains '/'", (switch("row2/leaf1"),)),
    Flaw("node id '' is empty", (switch(""),)),
    Flaw("NIC id 'eth--0' of h6 contains '--'", (host("h6", "eth--0"),)),
    Flaw("NIC id 'eth\\t0' of h7 contains whitespace", (host("h7", "eth\t0"),)),
    Flaw("GPU id 'H200 SXM' of h8 contains whitespace", (host("h8", gpus=(Gpu(id="H200 SXM", index=0),)),)),
    Flaw("link id 'second uplink' contains whitespace", links=uplink("second uplink")),
    Flaw("port 'port 7' of leaf0 on link m contains whitespace", links=uplink("m", "leaf0/port 7")),
    Flaw("port '' of leaf0 on link n is empty", links=uplink("n", "leaf0/")),
    Flaw("link leaf0--spine9 ends at 'spine9', but there is no node 'spine9'", links=(link("leaf0", "spine9"),)),
    Flaw("link o ends at 'h0', which is no NIC of host h0", links=uplink("o", "h0")),
    Flaw("link s ends at 'h0/eth9', which is no NIC of host h0", links=uplink("s", "h0/eth9")),
    Flaw("link leaf0/1--leaf0/2 joins node leaf0 to itself", links=(link("leaf0/1", "leaf0/2"),)),
    Flaw("link p has gbps 0.0, but a rate is finite and above 0", links=uplink("p", gbps=0)),
    Flaw("link q has gbps nan, but a rate is finite and above 0", links=uplink("q", gbps=math.nan)),
    Flaw("link r has gbps inf, but a rate is finite and above 0", links=uplink("r", gbps=math.inf)),
    Flaw(
        "NIC h1/eth0 takes one cable, but has links h1/eth0--leaf0 and spine0--h1/eth0",
        links=(link("spine0", "h1/eth0"),),
    ),
]


def test_sound_topology_with_ids_of_real_devices_has_no_complaints_and_an_unknown_version_has() -> None:
    assert check_topology(SOUND) == []
    assert checked(SOUND) is SOUND
    assert check_topology(fabric([H0], [], version=2)) == ["version is 2, but only 1 is known"]
    nodes = [host("gpu-a3.row7.example", "mlx5_3/1"), switch("SW:0x98039b03009fcfd6")]
    cable = link("SW:0x98039b03009fcfd6/Ethernet1/17", "gpu-a3.row7.example/mlx5_3/1")
    index = TopologyIndex(checked(fabric(nodes, [cable])))
    assert index.host_link("gpu-a3.row7.example", "mlx5_3/1") == cable
    assert index.leaf_of("gpu-a3.row7.example", "mlx5_3/1") == "SW:0x98039b03009fcfd6"
    assert check_topology(with_flaws(Flaw("", links=(link("leaf0", "spine0", name="second"),)))) == []
    assert sorted(check_topology(with_flaws(*FLAWS))) == sorted(flaw.complaint for flaw in FLAWS), "all at once"


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.complaint)
def test_one_flaw_gives_one_sentence(flaw: Flaw) -> None:
    assert check_topology(with_flaws(flaw)) == [flaw.complaint]
    with pytest.raises(BadTopology, match=re.escape(flaw.complaint)):
        checked(with_flaws(flaw))


def test_text_may_leave_out_what_has_a_default_and_so_does_ours(tmp_path: Path) -> None:
    gpus, nics = [{"id": "gpu0", "index": 0, "nics": ["eth0"]}], [{"id": "eth0"}]
    assert json.loads(dump_topology(SOUND))["nodes"][0] == {"id": "h0", "kind": "host", "gpus": gpus, "nics": nics}
    (tmp_path / "topology.json").write_text(dump_topology(SOUND), encoding="utf-8")
    assert load_topology(tmp_path / "topology.json") == SOUND
    text = """{"routing": "adaptive",
               "nodes": [{"id": "h0", "kind": "host", "nics": [{"id": "eth0"}]}, {"id": "leaf0", "kind": "switch"}],
               "links": [{"id": "x", "a": "leaf0/7", "b": "h0/eth0", "gbps": 200}]}"""
    topology = parse_topology(text)
    assert (topology.version, topology.routing, topology.links[0].up) == (1, "adaptive", True)
    assert topology.nodes[0].nics == (Nic(id="eth0", plane=None, rail=None),)


@QUICK
@given(
    gbps=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    up=st.booleans(),
    plane=st.none() | st.integers(),
    rack=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
)
def test_every_value_survives_the_text_exactly(gbps: float, up: bool, plane: int | None, rack: str | None) -> None:
    node = Node(id="h9", kind="host", rack=rack, nics=(Nic(id="eth0", plane=plane, rail=plane),))
    topology = fabric([LEAF, node], [link("h9/eth0", "leaf0/Ethernet1/1", gbps=gbps, up=up)])
    assert parse_topology(dump_topology(topology)) == topology


def refusal(text: str) -> list[str]:
    with pytest.raises(BadTopology) as refused:
        parse_topology(text)
    return refused.value.complaints


def complaints_about(**changes: Any) -> list[str]:  # Any: wrong types on purpose
    """Change the sound topology at dotted places, such as links.0.gbps, and return why it is refused.

    None removes a field of the topology itself.
    """
    written = json.loads(dump_topology(SOUND))
    for place, value in changes.items():
        *steps, last = (int(step) if step.isdigit() else step for step in place.split("."))
        inner = written
        for step in steps:
            inner = inner[step]
        inner[last] = value
    return refusal(json.dumps({key: value for key, value in written.items() if value is not None}))


def test_wrong_types_missing_and_unknown_fields_and_contradictions_are_all_named() -> None:
    complaints = complaints_about(
        **{
            "nodes.0.gpus.0.index": "zero",
            "nodes.1.kind": "router",
            "nodes.2.nics": "eth0",
            "nodes.3": 7,
            "links.0.gbps": "fast",
            "links.1.up": "no",
        }
    )
    assert complaints == [
        "index of gpu gpu0 of node h0 is 'zero': Input should be a valid integer",
        "kind of node h1 is 'router': Input should be 'host' or 'switch'",
        "nics of node leaf0 is 'eth0': Input should be a valid array",
        "nodes[3] is 7: Input should be an object",
        "gbps of link h0/eth0--leaf0 is 'fast': Input should be a valid number",
        "up of link h1/eth0--leaf0 is 'no': Input should be a valid boolean",
    ]
    assert complaints_about(**{"routing": None, "links.2.colour": "red", "weather": "fine"}) == [
        "routing is missing",
        "colour of link leaf0--spine0 is not a field that we know",
        "weather is not a field that we know",
    ]
    assert complaints_about(**{"version": 3, "nodes.3.id": "leaf0", "links.0.gbps": -1}) == [
        "version is 3, but only 1 is known",
        "node leaf0 is there more than once",
        "link h0/eth0--leaf0 has gbps -1.0, but a rate is finite and above 0",
        "link leaf0--spine0 ends at 'spine0', but there is no node 'spine0'",
    ]
    assert refusal("[]") == ["the topology is []: Input should be an object"]
    assert refusal("") == ["the topology is not JSON: EOF while parsing a value at line 1 column 0"]
    assert refusal('{"version": 1,}') == ["the topology is not JSON: trailing comma at line 1 column 15"]


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"routing": "\xe9cmp"}')
    for path in (tmp_path / "absent.json", tmp_path, latin):
        with pytest.raises(BadTopology, match=rf"{path} cannot be read: "):
            load_topology(path)


def test_components_have_the_names_of_the_verdict_table() -> None:
    assert (nic_name("h3", "eth1"), gpu_name("h3", 0)) == ("nic:h3/eth1", "gpu:h3/0")
    assert (host_name("h3"), switch_name("leaf1")) == ("host:h3", "switch:leaf1")
    assert link_name(link("leaf1/7", "h3/eth1", name="cable-4711")) == "link:leaf1/7--h3/eth1"
    assert (split_end("leaf1"), split_end("leaf1/Ethernet1/7")) == (("leaf1", None), ("leaf1", "Ethernet1/7"))
    assert (SOUND.hosts, SOUND.switches) == ((H0, H1), (LEAF, SPINE))


def test_cable_and_leaf_of_a_nic_are_found_whichever_end_is_first_and_though_it_is_down() -> None:
    down = link("leaf0/2", "h1/eth0", up=False)
    index = TopologyIndex(fabric([H0, H1, LEAF], [CABLE0, down]))
    assert [index.leaf_of("h0", "eth0"), index.leaf_of("h1", "eth0")] == ["leaf0", "leaf0"]
    assert index.host_link("h1", "eth0") == down
    assert index.nics_of("h1") == H1.nics
    assert index.nics_of("h9") == ()
    assert ids_between(SOUND, "h0/eth0", "h1/eth0") == {"h0/eth0--leaf0", "h1/eth0--leaf0"}
    assert ids_between(SOUND, "h0/eth0", "h0/eth0") == set()
    for name, nic in (("h0", "eth9"), ("h9", "eth0"), ("leaf0", "1")):
        assert index.host_link(name, nic) is None
        assert index.leaf_of(name, nic) is None
        assert index.links_between(name, nic, "h0", "eth0") == frozenset()


def test_host_never_forwards_and_hosts_cabled_back_to_back_use_that_cable() -> None:
    middle = host("h1", "eth0", "eth1")
    nodes = [host("h0", "eth0"), middle, host("h2", "eth0"), switch("leaf0"), switch("leaf1")]
    ends = [("h0/eth0", "leaf0"), ("h1/eth0", "leaf0"), ("h1/eth1", "leaf1"), ("h2/eth0", "leaf1")]
    topology = checked(fabric(nodes, [link(a, b) for a, b in ends]))
    assert ids_between(topology, "h0/eth0", "h2/eth0") == set()
    assert ids_between(topology, "h0/eth0", "h1/eth0") == {"h0/eth0--leaf0", "h1/eth0--leaf0"}
    links = [link("h0/eth0", "h1/eth0"), link("h1/eth1", "leaf0"), link("h2/eth0", "leaf0")]
    topology = checked(fabric(nodes, links))
    assert ids_between(topology, "h0/eth0", "h1/eth0") == {"h0/eth0--h1/eth0"}
    assert ids_between(topology, "h0/eth0", "h2/eth0") == set()
    assert TopologyIndex(topology).leaf_of("h0", "eth0") is None


@st.composite
def tangled_fabrics(draw: st.DrawFn) -> Topology:
    """Draw up to six switches cabled at random, one host with one NIC on each, any link up or down."""
    count = draw(st.integers(2, 6))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] != pair[1])
    cables = [link(f"h{n}/eth0", f"s{n}", up=draw(st.booleans())) for n in range(count)]
    trunks = [
        link(f"s{a}/{port}", f"s{b}/{port}", up=draw(st.booleans()))
        for port, (a, b) in enumerate(draw(st.lists(pairs, max_size=10)))
    ]
    nodes = [node for n in range(count) for node in (host(f"h{n}", "eth0"), switch(f"s{n}"))]
    return checked(fabric(nodes, cables + trunks))


def all_ways(topology: Topology, here: str, goal: str, seen: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Yield each way between two nodes that visits none twice, found by trying everything."""
    if here == goal:
        yield []
    for each in topology.links:
        ends = [split_end(each.a)[0], split_end(each.b)[0]]
        if each.up and here in ends:
            there = ends[1 - ends.index(here)]
            if there not in seen and (there == goal or there.startswith("s")):
                yield from ([each.id, *rest] for rest in all_ways(topology, there, goal, (*seen, here)))


@QUICK
@given(tangled_fabrics())
def test_links_between_are_those_of_all_shortest_ways_found_by_trying_everything(topology: Topology) -> None:
    ways = list(all_ways(topology, "h0", "h1"))
    shortest = min(map(len, ways), default=0)
    expected = {each for way in ways if len(way) == shortest for each in way}
    assert ids_between(topology, "h0/eth0", "h1/eth0") == expected
