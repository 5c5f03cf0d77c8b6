"""Slow pairs are traced to the part they have in common; what cannot be told apart is named together."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.blame import Blame, find_blame
from lockstep.fabrics import leaf_spine
from lockstep.topology import TopologyIndex
from tests.analyzer.build import HOSTS, NICS, IsSlow, Names, fabric, host_of, matrix, mesh, ring

QUICK = settings(max_examples=40, deadline=None)  # no deadline: machines that run tests differ


def blame(
    pairs: Sequence[Names], is_slow: IsSlow, topology: TopologyIndex | None = None, *, count: int = 1
) -> list[Blame]:
    found = find_blame(matrix(pairs, is_slow), topology)
    assert len(found) == count, [(part.component, part.side) for part in found]
    return found


def touches(*ends: str) -> IsSlow:
    return lambda src, dst: src in ends or dst in ends


def of_hosts(*hosts: str) -> IsSlow:
    return lambda src, dst: host_of(src) in hosts or host_of(dst) in hosts


def explained(found: Blame, pairs: Sequence[Names]) -> set[Names]:
    return {pair for pair, member in zip(pairs, found.members, strict=True) if member}


def carried_by(component: str, pairs: Sequence[Names]) -> list[Names]:
    """Return the pairs through a component, found from its name alone."""
    kind, _, name = component.partition(":")
    if kind == "switch":
        leaf = int(name.removeprefix("leaf"))
        return [pair for pair in pairs if any(int(host_of(end)[1:]) // 2 == leaf for end in pair)]
    return [pair for pair in pairs if any(name in (end, host_of(end)) for end in pair)]


def summary(found: Blame, pairs: Sequence[Names]) -> object:
    cleared = {(part.component, part.because) for part in found.ruled_out}
    rivals = set(found.ambiguous_with)
    likelihood = pytest.approx(found.likelihood)
    return found.component, found.side, likelihood, rivals, cleared, explained(found, pairs)


def test_nothing_slow_means_nobody_is_blamed() -> None:
    assert find_blame(matrix(ring(), lambda src, dst: False), fabric()) == []


@pytest.mark.parametrize("pairs", [ring(), mesh(), mesh(nics=2)], ids=["ring", "mesh", "mesh of two NICs"])
def test_nic_that_is_slow_both_ways_is_named(pairs: list[Names]) -> None:
    (found,) = blame(pairs, touches("h3/eth0"))
    assert (found.component, found.side) == ("nic:h3/eth0", None)
    assert found.ambiguous_with == ()
    assert found.likelihood > 0.99
    assert explained(found, pairs) == {pair for pair in pairs if "h3/eth0" in pair}


def test_nic_that_only_sends_slowly_is_named_with_its_side() -> None:
    (found,) = blame(mesh(), lambda src, dst: src == "h3/eth0")
    assert (found.component, found.side, found.ambiguous_with) == ("nic:h3/eth0", "tx", ())
    assert found.likelihood > 0.99


def test_nic_that_only_receives_slowly_is_named_with_its_side() -> None:
    (found,) = blame(mesh(), lambda src, dst: dst == "h3/eth0")
    assert (found.component, found.side, found.ambiguous_with) == ("nic:h3/eth0", "rx", ())
    assert found.likelihood > 0.99


def test_lone_slow_pair_of_a_ring_may_be_the_wire_or_either_nic() -> None:
    (found,) = blame(ring(), lambda src, dst: src == "h3/eth1", fabric())
    assert (found.component, found.side) == ("link:h3/eth1--h4/eth1", "tx")
    assert found.ambiguous_with == (
        "nic:h3/eth1",
        "nic:h4/eth1",
        "link:h3/eth1--leaf1",
        "link:h4/eth1--leaf2",
    )
    assert found.likelihood == pytest.approx(1 / 3, rel=0.05), "three that are equally likely"


def test_lone_slow_pair_of_a_mesh_is_the_wire_and_not_its_nics() -> None:
    (found,) = blame(mesh(), lambda *pair: pair == ("h3/eth0", "h4/eth0"), fabric())
    assert (found.component, found.side, found.ambiguous_with) == ("link:h3/eth0--h4/eth0", "tx", ())
    assert found.likelihood > 0.99
    assert {part.component for part in found.ruled_out} >= {"nic:h3/eth0", "nic:h4/eth0"}


def test_host_is_named_when_all_its_nics_are_slow() -> None:
    (found,) = blame(ring(), of_hosts("h3"), fabric())
    assert (found.component, found.side, found.ambiguous_with) == ("host:h3", None, ())
    assert found.likelihood > 0.99
    assert "nic:h3/eth0" not in {part.component for part in found.ruled_out}, "all that it carries is slow"


@pytest.mark.parametrize("side", ["tx", "rx"])
def test_host_is_named_with_its_side_when_all_its_nics_are_slow_one_way(side: str) -> None:
    end = 0 if side == "tx" else 1
    (found,) = blame(mesh(nics=2), lambda *pair: host_of(pair[end]) == "h3", fabric())
    assert (found.component, found.side, found.ambiguous_with) == ("host:h3", side, ())


def test_host_that_sends_slowly_in_a_ring_cannot_be_told_from_the_one_that_receives() -> None:
    (found,) = blame(ring(), lambda src, dst: host_of(src) == "h3", fabric())
    assert (found.component, found.side, found.ambiguous_with) == ("host:h3", "tx", ("host:h4",))
    assert found.likelihood == pytest.approx(1 / 2, rel=0.05)


def test_switch_is_named_when_all_nics_behind_it_are_slow() -> None:
    (found,) = blame(ring(), of_hosts("h2", "h3"), fabric())
    assert (found.component, found.side, found.ambiguous_with) == ("switch:leaf1", None, ())
    assert found.likelihood > 0.99


def test_without_a_topology_the_hosts_behind_a_slow_switch_are_named() -> None:
    found = find_blame(matrix(ring(), of_hosts("h2", "h3")), None)
    assert {part.component for part in found} == {"host:h2", "host:h3"}


def test_switch_with_one_host_cannot_be_told_from_it() -> None:
    topology = TopologyIndex(leaf_spine(hosts=HOSTS, nics_per_host=NICS, leaves=HOSTS, spines=2))
    (found,) = blame(ring(), of_hosts("h3"), topology)
    assert (found.component, found.ambiguous_with) == ("host:h3", ("switch:leaf3",))


def test_nic_of_a_host_with_one_nic_stands_for_the_host() -> None:
    (found,) = blame(ring(nics=1), touches("h3/eth0"))
    assert (found.component, found.ambiguous_with) == ("nic:h3/eth0", ())


@pytest.mark.parametrize("pairs", [ring(), mesh()], ids=["ring", "mesh"])
def test_two_slow_nics_are_both_named_and_neither_makes_the_other_doubtful(pairs: list[Names]) -> None:
    both = blame(pairs, touches("h1/eth0", "h5/eth0"), count=2)
    assert {found.component for found in both} == {"nic:h1/eth0", "nic:h5/eth0"}
    assert all(found.side is None and found.likelihood > 0.99 for found in both)
    assert {pair for found in both for pair in explained(found, pairs)} == {
        pair for pair in pairs if "h1/eth0" in pair or "h5/eth0" in pair
    }


def test_fault_that_explains_most_comes_first() -> None:
    pairs = mesh()
    lone = ("h5/eth0", "h6/eth0")
    found = blame(pairs, lambda *pair: "h1/eth0" in pair or pair == lone, count=2)
    assert [part.component for part in found] == ["nic:h1/eth0", "link:h5/eth0--h6/eth0"]


def test_two_neighbours_in_a_ring_are_named_together() -> None:
    """Their common wire is explained by either, so neither is certain, and what is left over must be named too."""
    found = blame(ring(), touches("h3/eth1", "h4/eth1"), count=2)
    assert (found[0].component, found[0].ambiguous_with) == ("nic:h3/eth1", ("nic:h4/eth1",))
    assert found[0].likelihood == pytest.approx(1 / 2, rel=0.05)
    assert (found[1].component, found[1].ambiguous_with) == (
        "link:h4/eth1--h5/eth1",
        ("nic:h4/eth1", "nic:h5/eth1"),
    )


@pytest.mark.parametrize("slow", [("h3/eth1", "h5/eth1"), ("h1/eth1", "h7/eth1")])
def test_nic_between_two_slow_ones_is_not_blamed(slow: Names) -> None:
    """All that it carries is slow, but blaming it would take three faults; its name may come first or not."""
    found = blame(ring(), touches(*slow), count=2)
    assert {part.component for part in found} == {f"nic:{end}" for end in slow}
    assert all(part.ambiguous_with == () and part.likelihood > 0.99 for part in found)


@pytest.mark.parametrize("slow", [("h3", "h5"), ("h1", "h7")])
def test_host_between_two_slow_ones_is_not_blamed(slow: Names) -> None:
    found = blame(ring(), of_hosts(*slow), count=2)
    assert {part.component for part in found} == {f"host:{host}" for host in slow}
    assert all(part.ambiguous_with == () for part in found)


def test_two_slow_nics_that_make_a_whole_ring_slow_are_named_with_the_two_others() -> None:
    """In a ring of four, two opposite NICs slow all four wires, and so would the two others."""
    found = blame(ring(hosts=4), touches("h1/eth2", "h3/eth2"), count=2)
    assert {name for part in found for name in (part.component, *part.ambiguous_with)} == {
        f"nic:h{host}/eth2" for host in range(4)
    }
    assert all(part.likelihood == pytest.approx(1 / 3, rel=0.05) for part in found)


def test_faults_elsewhere_do_not_make_a_verdict_doubtful() -> None:
    pairs = ring(hosts=400, nics=1)
    found = blame(pairs, lambda *pair: pairs.index(pair) % 4 == 0, count=100)
    assert [part.likelihood for part in found] == pytest.approx([1 / 3] * 100, rel=0.05)


def test_faults_elsewhere_do_not_hide_that_two_suffice() -> None:
    pairs = ring(hosts=100, nics=1)
    lone = pairs[10:70:3]
    found = blame(pairs, lambda *pair: pair in lone or touches("h1/eth0", "h99/eth0")(*pair), count=22)
    assert {part.component for part in found[:2]} == {"nic:h1/eth0", "nic:h99/eth0"}
    assert "nic:h0/eth0" not in {name for part in found for name in (part.component, *part.ambiguous_with)}


def test_part_that_is_blamed_is_not_cleared_in_the_verdict_on_another() -> None:
    slow = ("h1/eth0", "h5/eth0")
    found = blame(mesh(), lambda src, dst: src in slow, count=2)
    assert {(part.component, part.side) for part in found} == {(f"nic:{end}", "tx") for end in slow}
    assert not {part.component for part in found} & {gone.component for part in found for gone in part.ruled_out}


def test_ring_that_is_slow_all_over_is_explained_in_finite_time() -> None:
    pairs = ring(hosts=400, nics=1)
    blames = find_blame(matrix(pairs, lambda src, dst: host_of(src) != "h0"), None)
    assert {pair for found in blames for pair in explained(found, pairs)} == set(pairs[1:])
    assert max(found.likelihood for found in blames) < 0.6, "nobody stands out"


def test_slow_nic_is_named_although_one_of_its_pairs_looks_normal() -> None:
    missed = ("h3/eth0", "h6/eth0")
    (found,) = blame(mesh(), lambda *pair: "h3/eth0" in pair and pair != missed)
    assert (found.component, found.side) == ("nic:h3/eth0", None)


def test_host_is_named_where_its_nic_is_unknown() -> None:
    pairs = [(host_of(src), host_of(dst)) for src, dst in mesh()]
    (found,) = blame(pairs, of_hosts("h3"), fabric())
    assert (found.component, found.side, found.ambiguous_with) == ("host:h3", None, ())
    (found,) = blame(pairs, lambda src, dst: src == "h3", fabric())
    assert (found.component, found.side) == ("host:h3", "tx")


def test_lone_pair_between_unknown_nics_may_be_the_wire_or_either_host() -> None:
    pairs = [(host_of(src), host_of(dst)) for src, dst in ring(nics=1)]
    (found,) = blame(pairs, lambda src, dst: src == "h3")
    assert (found.component, found.ambiguous_with) == ("link:h3--h4", ("host:h3", "host:h4"))


def test_what_a_host_sends_through_known_nics_speaks_for_it_where_others_are_unknown() -> None:
    """One NIC at h3 is unknown on the receiving side; all else that h3 carries is normal."""
    pairs = [*mesh(nics=2), *((f"h{host}/eth0", "h3") for host in (0, 1, 2))]
    (found,) = blame(pairs, lambda *pair: pair == ("h0/eth0", "h3"))
    assert (found.component, found.ambiguous_with) == ("link:h0/eth0--h3", ())
    because = {part.component: part.because for part in found.ruled_out}
    through = carried_by("host:h3", pairs)
    assert because["host:h3"] == f"{len(through) - 1} of the {len(through)} connections through it are normal"


@pytest.mark.parametrize(("names", "side"), [(("h9/eth0", "{}"), "tx"), (("{}", "h9/eth0"), "rx")])
def test_nic_seen_one_way_only_is_blamed_for_that_way_only(names: Names, side: str) -> None:
    one_way = [(names[0].format(f"h{host}/eth0"), names[1].format(f"h{host}/eth0")) for host in range(8)]
    (found,) = blame([*mesh(), *one_way], touches("h9/eth0"))
    assert (found.component, found.side, found.ambiguous_with) == ("nic:h9/eth0", side, ())


def test_nic_seen_one_way_only_is_cleared_by_what_it_sends() -> None:
    one_way = [("h9/eth0", f"h{host}/eth0") for host in range(8)]
    (found,) = blame([*mesh(), *one_way], lambda *pair: pair == one_way[3])
    because = {part.component: part.because for part in found.ruled_out}
    assert found.component == "link:h9/eth0--h3/eth0"
    assert because["nic:h9/eth0"] == "7 of the 8 connections through it are normal"


def test_cable_is_named_beside_its_nic() -> None:
    (found,) = blame(ring(), touches("h3/eth1"), fabric())
    assert (found.component, found.ambiguous_with) == ("nic:h3/eth1", ("link:h3/eth1--leaf1",))


def test_nic_that_the_topology_does_not_know_has_no_cable_to_name() -> None:
    topology = TopologyIndex(leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1))
    (found,) = blame(ring(), touches("h3/eth1"), topology)
    assert (found.component, found.ambiguous_with) == ("nic:h3/eth1", ())


FAULTS: dict[str, IsSlow] = {
    "nic": touches("h3/eth1"),
    "nic sending": lambda src, dst: src == "h3/eth1",
    "host": of_hosts("h3"),
    "leaf": of_hosts("h2", "h3"),
    "two NICs": touches("h1/eth0", "h5/eth1"),
    "NIC and host": lambda src, dst: touches("h1/eth0")(src, dst) or of_hosts("h6")(src, dst),
}
faults = pytest.mark.parametrize("is_slow", FAULTS.values(), ids=FAULTS)
SHAPES = {"ring": ring(), "mesh": mesh(nics=2)}
shapes = pytest.mark.parametrize("pairs", SHAPES.values(), ids=SHAPES)


@faults
@shapes
def test_every_sentence_about_a_cleared_part_is_true(pairs: list[Names], is_slow: IsSlow) -> None:
    sentences = [part for found in find_blame(matrix(pairs, is_slow), fabric()) for part in found.ruled_out]
    assert sentences
    for part in sentences:
        through = carried_by(part.component, pairs)
        normal = [pair for pair in through if not is_slow(*pair)]
        assert part.because == f"{len(normal)} of the {len(through)} connections through it are normal"
        assert normal, "a part is only cleared by what it carries well"


@faults
@shapes
def test_what_is_named_is_never_ruled_out_and_every_likelihood_is_a_share(
    pairs: list[Names], is_slow: IsSlow
) -> None:
    for found in find_blame(matrix(pairs, is_slow), fabric()):
        named = [found.component, *found.ambiguous_with]
        cleared = [part.component for part in found.ruled_out]
        assert len({*named, *cleared}) == len(named) + len(cleared)
        assert 0 < found.likelihood <= 1


@faults
@shapes
def test_every_slow_pair_is_explained_exactly_once(pairs: list[Names], is_slow: IsSlow) -> None:
    blames = find_blame(matrix(pairs, is_slow), fabric())
    times = np.sum([found.members for found in blames], axis=0)
    assert times.tolist() == [is_slow(*pair) for pair in pairs]


@faults
@pytest.mark.parametrize("shape", [ring, mesh], ids=["ring", "mesh"])
@pytest.mark.parametrize("more", [2, 8])
def test_more_healthy_hosts_change_no_verdict(
    is_slow: IsSlow, shape: Callable[[int, int], list[Names]], more: int
) -> None:
    few, many = (
        find_blame(matrix(shape(hosts, 2), is_slow), TopologyIndex(leaf_spine(hosts, 2, hosts // 2, 2)))
        for hosts in (HOSTS, HOSTS + more)
    )
    assert {(part.component, part.side, part.ambiguous_with) for part in many} == {
        (part.component, part.side, part.ambiguous_with) for part in few
    }


@QUICK
@given(order=st.permutations(range(len(ring(nics=2)))), slow=st.sets(st.sampled_from(ring(nics=2)), max_size=8))
def test_order_of_pairs_changes_nothing(order: list[int], slow: set[Names]) -> None:
    pairs = ring(nics=2)
    shuffled = [pairs[number] for number in order]

    def is_slow(*pair: str) -> bool:
        return pair in slow

    found, again = find_blame(matrix(pairs, is_slow), fabric()), find_blame(matrix(shuffled, is_slow), fabric())
    assert [summary(part, shuffled) for part in again] == [summary(part, pairs) for part in found]


@QUICK
@given(slow=st.sets(st.sampled_from(mesh(nics=2)), max_size=60))
def test_any_slow_pairs_are_explained_by_parts_that_carry_them(slow: set[Names]) -> None:
    pairs = mesh(nics=2)
    blames = find_blame(matrix(pairs, lambda *pair: pair in slow), fabric())
    assert {pair for found in blames for pair in explained(found, pairs)} == slow
    for found in blames:
        if not found.component.startswith("link:"):
            assert explained(found, pairs) <= set(carried_by(found.component, pairs))
        assert all(re.match(r"(nic|host|switch|link):", name) for name in found.ambiguous_with)


def test_same_pair_on_one_host_counts_once_for_it() -> None:
    """A host may talk to itself over the network; its connection is one, although it has both ends."""
    pairs = [*ring(), ("h3/eth0", "h3/eth1")]
    (found,) = blame(pairs, lambda *pair: pair == ("h1/eth0", "h2/eth0"))
    assert found.component == "link:h1/eth0--h2/eth0"
    (found,) = blame(pairs, lambda *pair: pair == ("h3/eth0", "h3/eth1"))
    because = {part.component: part.because for part in found.ruled_out}
    assert because["host:h3"] == "8 of the 9 connections through it are normal"
