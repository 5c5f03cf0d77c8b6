"""The ring model keeps its closed form: a slow edge holds up all and shows on its own wire, a late rank does not."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lockstep.sim.ring import Times, run_ring

NANOSECONDS = st.integers(0, 1_000).map(float)


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Draw when each place of a ring is ready, and how long the wire to the next place takes."""
    places = draw(st.integers(2, 7))
    values = st.lists(NANOSECONDS, min_size=places, max_size=places)
    return draw(values), draw(values)


def uniform(places: int, wire: float) -> tuple[Times, Times]:
    return np.zeros((1, places)), np.full((1, places), wire)


@pytest.mark.parametrize("places", [2, 3, 8, 64])
def test_uniform_ring_takes_twice_one_less_than_its_places(places: int) -> None:
    times = run_ring(*uniform(places, 10.0))
    assert_allclose(times.done, 2 * (places - 1) * 10.0)
    assert_allclose(times.wire, 2 * (places - 1) * 10.0)
    assert_allclose(times.gpu_wait, 0.0)


@settings(max_examples=60, deadline=None)
@given(rings())
def test_times_are_those_of_the_recursion(ring: tuple[list[float], list[float]]) -> None:
    ready, wire = ring
    places, steps = len(ready), 2 * (len(ready) - 1)

    @cache
    def end(step: int, place: int) -> float:
        return begin(step, place) + wire[place]

    def begin(step: int, place: int) -> float:
        return max(end(step - 1, place), arrived(step - 1, place)) if step else ready[place]

    @cache
    def arrived(step: int, place: int) -> float:
        before = arrived(step - 1, place) if step else ready[place]
        return max(before, end(step, (place - 1) % places))

    times = run_ring(np.array([ready]), np.array([wire]))
    assert_allclose(times.last[0], [end(steps - 1, place) for place in range(places)])
    assert_allclose(times.done[0], [max(end(steps - 1, place), arrived(steps - 1, place)) for place in range(places)])
    assert_allclose(times.first[0], ready)


@settings(max_examples=60, deadline=None)
@given(rings())
def test_sender_either_sends_or_waits(ring: tuple[list[float], list[float]]) -> None:
    times = run_ring(np.array([ring[0]]), np.array([ring[1]]))
    assert_allclose(times.first + times.gpu_wait + times.wire, times.last)


@settings(max_examples=60, deadline=None)
@given(rings())
def test_receiver_waits_from_its_start_until_the_last_chunk_is_in(ring: tuple[list[float], list[float]]) -> None:
    times = run_ring(np.array([ring[0]]), np.array([ring[1]]))
    receivers_first, senders_last = np.roll(times.first, -1, axis=1), times.last
    assert_allclose(times.recv_wait, np.maximum(senders_last - receivers_first, 0.0))


def test_slow_edge_slows_everybody_but_only_its_own_wire_grows() -> None:
    ready, wire = uniform(8, 10.0)
    healthy = run_ring(ready, wire)
    wire[0, 3] = 40.0
    slowed = run_ring(ready, wire)
    assert (slowed.done > healthy.done).all()
    assert slowed.done.max() >= 2 * 7 * 40.0
    grown = np.flatnonzero(slowed.wire[0] != healthy.wire[0])
    assert grown.tolist() == [3]
    assert slowed.wire[0, 3] == 2 * 7 * 40.0
    assert slowed.gpu_wait[0, 3] == 0.0
    assert (np.delete(slowed.gpu_wait[0], 3) > 0.0).all()


def test_late_rank_shows_as_waiting_of_others_and_not_as_wire() -> None:
    ready, wire = uniform(8, 10.0)
    ready[0, 5] = 1_000.0
    times = run_ring(ready, wire)
    assert_allclose(times.wire, 2 * 7 * 10.0)
    assert times.gpu_wait[0, 5] == 0.0
    assert (np.delete(times.gpu_wait[0], 5) > 800.0).all()
    assert times.recv_wait[0].argmin() == 4  # the wire into the late rank, which came when all was there
    assert (np.delete(times.recv_wait[0], 4) > 1_000.0).all()
    assert_allclose(times.done.max(), 1_000.0 + 2 * 7 * 10.0)


def test_rings_do_not_touch_each_other() -> None:
    both = run_ring(np.array([[0.0, 0.0, 0.0], [5.0, 0.0, 9.0]]), np.array([[1.0, 1.0, 1.0], [7.0, 8.0, 9.0]]))
    alone = run_ring(np.array([[5.0, 0.0, 9.0]]), np.array([[7.0, 8.0, 9.0]]))
    assert_allclose(both.done[0], 4.0)
    assert_allclose(both.done[1], alone.done[0])
