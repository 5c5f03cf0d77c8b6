"""A connection's waits add up to its time, follow the rules of buffers and credits, and come out of back-pressure."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lockstep.sim.collectives import Kernels, run_ring
from lockstep.sim.wires import BUFFERS, FLUSH, NEVER, Edges, Outage, Wires
from tests.lockstep.sim.rings import replaced, started, uniform

NANOSECONDS = st.integers(0, 500).map(float)


@dataclass(frozen=True)
class Ring:
    """What a ring is made of, place by place."""

    step: list[float]
    latency: list[float]
    enqueue: list[float]
    lag: list[float]  # of the kernel's start behind the enqueueing
    proxy: list[float]
    kernel: float
    has_credits: bool
    socket_steps: int
    copy: float

    def edges(self) -> Edges:
        enqueue, proxy = np.array([self.enqueue]), np.array([self.proxy])
        return Edges(
            step_ns=np.array([self.step]),
            latency_ns=np.array([self.latency]),
            send_from=enqueue,
            recv_from=np.roll(enqueue, -1, axis=1),
            has_credits=self.has_credits,
            socket_steps=0 if self.has_credits else self.socket_steps,
            copy_ns=self.copy,
            send_proxy_ns=proxy,
            recv_proxy_ns=np.roll(proxy, -1, axis=1),
        )

    def kernels(self) -> Kernels:
        return Kernels(np.array([self.enqueue]) + np.array([self.lag]), self.kernel)


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    places = draw(st.integers(2, 5))
    values = st.lists(NANOSECONDS, min_size=places, max_size=places)
    return Ring(
        step=draw(values),
        latency=draw(values),
        enqueue=draw(values),
        lag=draw(values),
        proxy=draw(values),
        kernel=draw(NANOSECONDS),
        has_credits=draw(st.booleans()),
        socket_steps=draw(st.integers(0, 12)),
        copy=draw(NANOSECONDS),
    )


@settings(max_examples=100, deadline=None)
@given(rings(), st.integers(1, 30))
def test_waits_of_a_side_add_up_to_the_time_from_its_first_to_its_last_mark(ring: Ring, steps: int) -> None:
    wires, _ = run_ring(ring.edges(), ring.kernels(), steps)
    edges = wires.edges
    assert_allclose(wires.gpu_wait + wires.peer_wait + wires.wire, wires.sent - edges.send_from, atol=1e-6)
    assert_allclose(wires.recv_wait + wires.flush + wires.recv_gpu_wait, wires.taken - edges.recv_from, atol=1e-6)
    waits = (wires.gpu_wait, wires.peer_wait, wires.wire, wires.recv_wait, wires.flush, wires.recv_gpu_wait)
    assert min(wait.min() for wait in waits) >= 0


@settings(max_examples=80, deadline=None)
@given(rings(), st.integers(1, 25))
def test_moments_are_those_of_the_rules_worked_out_one_by_one(ring: Ring, steps: int) -> None:
    """The oracle asks for one moment after the other, as the module's docstring tells them."""
    places = len(ring.step)

    @cache
    def filled(place: int, step: int) -> float:
        if step < 0:
            return -NEVER
        moments = [sent(place, step - BUFFERS), readable((place - 1) % places, step - 1), filled(place, step - 1)]
        return max(*moments, ring.enqueue[place] + ring.lag[place]) + ring.kernel

    def credit(place: int, step: int) -> float:
        receiver = (place + 1) % places
        return max(ring.enqueue[receiver], taken(place, step - BUFFERS))

    def handed(place: int, step: int) -> float:
        ready = filled(place, step) + ring.proxy[place]
        return max(ready, credit(place, step)) if ring.has_credits else ready

    @cache
    def left(place: int, step: int) -> float:
        if step < 0:
            return -NEVER
        held = BUFFERS + ring.socket_steps
        room = -NEVER if ring.has_credits else taken(place, step - held)
        return max(handed(place, step), left(place, step - 1), room) + ring.step[place]

    def readable(place: int, step: int) -> float:
        if step < 0:
            return -NEVER
        arrived = max(left(place, step) + ring.latency[place], credit(place, step))
        return arrived + ring.proxy[(place + 1) % places]

    @cache
    def sent(place: int, step: int) -> float:
        if step < 0:
            return ring.enqueue[place] if step == -1 else -NEVER
        if ring.has_credits:
            done = left(place, step) + 2 * ring.latency[place]
        elif ring.socket_steps:
            room = left(place, step - ring.socket_steps) if step >= ring.socket_steps else -NEVER
            done = max(handed(place, step), room) + ring.copy
        else:
            done = left(place, step)
        return max(done + ring.proxy[place], handed(place, step), sent(place, step - 1))

    @cache
    def taken(place: int, step: int) -> float:
        receiver = (place + 1) % places
        if step < 0:
            return -NEVER
        last = max(readable(place, step), filled(receiver, step), ring.enqueue[receiver] + ring.lag[receiver])
        moment = filled(receiver, step + 1) if step < steps - 1 else last + ring.kernel
        return max(moment, readable(place, step), ring.enqueue[receiver], taken(place, step - 1))

    wires, _ = run_ring(ring.edges(), ring.kernels(), steps)
    assert_allclose(wires.sent[0], [sent(place, steps - 1) for place in range(places)])
    assert_allclose(wires.taken[0], [taken(place, steps - 1) for place in range(places)])


@pytest.mark.parametrize("has_credits", [True, False])
def test_slow_wire_takes_its_time_and_no_other_wire_does(has_credits: bool) -> None:
    """In a ring that is short enough for its buffers."""
    edges = uniform(4, has_credits, at_2=400.0)
    wires, _ = run_ring(edges, started(edges), 10)
    assert wires.wire[0].argmax() == 2
    assert wires.wire[0, 2] == pytest.approx(10 * 400.0, rel=0.01)
    assert wires.wire[0, [0, 1, 3]].max() < 0.3 * wires.wire[0, 2]


def test_places_behind_a_slow_edge_wait_for_credits_and_their_receivers_for_their_gpus_on_ib() -> None:
    """More places than buffers: what the slow edge does not take stays with the places before it."""
    edges = uniform(16, at_8=400.0)
    wires, _ = run_ring(edges, started(edges), 60)
    # Of the edge into the slow sender: it cannot read, because its own buffers are full.
    assert wires.peer_wait[0, 7] > 0.5 * wires.sent[0, 7]
    assert wires.recv_gpu_wait[0, 7] > 0.5 * wires.taken[0, 7]
    # After the slow edge everybody waits for data.
    assert wires.peer_wait[0, 9:].max() == 0.0
    assert (wires.recv_wait[0, 8:] > 0.5 * wires.taken[0, 8:]).all()
    assert (wires.gpu_wait[0, 9:] > 0.4 * wires.sent[0, 9:]).all()
    # The slow sender itself waits for neither.
    assert wires.wire[0, 8] > 0.95 * wires.sent[0, 8]


def test_short_operation_fits_into_the_buffers_and_nobody_waits_for_credits() -> None:
    edges = uniform(16, at_8=400.0)
    assert run_ring(edges, started(edges), BUFFERS)[0].peer_wait.max() == 0.0


def test_places_behind_a_slow_edge_stand_in_the_wire_of_a_socket() -> None:
    edges = uniform(16, has_credits=False, socket_steps=1, at_8=400.0)
    wires, _ = run_ring(edges, started(edges), 60)
    assert wires.peer_wait.max() == 0.0
    assert wires.wire[0, 7] > 0.5 * wires.sent[0, 7]
    assert wires.recv_gpu_wait[0, 7] > 0.5 * wires.taken[0, 7]
    assert wires.wire[0, 9:].max() == 0.0


@pytest.mark.parametrize(("socket_steps", "shows"), [(8, False), (1, True)], ids=["4 MiB", "32 MiB"])
def test_slow_wire_hides_in_the_kernel_unless_the_message_is_large(socket_steps: int, shows: bool) -> None:
    """Four ranks on two channels: an all-reduce of 4 MiB has chunks of 512 KiB, one of 32 MiB chunks of 4 MiB."""
    edges = uniform(4, has_credits=False, socket_steps=socket_steps, at_2=2_000.0)
    wires, _ = run_ring(edges, started(edges), 6)
    if shows:
        assert wires.wire[0].argmax() == 2
        assert wires.wire[0, 2] > 0.8 * wires.sent[0, 2]
    else:
        assert wires.wire.max() == 0.0
        assert (wires.recv_wait[0] > 0.5 * wires.taken[0]).all()
    assert wires.recv_wait[0, 2] > 0.8 * wires.taken[0, 2]


@pytest.mark.parametrize("has_credits", [True, False])
def test_starved_proxy_shows_in_flush_and_wire_and_never_as_waiting_for_a_peer(has_credits: bool) -> None:
    """As measured: RecvFlushWait and SendWait of the starved rank grow, while SendPeerWait of a socket stays 0."""
    proxy = np.zeros((1, 6))
    proxy[0, 3] = 30.0
    edges = replaced(
        uniform(6, has_credits), send_proxy_ns=proxy, recv_proxy_ns=np.roll(proxy, -1, axis=1), socket_steps=8
    )
    wires, _ = run_ring(edges, started(edges), 10)
    assert wires.peer_wait.max() == 0.0
    assert wires.flush[0].argmax() == 2  # the edge into the starved place
    assert wires.flush[0, 2] == pytest.approx(300.0)
    assert wires.wire[0].argmax() == 3


def test_steps_are_traced_where_somebody_asks() -> None:
    edges = uniform(4)
    wires, _ = run_ring(edges, started(edges), 6, trace=True)
    assert wires.steps is not None
    assert len(wires.steps.sent) == len(wires.steps.taken) == 6
    for step in range(6):
        posted, handed, sent = wires.steps.posted[step], wires.steps.handed[step], wires.steps.sent[step]
        assert (posted <= handed).all()
        assert (handed < sent).all()
        assert (wires.steps.arrived[step] <= wires.steps.taken[step]).all()
    assert run_ring(edges, started(edges), 6)[0].steps is None


def test_flush_is_counted_on_its_own() -> None:
    edges = replaced(uniform(4), flush_ns=7.0)
    wires, _ = run_ring(edges, started(edges), 6)
    assert_allclose(wires.flush, 42.0)
    out = Outage(np.full((1, 4), NEVER), np.full((1, 4), NEVER))
    out.begin[0, 0] = 105.0  # the first step is there at 101 and flushed at 108: never seen
    stopped = Wires(replaced(edges, recv_proxy_out=out))
    came = stopped.send(0, np.zeros((1, 4)))
    stopped.read(0, came)
    assert stopped.recv_state[0].tolist() == [FLUSH, 0, 0, 0]
