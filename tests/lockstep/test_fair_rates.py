"""Flows share links max-min fairly."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lockstep.fair_rates import fair_rates
from simulator.pairs import Floats, Ints


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Draw the links of some flows, each a set, and what the links carry."""
    links = draw(st.integers(1, 6))
    path = st.lists(st.integers(0, links - 1), min_size=1, max_size=4, unique=True)
    return (
        draw(st.lists(path, min_size=1, max_size=9)),
        draw(st.lists(st.integers(1, 100), min_size=links, max_size=links)),
    )


def padded(flows: list[list[int]], capacities: list[int]) -> tuple[Ints, Floats]:
    nowhere = len(capacities)
    paths = np.array([(flow + [nowhere] * 4)[:4] for flow in flows])
    return paths, np.append(np.array(capacities, float), np.inf)


def fill(flows: list[list[int]], capacities: list[int]) -> list[Fraction]:
    """Raise all flows together, and fix those through a link as it fills up: exact, and slow."""
    rates, growing = [Fraction(0)] * len(flows), set(range(len(flows)))
    while growing:
        room = {}
        for link, capacity in enumerate(capacities):
            through = [flow for flow in range(len(flows)) if link in flows[flow]]
            more = sum(flow in growing for flow in through)
            if more:
                room[link] = (capacity - sum((rates[flow] for flow in through), Fraction(0))) / more
        least = min(room.values())
        for flow in growing:
            rates[flow] += least
        full = {link for link, left in room.items() if left == least}
        growing -= {flow for flow in growing if full & set(flows[flow])}
    return rates


@given(loads())
def test_rates_are_max_min_fair_and_those_of_filling_all_flows_together(
    load: tuple[list[list[int]], list[int]],
) -> None:
    flows, capacities = load
    rates = fair_rates(*padded(flows, capacities))
    used = [sum(rates[n] for n, flow in enumerate(flows) if link in flow) for link in range(len(capacities))]
    assert all(carried <= capacity * (1 + 1e-6) for carried, capacity in zip(used, capacities, strict=True))
    for number, flow in enumerate(flows):
        full = [link for link in flow if used[link] >= capacities[link] * (1 - 1e-6)]
        most = [max(rates[n] for n, other in enumerate(flows) if link in other) for link in full]
        assert any(rates[number] >= rate * (1 - 1e-6) for rate in most)
    assert_allclose(rates, [float(rate) for rate in fill(*load)], rtol=1e-6)


def test_flow_alone_has_its_narrowest_link_and_none_has_none() -> None:
    assert fair_rates(np.array([[0, 1, 3, 3]]), np.array([5.0, 2.0, 1.0, np.inf])).tolist() == [2.0]
    assert fair_rates(np.zeros((0, 4), int), np.array([1.0])).tolist() == []
