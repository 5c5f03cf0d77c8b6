"""Slow pairs are traced to the parts they have in common; what cannot be told apart is named together."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.delay_matrix.matrix import Pair
from analyzer.evidence.observations import NO_EVIDENCE, Evidence, Observation, gather_evidence
from analyzer.localize.faults import find_faults
from analyzer.windows.window import Finding
from lockstep.fabrics import leaf_spine
from lockstep.topology import TopologyIndex
from tests.analyzer.build import HOSTS, NICS, Names, end_of, fabric, host_of, mesh, ring
from tests.analyzer.localize.build import (
    Slowness,
    at,
    between,
    context,
    find,
    matrix,
    named,
    of_hosts,
    pairs,
    received_by,
    routed,
    sent_by,
    times,
    worst,
)
from tests.tiers import long_except

RING, MESH, TWO_NICS = pairs(ring()), pairs(mesh()), pairs(mesh(nics=2))


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, named(found)
    return found[0]


def test_healthy_or_wholly_slow_fabric_and_odd_figures_blame_nobody_wrongly() -> None:
    assert find(RING, times(1.0, lambda pair: False), fabric()) == []
    of = pairs(ring(hosts=100, nics=1))
    assert find(of, times(4.0, lambda pair: pair.src.host != "h0")) == [], "nobody stands out"
    told = matrix(MESH, sent_by("h3/eth0"))
    told.ratio[:2] = np.nan, np.inf
    assert only(find_faults(told, NO_EVIDENCE, context())).component == "nic:h3/eth0"
    missed = ("h3/eth0", "h6/eth0")
    slow = at("h3/eth0")
    found = only(find(MESH, lambda pair: 1.0 if (str(pair.src), str(pair.dst)) == missed else slow(pair)))
    assert (found.component, found.side) == ("nic:h3/eth0", None)


def test_pair_that_is_slow_both_ways_is_one_fault() -> None:
    ends = ("h2/eth0", "h5/eth0")
    found = only(find(MESH, worst(between(*ends), between(*ends[::-1]))))
    assert (found.component, found.side) == ("link:h2/eth0--h5/eth0", None)
    assert "both ways" in found.reason


def spread_over_spines(hosts: int = HOSTS) -> list[Pair]:
    """Return every host sending to every other through its one NIC, by one of two spines in turn."""
    found = []
    for src, dst in mesh(hosts):
        a, b = int(host_of(src)[1:]), int(host_of(dst)[1:])
        spine, near, far = f"spine{(a + b) % 2}", f"leaf{a // 2}", f"leaf{b // 2}"
        inside = [] if near == far else [f"{near}--{spine}", f"{far}--{spine}"]
        found.append(routed(src, dst, f"{src}--{near}", *inside, f"{dst}--{far}"))
    return found


ROUTED = spread_over_spines()
OF_TWO_GPUS = [
    Pair(pair.src, pair.dst, gpu, gpu) for pair in TWO_NICS for gpu in (0, 1) if pair.src.nic == pair.dst.nic
]
UNKNOWN_NICS = pairs((host_of(src), host_of(dst)) for src, dst in mesh())
UNKNOWN_NICS_OF_A_RING = pairs((host_of(src), host_of(dst)) for src, dst in ring(nics=1))
A_LEAF_EACH = TopologyIndex(leaf_spine(hosts=HOSTS, nics_per_host=NICS, leaves=HOSTS, spines=2))


def crosses(link: str, position: int | None = None, factor: float = 4.0) -> Slowness:
    """Return a slowness of pairs whose path has a link, somewhere or at a position of a path between leaves."""

    def is_slow(pair: Pair) -> bool:
        path = pair.path or ()
        if position is None:
            return any(link in each for each in path)
        return len(path) > 2 and path[position] == link

    return times(factor, is_slow)


FUSED = pairs((f"{host_of(src)}/eth0,eth1", f"{host_of(dst)}/eth0,eth1") for src, dst in mesh())
OF_FOUR_GPUS = [Pair(pair.src, pair.dst, gpu, gpu) for pair in FUSED for gpu in range(4)]


OF_TWO_CHANNELS = [
    Pair(pair.src, pair.dst, 1 - gpu, gpu)
    for pair in pairs((f"{host_of(src)}/eth0,eth1", f"{host_of(dst)}/eth0,eth1") for src, dst in ring(nics=1))
    for gpu in (0, 1)
]


def through_port(host: str) -> Callable[[Pair], bool]:
    return lambda pair: (host, 1) == (pair.src.host, pair.src_gpu) or (host, 0) == (pair.dst.host, pair.dst_gpu)


def at_gpus(host: str, *gpus: int) -> Slowness:
    return times(4.0, lambda pair: any((host, gpu) in _gpus_of(pair) for gpu in gpus))


def _gpus_of(pair: Pair) -> set[tuple[str, int | None]]:
    return {(pair.src.host, pair.src_gpu), (pair.dst.host, pair.dst_gpu)}


NAMED: dict[str, tuple[list[Pair], Slowness, TopologyIndex | None, tuple[str, str | None], tuple[str, ...], bool]] = {
    "NIC of a ring": (RING, at("h3/eth0"), None, ("nic:h3/eth0", None), (), True),
    "NIC of a mesh": (MESH, at("h3/eth0"), None, ("nic:h3/eth0", None), (), True),
    "one NIC of two": (TWO_NICS, at("h3/eth0"), None, ("nic:h3/eth0", None), (), True),
    "NIC sending": (MESH, sent_by("h3/eth0"), None, ("nic:h3/eth0", "tx"), (), True),
    "NIC receiving": (MESH, received_by("h3/eth0"), None, ("nic:h3/eth0", "rx"), (), True),
    "host": (RING, of_hosts("h3"), fabric(), ("host:h3", None), (), True),
    "host whose NIC is unknown": (
        *(UNKNOWN_NICS, times(4.0, lambda pair: pair.src.host == "h3"), fabric()),
        *(("host:h3", "tx"), (), True),
    ),
    "leaf": (RING, of_hosts("h2", "h3"), fabric(), ("switch:leaf1", None), (), False),
    "host alone on its leaf": (RING, of_hosts("h3"), A_LEAF_EACH, ("host:h3", None), ("switch:leaf3",), False),
    "link sending": (ROUTED, crosses("leaf1--spine1", 1), fabric(), ("link:leaf1--spine1", "tx"), (), False),
    "link receiving": (ROUTED, crosses("leaf1--spine1", 2), fabric(), ("link:leaf1--spine1", "rx"), (), False),
    "link": (ROUTED, crosses("leaf1--spine1", factor=9.0), fabric(), ("link:leaf1--spine1", None), (), False),
    "spine": (ROUTED, crosses("spine0", factor=3.0), fabric(), ("switch:spine0", None), (), False),
    "PCIe of a GPU whose NIC serves another well": (
        *(OF_TWO_GPUS, at_gpus("h2", 1), fabric()),
        *(("pcie:h2/1", None), (), True),
    ),
    "one of two ports that nobody tells apart": (
        *(OF_FOUR_GPUS, at_gpus("h2", 2, 3), None),
        *(("nic:h2/eth0,eth1", None), (), True),
    ),
    "one of two ports of a NIC that other GPUs send to than receive from": (
        *(OF_TWO_CHANNELS, times(4.0, through_port("h2")), None),
        *(("nic:h2/eth0,eth1", None), (), True),
    ),
    "PCIe of a GPU whose port serves another well": (
        *(OF_FOUR_GPUS, at_gpus("h2", 2), None),
        *(("pcie:h2/2", None), (), True),
    ),
}


@pytest.mark.parametrize("case", NAMED)
def test_part_that_all_slow_pairs_have_in_common_is_named(case: str) -> None:
    of, slowness, topology, part, ambiguous_with, may_isolate = NAMED[case]
    found = only(find(of, slowness, topology))
    assert ((found.component, found.side), found.ambiguous_with) == (part, ambiguous_with)
    assert found.may_isolate == may_isolate, "draining a node repairs no switch"
    assert found.likelihood > (0.7 if ambiguous_with else 0.99)
    assert "NIC of" not in case or "4.0 times the wire time per byte, both ways," in found.reason


def test_host_that_sends_slowly_in_a_ring_cannot_be_told_from_the_one_that_receives() -> None:
    found = only(find(RING, times(4.0, lambda pair: pair.src.host == "h3"), fabric()))
    assert (found.component, found.side, found.ambiguous_with) == ("host:h3", "tx", ("host:h4",))
    assert 0.35 < found.likelihood < 0.5, "one of two, and some doubt"


def test_connection_between_two_hosts_is_named_where_nobody_knows_their_nics() -> None:
    """What one of two GPUs sends is slow, in a ring over four spines: either host, or one of eight links."""
    lone = only(find(UNKNOWN_NICS_OF_A_RING, between("h3", "h4")))
    assert (lone.component, lone.side) == ("link:h3--h4", "tx"), "whatever is known of GPUs"
    hosts = [(f"h{host}", f"h{(host + 1) % 8}") for host in range(8)]
    of = [Pair(pair.src, pair.dst, gpu, gpu) for pair in pairs(hosts) for gpu in (0, 1)]
    wide = TopologyIndex(leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=4))
    slow = times(2.2, lambda pair: (pair.src.host, pair.src_gpu) == ("h3", 0))
    (finding,) = find(of, slow, wide)
    assert (finding.component, finding.side) == ("link:h3--h4", "tx")
    assert {"host:h3", "host:h4"} <= set(finding.ambiguous_with)
    assert finding.likelihood > 0.5


def test_what_a_slow_leaf_slows_most_is_no_fault_of_its_own() -> None:
    leaf = {"h2", "h3"}

    def slowness(pair: Pair) -> float:
        return (1.0, 2.0, 8.0)[len(leaf & {pair.src.host, pair.dst.host})]

    wide = TopologyIndex(leaf_spine(hosts=8, nics_per_host=NICS, leaves=4, spines=2))
    found = find(pairs(ring(8)), slowness, wide)
    assert named(found) == [("switch:leaf1", None)]


def ring_of(*places: tuple[str, str]) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    return list(zip(places, (*places[1:], places[0]), strict=True))


def test_pairs_that_shared_a_link_lose_less_by_a_slow_leaf_and_it_is_one_fault() -> None:
    """Four hosts, two to a leaf, two NICs each: between leaves two pairs share an uplink, and took twice as long."""
    of = [
        routed(f"{src}/eth{nic}", f"{dst}/eth{nic}", *(f"{src}/eth{nic}--{near}", *between, f"{dst}/eth{nic}--{far}"))
        for (src, near), (dst, far) in ring_of(("h0", "leaf0"), ("h1", "leaf0"), ("h2", "leaf1"), ("h3", "leaf1"))
        for between in [[f"{near}--spine1", f"{far}--spine1"] if near != far else []]
        for nic in (0, 1)
    ]
    leaf = {"h0", "h1"}

    def slowness(pair: Pair) -> float:
        return (1.0, 1.6, 3.2)[len(leaf & {pair.src.host, pair.dst.host})]

    def crowd(pair: Pair) -> float:
        return 2.0 if len(leaf & {pair.src.host, pair.dst.host}) == 1 else 1.0

    topology = TopologyIndex(leaf_spine(hosts=4, nics_per_host=2, leaves=2, spines=2))
    told = matrix(of, slowness, shared=crowd)
    assert only(find_faults(told, NO_EVIDENCE, context(topology))).component == "switch:leaf0"
    alike = matrix(of, slowness)
    assert len(find_faults(alike, NO_EVIDENCE, context(topology))) == 2


def test_cable_is_named_beside_its_nic_and_first_where_signs_speak_for_it() -> None:
    found = only(find(RING, at("h3/eth1"), fabric()))
    assert (found.component, found.ambiguous_with) == ("nic:h3/eth1", ("link:h3/eth1--leaf1",))
    assert found.may_isolate, "cable and NIC are in the same host"
    observation = Observation("link:h3/eth1--leaf1", 2.0, {"what": "leaf1 received broken frames"}, "tx")
    found = only(find(MESH_OF_FOUR, sent_by("h3/eth1"), fabric(), gather_evidence([observation])))
    assert (found.component, found.side, found.ambiguous_with) == ("link:h3/eth1--leaf1", "tx", ("nic:h3/eth1",))
    assert "leaf1 received broken frames" in found.reason


MESH_OF_FOUR = pairs(mesh(nics=4))


def test_lone_slow_wire_stands_for_both_its_nics_in_a_ring_and_for_itself_in_a_mesh() -> None:
    found = only(find(RING, sent_by("h3/eth1"), fabric()))
    assert (found.component, found.side) == ("link:h3/eth1--h4/eth1", "tx")
    assert set(found.ambiguous_with) == {"nic:h3/eth1", "nic:h4/eth1", "link:h3/eth1--leaf1", "link:h4/eth1--leaf2"}
    assert found.likelihood > 0.9, "it is on that pair somewhere"
    assert not found.may_isolate, "one of two hosts would be drained for nothing"
    found = only(find(MESH, between("h3/eth0", "h4/eth0"), fabric()))
    assert (found.component, found.side, found.ambiguous_with) == ("link:h3/eth0--h4/eth0", "tx", ())
    cleared = {part.component: part.because for part in found.ruled_out}
    assert cleared["nic:h3/eth0"] == "6 of the 7 connections through it are normal"


@pytest.mark.parametrize(
    ("observation", "component", "side"),
    [
        (Observation("nic:h4/eth1", 2.0, {"what": "leaf2 was told to pause"}, "rx"), "nic:h4/eth1", "rx"),
        (Observation("nic:h3/eth1", 1.8, {"what": "it dropped packets"}, "tx"), "nic:h3/eth1", "tx"),
    ],
)
def test_sign_decides_between_the_two_nics_of_a_wire(observation: Observation, component: str, side: str) -> None:
    found = only(find(RING, sent_by("h3/eth1"), fabric(), gather_evidence([observation])))
    assert (found.component, found.side) == (component, side)
    assert observation.facts["what"] in found.reason


def test_signs_alone_or_weak_ones_or_those_of_other_parts_decide_nothing() -> None:
    found = only(find(RING, sent_by("h3/eth1"), fabric(), gather_evidence([Observation("nic:h4/eth1", 0.7, {})])))
    assert found.component == "link:h3/eth1--h4/eth1"
    loud = gather_evidence([Observation("nic:h3/eth1", 3.0, {}), Observation("switch:leaf1", 3.0, {})])
    assert find(RING, times(1.0, lambda pair: False), fabric(), loud) == []
    loud = gather_evidence([Observation("nic:h5/eth0", 3.0, {}), Observation("switch:leaf2", 3.0, {})])
    assert only(find(MESH, sent_by("h3/eth0"), fabric(), loud)).component == "nic:h3/eth0"


def test_nic_of_which_a_third_of_the_connections_are_normal_is_hardly_named_or_not_at_all() -> None:
    """In the middle of a tree what shares its link with more others takes a third longer, beside what does not."""
    sent = [("h1", 0, "h2", 1), ("h1", 0, "h3", 0), ("h1", 1, "h3", 1), ("h1", 1, "h4", 0), ("h1", 0, "h0", 0)]
    sent += [("h1", 1, "h0", 1), ("h2", 0, "h0", 1), ("h2", 0, "h5", 0), ("h2", 1, "h5", 1), ("h2", 0, "h4", 1)]
    sent += [(dst, near, src, far) for src, far, dst, near in sent]
    tree = [Pair(end_of(f"{src}/eth0"), end_of(f"{dst}/eth0"), near, far) for src, near, dst, far in sent]
    crowded = times(1.32, lambda pair: "h1" in (hosts := {pair.src.host, pair.dst.host}) and "h0" not in hosts)
    assert all(found.likelihood < 0.1 for found in find(tree, crowded))
    whole = only(find(tree, times(1.32, lambda pair: "h1" in (pair.src.host, pair.dst.host))))
    assert (whole.component, whole.likelihood > 0.95) == ("nic:h1/eth0", True)


def test_wire_that_shows_no_delay_at_all_hardly_clears_its_nic() -> None:
    """On sockets small messages vanish in the kernel's buffer, whatever the NIC does."""
    told = matrix(pairs([("h3/eth0", "h4/eth0"), ("h3/eth0", "h5/eth0")]), between("h3/eth0", "h4/eth0"))
    seen = only(find_faults(told, NO_EVIDENCE, context()))
    told.ns_per_byte[1] = 0.0
    unseen = only(find_faults(told, NO_EVIDENCE, context()))
    assert "nic:h3/eth0" not in seen.ambiguous_with
    assert "nic:h3/eth0" in unseen.ambiguous_with


def test_wires_of_which_nothing_is_known_clear_no_nic() -> None:
    """A NIC is slow both ways in a ring; what it exchanges with all others in small parts, buffers take."""
    small = [(src, f"h{host}/eth0") for src in ("h3/eth0", "h2/eth1") for host in (0, 1, 5, 6, 7)]
    told = matrix(
        pairs([("h2/eth1", "h3/eth0"), ("h3/eth0", "h4/eth1"), *small, *((dst, src) for src, dst in small)]),
        worst(between("h2/eth1", "h3/eth0"), between("h3/eth0", "h4/eth1")),
    )
    assert {name for name, _ in named(find_faults(told, NO_EVIDENCE, context()))} == {
        "link:h2/eth1--h3/eth0",
        "link:h3/eth0--h4/eth1",
    }
    told.hidden[2:] = True
    found = only(find_faults(told, NO_EVIDENCE, context()))
    assert (found.component, found.side, found.likelihood > 0.9) == ("nic:h3/eth0", None, True)
    assert "on 2 connections, while 0 others that carry the same are normal" in found.reason
    assert not found.ruled_out


@pytest.mark.parametrize("of", [RING, MESH], ids=["ring", "mesh"])
def test_two_slow_nics_are_both_named_and_neither_makes_the_other_doubtful(of: list[Pair]) -> None:
    both = find(of, at("h1/eth0", "h5/eth0"))
    assert set(named(both)) == {("nic:h1/eth0", None), ("nic:h5/eth0", None)}
    assert all(found.likelihood > 0.99 for found in both)


def test_smaller_fault_is_named_after_the_one_that_explains_most() -> None:
    mild = times(1.6, lambda pair: str(pair.dst) == "h5/eth1")
    both = find(TWO_NICS, worst(at("h3/eth0"), mild), fabric())
    assert named(both) == [("nic:h3/eth0", None), ("nic:h5/eth1", "rx")]
    found = find(MESH, worst(at("h1/eth0"), between("h5/eth0", "h6/eth0")))
    assert [finding.component for finding in found] == ["nic:h1/eth0", "link:h5/eth0--h6/eth0"]
    uneven = worst(
        times(10.0, lambda pair: str(pair.src) == "h3/eth0"), times(1.5, lambda pair: str(pair.src) == "h3/eth1")
    )
    assert set(named(find(TWO_NICS, uneven, fabric()))) == {("nic:h3/eth0", "tx"), ("nic:h3/eth1", "tx")}


@pytest.mark.parametrize("slow", [("h3/eth1", "h5/eth1"), ("h1/eth1", "h7/eth1")])
def test_nic_between_two_slow_ones_is_not_blamed(slow: Names) -> None:
    """All that it carries is slow, but blaming it would take three faults; its name may come first or not."""
    found = find(RING, at(*slow))
    assert {finding.component for finding in found} == {f"nic:{end}" for end in slow}
    assert all(finding.ambiguous_with == () and finding.likelihood > 0.98 for finding in found)


def test_neighbours_in_a_ring_make_each_other_doubtful() -> None:
    found = find(RING, at("h3/eth1", "h4/eth1"))
    every = {name for finding in found for name in (finding.component, *finding.ambiguous_with)}
    assert {"nic:h3/eth1", "nic:h4/eth1"} <= every
    assert min(finding.likelihood for finding in found) < 0.9
    found = find(pairs(ring(hosts=4)), at("h1/eth2", "h3/eth2"))
    every = {name for finding in found for name in (finding.component, *finding.ambiguous_with)}
    assert every == {f"nic:h{host}/eth2" for host in range(4)}
    assert all(finding.likelihood < 0.6 for finding in found)


def test_link_is_suspected_where_paths_are_not_known() -> None:
    """Half of what leaves a leaf is slow, whoever sends it to whomever: one of two links that ECMP chooses from."""
    plain = pairs((str(pair.src), str(pair.dst)) for pair in ROUTED)
    slow = {str(pair): "leaf1--spine1" in (pair.path or ())[1:2] for pair in ROUTED}
    found = find(plain, times(4.0, lambda pair: slow[str(pair)]), fabric())
    every = {name for finding in found for name in (finding.component, *finding.ambiguous_with)}
    assert {"link:leaf1--spine0", "link:leaf1--spine1"} <= every


def test_spine_that_ecmp_may_choose_is_blamed_for_its_share_of_the_pairs_and_not_for_a_few() -> None:
    """Paths that collide by chance make some pairs slow, each of which may have gone by either of two spines."""
    plain = pairs((str(pair.src), str(pair.dst)) for pair in ROUTED)
    crossing = [str(pair) for pair in ROUTED if len(pair.path or ()) > 2]
    few = set(np.random.default_rng(3).permutation(crossing)[: len(crossing) // 8].tolist())
    assert not [
        name for name, _ in named(find(plain, times(3.0, lambda pair: str(pair) in few), fabric())) if "spine" in name
    ]
    half = {str(pair): any("spine1" in link for link in pair.path or ()) for pair in ROUTED}
    found = only(find(plain, times(3.0, lambda pair: half[str(pair)]), fabric()))
    assert {found.component, *found.ambiguous_with} == {"switch:spine0", "switch:spine1"}
    assert found.likelihood > 0.3


def test_lone_pair_that_may_always_have_met_other_flows_is_no_fault_unless_it_is_far_slower() -> None:
    """Between leaves ECMP draws the way, and two flows on one link take twice as long for as long as they live."""
    across, inside = ("h1/eth0", "h2/eth0"), ("h0/eth0", "h1/eth0")

    def found(pair: tuple[str, str], times_as_long: float, *, is_known: bool = False) -> list[tuple[str, str | None]]:
        told = matrix(RING, times(times_as_long, lambda each: (str(each.src), str(each.dst)) == pair))
        told.has_past[:] = is_known
        return named(find_faults(told, NO_EVIDENCE, context(fabric())))

    assert found(across, 1.5) == found(across, 2.0) == []
    assert found(across, 6.0) == found(across, 1.5, is_known=True) == [("link:h1/eth0--h2/eth0", "tx")]
    assert found(inside, 1.5) == [("link:h0/eth0--h1/eth0", "tx")]
    told = matrix(MESH, times(1.8, lambda pair: str(pair.src) == "h3/eth0"))
    told.has_past[:] = False
    assert named(find_faults(told, NO_EVIDENCE, context(fabric()))) == [("nic:h3/eth0", "tx")], "not all of them do"


def test_pair_is_no_fault_where_as_slow_ones_are_common_that_no_fault_explains() -> None:
    """One inside of a leaf among six across leaves that each may have met others: what slowed those slowed it too."""
    across = {(f"h{host}/eth{nic}", f"h{host + 1}/eth{nic}") for nic in (1, 2) for host in range(1, HOSTS - 1, 2)}
    inside = ("h0/eth0", "h1/eth0")

    def found(slow: set[tuple[str, str]]) -> list[tuple[str, str | None]]:
        told = matrix(RING, times(2.5, lambda pair: (str(pair.src), str(pair.dst)) in slow))
        told.has_past[:] = False
        return named(find_faults(told, NO_EVIDENCE, context(fabric())))

    assert found({inside}) == [("link:h0/eth0--h1/eth0", "tx")]
    assert found({inside, *across}) == []


def test_pairs_between_two_leaves_that_may_have_met_each_other_blame_none_of_their_hosts() -> None:
    """Four flows over as many spines, two by two on a link: each takes twice as long, and a host has no others."""
    four = TopologyIndex(leaf_spine(hosts=HOSTS, nics_per_host=4, leaves=HOSTS // 2, spines=4))
    told = matrix(pairs(ring(nics=4)), times(1.95, lambda pair: (pair.src.host, pair.dst.host) == ("h1", "h2")))
    blamed = named(find_faults(told, NO_EVIDENCE, context(four)))
    told.has_past[:] = False
    assert (blamed, find_faults(told, NO_EVIDENCE, context(four))) == ([("host:h1", "tx")], [])


def test_pairs_of_a_starved_host_have_an_excuse_and_a_fault_elsewhere_is_named() -> None:
    assert find_faults(matrix(RING, of_hosts("h3"), starved=["h3"]), NO_EVIDENCE, context(fabric())) == []
    told = matrix(TWO_NICS, worst(of_hosts("h3"), sent_by("h6/eth1")), starved=["h3"])
    assert named(find_faults(told, NO_EVIDENCE, context(fabric()))) == [("nic:h6/eth1", "tx")]


def test_starved_host_none_of_whose_pairs_is_slow_is_no_fault() -> None:
    """Its proxy threads came late to what nobody waited for: a machine with much else to do, or a few chunks."""
    calm = matrix(RING, times(1.0, lambda pair: False), starved=["h3"])
    assert find_faults(calm, NO_EVIDENCE, context(fabric())) == []
    assert (calm.slow_hosts, matrix(RING, sent_by("h3/eth1")).slow_hosts) == (frozenset(), frozenset({"h3", "h4"}))


FAULTS: dict[str, Slowness] = {
    "nic": at("h3/eth1"),
    "nic sending": sent_by("h3/eth1"),
    "host": of_hosts("h3"),
    "leaf": of_hosts("h2", "h3"),
    "two NICs": at("h1/eth0", "h5/eth1"),
    "NIC and host": worst(at("h1/eth0"), of_hosts("h6")),
}
faults = pytest.mark.parametrize("fault", long_except(["nic sending", "leaf", "NIC and host"], FAULTS))
shapes = pytest.mark.parametrize("of", [RING, TWO_NICS], ids=["ring", "mesh"])


@faults
@shapes
def test_what_is_named_is_never_ruled_out_and_every_likelihood_is_a_share(of: list[Pair], fault: str) -> None:
    for finding in find(of, FAULTS[fault], fabric()):
        said = [finding.component, *finding.ambiguous_with]
        cleared = [part.component for part in finding.ruled_out]
        assert len({*said, *cleared}) == len(said) + len(cleared)
        assert 0 < finding.likelihood <= 1


@faults
@pytest.mark.parametrize("shape", [ring, mesh], ids=["ring", "mesh"])
def test_more_healthy_hosts_change_no_verdict(fault: str, shape: Callable[[int, int], list[Names]]) -> None:
    few, many = (
        find(pairs(shape(hosts, 2)), FAULTS[fault], TopologyIndex(leaf_spine(hosts, 2, hosts // 2, 2)))
        for hosts in (HOSTS, HOSTS + 8)
    )
    assert {(each.component, each.side, each.ambiguous_with) for each in many} == {
        (each.component, each.side, each.ambiguous_with) for each in few
    }


@faults
def test_how_slow_it_is_changes_no_name(fault: str) -> None:
    slowness = FAULTS[fault]
    milder = find(TWO_NICS, lambda pair: 1.5 if slowness(pair) > 1 else 1.0, fabric())
    assert set(named(milder)) == set(named(find(TWO_NICS, slowness, fabric())))


def dead(*nics: str) -> Evidence:
    return gather_evidence(
        Observation(f"nic:{nic}", 3.0, {"what": f"{nic} has no carrier"}, is_down=True) for nic in nics
    )


def test_dead_port_is_named_instead_of_the_one_that_carries_its_traffic() -> None:
    (found,) = find(RING, at("h3/eth2"), fabric(), dead("h3/eth1"))
    assert found.component == "nic:h3/eth1"
    assert "nic:h3/eth2" in found.ambiguous_with
    assert "nic:h3/eth2, which carries its traffic as well" in found.reason
    assert found.may_isolate


def test_dead_port_elsewhere_or_beside_another_or_that_harms_nobody_is_no_excuse() -> None:
    (found,) = find(RING, at("h3/eth2"), fabric(), dead("h4/eth1"))
    assert found.component == "nic:h3/eth2"
    (found,) = find(RING, at("h3/eth2"), fabric(), dead("h3/eth0", "h3/eth1"))
    assert found.component == "nic:h3/eth2"
    assert find(pairs(mesh()), at("nobody"), fabric(), dead("h3/eth1")) == []


@settings(max_examples=12)
@given(order=st.permutations(range(len(RING))), slow=st.sets(st.sampled_from(range(len(RING))), max_size=6))
def test_order_of_wires_changes_nothing(order: list[int], slow: set[int]) -> None:
    names = {str(RING[number]) for number in slow}
    slowness = times(4.0, lambda pair: str(pair) in names)
    found, again = (find(of, slowness, fabric()) for of in (RING, [RING[number] for number in order]))
    assert sorted(named(again), key=str) == sorted(named(found), key=str)
