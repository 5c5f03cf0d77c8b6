"""The flows of trials, and what they can carry at best."""

from collections import Counter

import pytest

from tests.testbed.paths.flows import ideal_round_s, scale_uplinks, shift_by_a_leaf, ways_between, without
from tests.testbed.paths.trials import eight_hosts, sixteen_hosts


def test_every_host_sends_to_the_same_place_on_the_next_leaf() -> None:
    ends = [(flow.src[0], flow.dst[0]) for flow in shift_by_a_leaf(sixteen_hosts())]

    assert ends[:2] + ends[-1:] == [("h0", "h4"), ("h1", "h5"), ("h15", "h3")]
    assert Counter(dst for _, dst in ends) == {f"h{number}": 1 for number in range(16)}


def test_one_way_means_that_nobody_both_sends_and_receives() -> None:
    flows = shift_by_a_leaf(sixteen_hosts(), per_pair=3, is_one_way=True)

    assert {flow.src[0] for flow in flows} & {flow.dst[0] for flow in flows} == set()
    assert len(flows) == 3 * 8
    assert len({flow.name for flow in flows}) == len(flows)


def test_cut_link_closes_the_ways_over_its_spine() -> None:
    topology = without(eight_hosts(), ["leaf1--spine2"])

    assert ("leaf0--spine2", "leaf1--spine2") in ways_between(eight_hosts(), "leaf0", "leaf1")
    assert [up for up, _ in ways_between(topology, "leaf0", "leaf1")] == [
        "leaf0--spine0",
        "leaf0--spine1",
        "leaf0--spine3",
    ]


@pytest.mark.parametrize(("dead", "seconds"), [([], 12 / 4), (["leaf0--spine1"], 12 / 3)])
def test_round_takes_at_best_what_the_remaining_ways_carry(dead: list[str], seconds: float) -> None:
    flows = shift_by_a_leaf(eight_hosts(), per_pair=3, is_one_way=True)
    one_second = 1_000_000 // 8  # bytes, on a link of 1 Mbit/s

    assert ideal_round_s(one_second, without(eight_hosts(), dead), flows, 1.0) == pytest.approx(seconds)


def test_only_links_between_switches_are_scaled() -> None:
    rates = {link.id: link.gbps for link in scale_uplinks(eight_hosts(), 0.5).links}

    assert (rates["h0/eth0--leaf0"], rates["leaf0--spine0"]) == (400, 200)
