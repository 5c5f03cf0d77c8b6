"""Several sources make one topology: each adds what it knows, and where two disagree everybody hears of it."""

import pytest

from importers.topology.formats import parse_native
from importers.topology.joining import JoinOptions, infer_planes, infer_rails, infer_tiers, join_surveys
from importers.topology.merging import match_cables, merge_nodes, rename_ports, settle_kinds
from importers.topology.survey import End, SeenCable, SeenNic, SeenNode, Source, Survey
from lockstep.errors import BadTopology
from lockstep.fabrics import dual_plane, leaf_spine, rail_optimised
from lockstep.topology import Gpu, Kind, Topology, dump_topology
from tests.importers.topology.build import (
    Given,
    changed,
    complaints,
    join,
    links_of,
    said,
    source,
    stored,
    stored_folder,
    tiers_of,
)

HOSTS: Given = ("nccl-xml", stored_folder("nccl"))


def ib(text: str | None = None) -> Given:
    return "ibnetdiscover", [source(text or stored("ibnetdiscover.txt"), "ib.txt")]


def slurm(text: str | None = None) -> Given:
    return "slurm", [source(text or stored("topology.conf"), "topology.conf")]


def test_fabric_and_hosts_from_two_tools_are_one_topology_in_any_order() -> None:
    topology = join(ib(), HOSTS).topology
    assert links_of(topology) == links_of(join(ib()).topology)
    assert [len(host.gpus) for host in topology.hosts] == [2, 2, 2, 2]
    assert topology.hosts[0].gpus[0].nics == ("mlx5_0",)
    turned = join(HOSTS, ib()).topology
    assert {node.id: node for node in turned.nodes} == {node.id: node for node in topology.nodes}
    assert set(turned.links) == set(topology.links)


def test_nic_with_another_name_is_known_by_its_guid_or_stays_apart() -> None:
    imported = join(ib(stored("ibnetdiscover.txt").replace("n1 mlx5_0", "n1 HCA-1")), HOSTS)
    assert "n1/mlx5_0--leaf1/1" in links_of(imported.topology)
    assert [nic.id for nic in imported.topology.hosts[0].nics] == ["mlx5_0"]
    assert said(imported, "NICs with the same GUID are one: n1/HCA-1 is mlx5_0")
    imported = join(("lldp", stored_folder("lldp")), HOSTS)
    assert {nic.id for nic in imported.topology.hosts[0].nics} == {"eth0", "mlx5_0"}
    assert said(imported, "no cable is known for 4 NICs: n1/mlx5_0")


def test_rate_of_a_nic_must_agree_with_its_cable_or_stands_for_it() -> None:
    hosts = changed(HOSTS[1], "n1", 'speed="200000"', 'speed="100000"')
    expected = "the rate in Gbit/s of NIC n1/mlx5_0 is 200 as ib.txt says and 100 as n1.xml says"
    assert expected in complaints(ib(), ("nccl-xml", hosts))
    rates = {link.id: link.gbps for link in join(slurm(), HOSTS).topology.links}
    cables = {f"n{n}/mlx5_0--leaf{1 + n // 3}": 200 for n in range(1, 5)}
    assert rates == {**cables, "leaf1--spine1": 400, "leaf2--spine1": 400}


def test_nics_of_a_host_go_to_the_one_leaf_that_is_told_or_in_order_to_as_many_and_nothing_is_guessed() -> None:
    two = HOSTS[1][0].data.replace(b'<net name="mlx5_0"', b'<net name="mlx5_9" speed="200000"/><net name="mlx5_0"')
    imported = join(slurm(), ("nccl-xml", [Source("n1.xml", "n1", two)]))
    assert {"n1/mlx5_0--leaf1", "n1/mlx5_9--leaf1"} < links_of(imported.topology)
    assert said(imported, "which NICs of n1 go to leaf1 is unknown: all 2 are taken to")
    switches = [SeenNode(leaf, "tree", "switch") for leaf in ("l1", "l2")]
    cables = [SeenCable(End("h"), End(leaf), "tree") for leaf in ("l1", "l2")]
    surveys = [Survey("tree", [SeenNode("h", "tree", "host"), *switches], cables)]
    imported = join_surveys([*surveys, host_with("e0", "e1")], JoinOptions())
    assert links_of(imported.topology) == {"h/e0--l1", "h/e1--l2"}
    assert said(imported, "which NIC of h has which cable is unknown: taken in order")
    with pytest.raises(BadTopology, match="h has 3 NICs without a cable and 2 cables without a NIC"):
        join_surveys([*surveys, host_with("e0", "e1", "e2")], JoinOptions())


def host_with(*nics: str) -> Survey:
    return Survey("xml", [SeenNode("h", "xml", "host", nics=tuple(map(SeenNic, nics)))])


def test_tree_adds_what_is_above_the_cables_and_may_not_contradict_them() -> None:
    assert links_of(join(slurm(), ib()).topology) == links_of(join(ib()).topology)
    hosts_only = [one for one in stored_folder("lldp") if one.node.startswith("n")]
    topology = join(slurm(), ("lldp", hosts_only)).topology
    assert {"n1/eth0--leaf1/swp1", "leaf1--spine1", "leaf2--spine1"} < links_of(topology)
    swapped = "SwitchName=leaf1 Nodes=n[2-3]\nSwitchName=leaf2 Nodes=n[1,4]\nSwitchName=spine1 Switches=leaf[1-2]"
    assert complaints(slurm(swapped), ib()) == [
        "n3 and leaf1 are joined as topology.conf says, but no cable goes from one to the other as ib.txt says",
        "n1 and leaf2 are joined as topology.conf says, but no cable goes from one to the other as ib.txt says",
    ]
    (complaint,) = complaints(slurm("SwitchName=rack1 Nodes=n1"), ib())
    assert complaint.startswith("n1 and rack1 are joined as topology.conf says, but no cable goes")


def test_names_are_free_and_can_be_held_unless_two_become_one_and_a_switch_without_hosts_has_no_tier() -> None:
    imported = join(slurm("SwitchName=rack/1 Nodes=gke--a"))
    assert links_of(imported.topology) == {"gke-a/nic0--rack.1"}
    assert said(imported, "'gke--a' is called gke-a")
    assert complaints(slurm("SwitchName=l Nodes=a--b,a-b")) == ["nodes 'a--b' and 'a-b' would both be called a-b"]
    cables = [SeenCable(End("h", "nic0"), End("l1", "p1"), "a"), SeenCable(End("l2", "p2"), End("h"), "a")]
    nodes = [SeenNode("h", "a", "host"), SeenNode("l1", "a", "switch"), SeenNode("l2", "a", "switch")]
    topology = join_surveys([Survey("a", nodes, cables)], JoinOptions()).topology
    assert links_of(topology) == {"h/nic0--l1/p1", "h/nic1--l2/p2"}
    lonely = Survey("x", [SeenNode("s1", "x", "switch"), SeenNode("s2", "x", "switch")])
    imported = join_surveys([lonely], JoinOptions())
    assert tiers_of(imported.topology) == {"s1": None, "s2": None}
    assert said(imported, "no host can be reached from s1, s2: the tier is unknown")


def test_two_descriptions_of_a_host_must_agree_and_gpus_make_it_one_though_it_forwards() -> None:
    other = Source("again.xml", "n1", HOSTS[1][0].data.replace(b'dev="1"', b'dev="7"'))
    (complaint,) = complaints(("nccl-xml", [*HOSTS[1], other]))
    assert complaint.startswith("sources disagree on the GPUs of n1: ")
    assert "as n1.xml says" in complaint
    assert "as again.xml says" in complaint
    bridging = [
        Source(one.name, one.node, one.data.replace(b'"Station"', b'"Router"')) for one in stored_folder("lldp")
    ]
    assert join(("lldp", bridging)).topology.hosts == ()
    imported = join(("lldp", bridging), HOSTS)
    assert [host.id for host in imported.topology.hosts] == ["n1", "n2", "n3", "n4"]
    assert said(imported, "n1 forwards like a switch, but is a host as n1.xml says: kept as that")


def test_routing_that_is_told_wins_two_need_a_word_and_our_own_topology_keeps_everything() -> None:
    assert join(ib(), options=JoinOptions(routing="adaptive")).topology.routing == "adaptive"
    assert not said(join(ib()), "ecmp is assumed")
    ours = ("lockstep", [source(dump_topology(leaf_spine(2, 1, 1, 1)), "ours.json")])
    assert complaints(ib(), ours) == ["routing is static and ecmp: --routing says which"]
    assert join(ib(), ours, options=JoinOptions(routing="ecmp")).topology.routing == "ecmp"
    found = complaints(slurm("\n".join(f"SwitchName=s{number} Nodes=n[" for number in range(500))))
    assert (len(found), found[-1]) == (101, "and 400 more"), "no more complaints than anybody reads"
    topology = dual_plane(hosts=2, leaves_per_plane=1, spines_per_plane=2)
    down = topology.links[0].model_copy(update={"up": False})
    topology = topology.model_copy(update={"links": (down, *topology.links[1:])})
    text = dump_topology(topology)
    assert join(("lockstep", [source(text), source(text, "again")])).topology == topology


def test_planes_need_a_host_on_both_rails_two_hosts_on_a_leaf_and_a_tier_is_the_distance_to_the_nearest_host() -> (
    None
):
    apart, joined = {"a": set[str](), "b": set[str]()}, {"a": {"s"}, "b": {"s"}, "s": {"a", "b"}}
    both = {("h", "e0"): "a", ("h", "e1"): "b"}
    assert infer_planes(both, apart) == {("h", "e0"): 0, ("h", "e1"): 1}
    assert infer_planes({("h", "e0"): "a", ("g", "e0"): "b"}, apart) == {}
    assert infer_planes(both, joined) == {}
    plugs = {(host, f"e{nic}"): f"leaf{nic}" for host in ("g", "h") for nic in range(11)}
    assert {nic: rail for (_, nic), rail in infer_rails(plugs).items()} == {f"e{nic}": nic for nic in range(11)}
    assert infer_rails({("h", "e0"): "a", ("h", "e1"): "b"}) == {}
    chain = {"l": {"s"}, "s": {"l", "c"}, "c": {"s", "d"}, "d": {"c"}}
    assert infer_tiers(["l"], chain) == {"l": "leaf", "s": "spine", "c": "core", "d": "core"}
    assert infer_tiers(["l", "s"], {"l": {"s"}, "s": {"l"}}) == {"l": "leaf", "s": "leaf"}
    assert infer_tiers(["l"], {"l": set(), "x": set()}) == {"l": "leaf"}


@pytest.mark.parametrize(
    ("topology", "planes", "rails"),
    [
        (dual_plane(hosts=2, leaves_per_plane=2, spines_per_plane=1), [0, 1], [None, None]),
        (rail_optimised(hosts=4, rails=3, spines=2, pods=2), [None] * 3, [0, 1, 2]),
        (leaf_spine(hosts=4, nics_per_host=2, leaves=2, spines=2), [None] * 2, [None] * 2),
    ],
    ids=["planes", "rails", "neither"],
)
def test_planes_and_rails_are_found_where_there_are_any(
    topology: Topology, planes: list[int | None], rails: list[int | None]
) -> None:
    survey = parse_native(Source("x", "x", dump_topology(topology).encode()))
    survey.nodes = [  # without planes, rails and tiers
        SeenNode(node.id, "x", node.kind, gpus=node.gpus, nics=tuple(type(nic)(nic.id) for nic in node.nics))
        for node in survey.nodes
    ]
    again = join_surveys([survey], JoinOptions()).topology
    for host in again.hosts:
        assert ([nic.plane for nic in host.nics], [nic.rail for nic in host.nics]) == (planes, rails)
    assert tiers_of(again) == tiers_of(topology)


GPU = Gpu(id="gpu0", index=0)


def told(source: str, *nics: SeenNic, gpus: tuple[Gpu, ...] = (), rack: str | None = None) -> SeenNode:
    return SeenNode("h", source, "host", rack=rack, gpus=gpus, nics=nics)


def test_facts_of_several_sources_add_up_and_those_that_differ_are_reported_one_by_one() -> None:
    node = merge_nodes([told("a", SeenNic("e0", gbps=100)), told("b", SeenNic("e0", rail=3), rack="r1")]).nodes["h"]
    assert (node.rack, node.nics) == ("r1", {"e0": SeenNic("e0", gbps=100, rail=3)})
    one, two = SeenNic("e0", gbps=100, plane=0, rail=1), SeenNic("e0", gbps=200, plane=1, rail=1)
    assert sorted(merge_nodes([told("a", one, rack="r1"), told("b", two, rack="r2")]).complaints) == [
        "sources disagree on the rack of h: 'r1' as a says and 'r2' as b says",
        "the plane of NIC h/e0 is 0 as a says and 1 as b says",
        "the rate in Gbit/s of NIC h/e0 is 100 as a says and 200 as b says",
    ]
    guesses: tuple[Kind, Kind] = ("host", "switch")
    merged = merge_nodes([SeenNode("h", kind, kind, is_sure=False) for kind in guesses])
    assert merged.complaints == ["node h is a host as host says and a switch as switch says"]


def test_nics_of_one_guid_get_the_name_that_the_gpus_use_unless_they_are_ports_of_one_card() -> None:
    xml = told("xml", SeenNic("mlx5_0", guid="aa"), gpus=(GPU,))
    merged = merge_nodes([told("ib", SeenNic("HCA-1", guid="aa")), xml])
    assert list(merged.nodes["h"].nics) == ["mlx5_0"]
    (renamed,) = rename_ports(merged, [cable("h/HCA-1", "leaf/1", "ib")])
    assert str(renamed.near) == "h/mlx5_0"
    merged = merge_nodes([told("ib", SeenNic("HCA-1", guid="aa"), SeenNic("HCA-1:2", guid="aa")), xml])
    assert merged.renamed == {}
    assert set(merged.nodes["h"].nics) == {"HCA-1", "HCA-1:2", "mlx5_0"}


def test_who_looks_out_is_a_host_unless_it_looks_at_one() -> None:
    merged = merge_nodes([SeenNode("a", "x"), SeenNode("b", "x")])
    settle_kinds(merged, [cable("a/1", "b/1")])
    assert {node.id: node.kind for node in merged.nodes.values()} == {"a": "host", "b": "switch"}
    assert len(merged.assumed) == 2
    merged = merge_nodes([SeenNode("a", "x"), told("x")])
    settle_kinds(merged, [cable("a/1", "h/1")])
    assert merged.nodes["a"].kind == "switch"


def cable(near: str, far: str, source: str = "x", up: bool = True) -> SeenCable:
    """Return what a source sees; ends are written a/p1, or a where the port is not known."""
    ends = [End(node, port or None) for node, _, port in (near.partition("/"), far.partition("/"))]
    return SeenCable(ends[0], ends[1], source, up=up)


@pytest.mark.parametrize(
    ("claims", "cables"),
    [
        ([cable("a/1", "b/2"), cable("b/2", "a/1")], [("a/1", "b/2")]),
        ([cable("a/1", "b/2"), cable("b/2", "a")], [("a/1", "b/2")]),
        ([cable("a/1", "b"), cable("b/2", "a")], [("a/1", "b/2")]),  # each knows its own port only
        ([cable("a", "b")] * 2, [("a", "b"), ("a", "b")]),  # lines of one source are parallel cables
        (
            [cable("a", "b"), cable("a", "b"), cable("b", "a", "y")],
            [("a", "b"), ("a", "b")],
        ),  # another tells the same
        ([cable("a/1", "b/2"), cable("a", "b", "tree")], [("a/1", "b/2")]),
    ],
)
def test_cable_that_several_tell_is_one(claims: list[SeenCable], cables: list[tuple[str, str]]) -> None:
    matched = match_cables(claims, frozenset())
    assert matched.complaints == []
    assert sorted((str(one.a), str(one.b)) for one in matched.cables) == cables


def test_claims_that_contradict_each_other_are_reported() -> None:
    twice = "a/1 is cabled to {} as a/1 says in {} and to {} as a/1 says in {}, but takes one cable"
    trees = [cable("a/1", "b/1"), cable("c/1", "d/1"), cable("a", "c", "tree")]
    for claims, complaint in (
        ([cable("a/1", "b", "x"), cable("a/1", "c", "y")], twice.format("b", "x", "c", "y")),
        ([cable("a/1", "b/2", "x"), cable("a/1", "c", "y")], twice.format("c", "y", "b/2", "x")),
        (trees, "a and c are joined as tree says, but no cable goes from one to the other as x says"),
    ):
        assert match_cables(claims, frozenset()).complaints == [complaint]


def test_ends_are_paired_in_order_a_cabled_host_gets_no_more_and_one_word_takes_a_cable_down() -> None:
    nobody = frozenset[str]()
    ends = [cable("a/1", "b"), cable("a/2", "b"), cable("b/7", "a"), cable("b/8", "a")]
    matched = match_cables(ends, nobody)
    assert [(str(one.a), str(one.b)) for one in matched.cables] == [("a/1", "b/7"), ("a/2", "b/8")]
    assert matched.assumed == ["which of 2 ports of a and b belong together is unknown: in order"]
    claims = (cable("h/1", "b/1"), cable("h", "rack", "tree"))
    assert len(match_cables(claims, nobody).cables) == 2
    assert len(match_cables(claims, frozenset({"h"})).complaints) == 1
    (one,) = match_cables([cable("a/1", "b/1"), cable("b/1", "a/1", up=False)], nobody).cables
    assert not one.up
