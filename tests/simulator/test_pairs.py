"""A connection's waits add up to its time, follow the rules of buffers and credits, and come out of back-pressure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from simulator.collectives import Kernels, run_ring
from simulator.pairs import BUFFERS, FLUSH, GPU_WAIT, NEVER, PEER_WAIT, RECV_GPU_WAIT, RECV_WAIT, WIRE, Edges, Pairs
from tests.simulator.build import head_states, outage, replaced, started, uniform

NANOSECONDS = st.integers(0, 500).map(float)


@dataclass(frozen=True)
class Ring:
    """What a ring is made of, index by index."""

    step: list[float]
    latency: list[float]
    enqueue: list[float]
    lag: list[float]  # of the kernel's start behind the enqueueing
    proxy: list[float]
    kernel: float
    has_credits: bool
    socket_steps: int
    copy: float
    flush: float

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
            flush_ns=self.flush,
            send_proxy_ns=proxy,
            recv_proxy_ns=np.roll(proxy, -1, axis=1),
        )

    def kernels(self) -> Kernels:
        return Kernels(np.array([self.enqueue]) + np.array([self.lag]), self.kernel)


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    indices = draw(st.integers(2, 5))
    values = st.lists(NANOSECONDS, min_size=indices, max_size=indices)
    lists: dict[str, Any] = {name: draw(values) for name in ("step", "latency", "enqueue", "lag", "proxy")}
    times: dict[str, Any] = {name: draw(NANOSECONDS) for name in ("kernel", "copy", "flush")}
    return Ring(**lists, **times, has_credits=draw(st.booleans()), socket_steps=draw(st.integers(0, 12)))


@given(rings(), st.integers(1, 25))
def test_moments_and_waits_are_those_of_the_rules_worked_out_one_by_one(ring: Ring, steps: int) -> None:
    """The oracle asks for one moment after the other, as the module's docstring tells them."""
    indices = len(ring.step)

    @cache
    def filled(index: int, step: int) -> float:
        if step < 0:
            return -NEVER
        timestamps = [sent(index, step - BUFFERS), readable((index - 1) % indices, step - 1), filled(index, step - 1)]
        return max(*timestamps, ring.enqueue[index] + ring.lag[index]) + ring.kernel

    def credit(index: int, step: int) -> float:
        receiver = (index + 1) % indices
        return max(ring.enqueue[receiver], taken(index, step - BUFFERS))

    def handed(index: int, step: int) -> float:
        ready = filled(index, step) + ring.proxy[index]
        return max(ready, credit(index, step)) if ring.has_credits else ready

    @cache
    def left(index: int, step: int) -> float:
        if step < 0:
            return -NEVER
        held = BUFFERS + ring.socket_steps
        room = -NEVER if ring.has_credits else taken(index, step - held)
        return max(handed(index, step), left(index, step - 1), room) + ring.step[index]

    def readable(index: int, step: int) -> float:
        if step < 0:
            return -NEVER
        arrived = max(left(index, step) + ring.latency[index], credit(index, step))
        return arrived + ring.flush + ring.proxy[(index + 1) % indices]

    @cache
    def sent(index: int, step: int) -> float:
        if step < 0:
            return ring.enqueue[index] if step == -1 else -NEVER
        if ring.has_credits:
            done = left(index, step) + 2 * ring.latency[index]
        elif ring.socket_steps:
            room = left(index, step - ring.socket_steps) if step >= ring.socket_steps else -NEVER
            done = max(handed(index, step), room) + ring.copy
        else:
            done = left(index, step)
        return max(done + ring.proxy[index], handed(index, step), sent(index, step - 1))

    def over(index: int) -> float:
        """Return when a kernel has read its last step."""
        last = max(readable((index - 1) % indices, steps - 1), filled(index, steps - 1))
        return max(last, ring.enqueue[index] + ring.lag[index]) + ring.kernel

    @cache
    def taken(index: int, step: int) -> float:
        receiver = (index + 1) % indices
        if step < 0:
            return -NEVER
        timestamp = filled(receiver, step + 1) if step < steps - 1 else over(receiver)
        return max(timestamp, readable(index, step), ring.enqueue[receiver], taken(index, step - 1))

    def waits(marks: Callable[[int, int], tuple[float, ...]], begin: list[float]) -> list[np.ndarray]:
        """Return the times from mark to mark, summed over all steps; a mark is never before the one before it."""
        found = np.zeros((indices, 3))
        for index, since in enumerate(begin):
            for step in range(steps):
                reached = np.maximum.accumulate([since, *marks(index, step)])
                found[index] += np.diff(reached)
                since = reached[-1]
        return list(found.T)

    def sending(index: int, step: int) -> tuple[float, ...]:
        return filled(index, step) + ring.proxy[index], handed(index, step), sent(index, step)

    def receiving(index: int, step: int) -> tuple[float, ...]:
        return left(index, step) + ring.latency[index], readable(index, step), taken(index, step)

    pairs, end = run_ring(ring.edges(), ring.kernels(), steps)
    assert_allclose(end[0], [max(over(index), sent(index, steps - 1)) for index in range(indices)])
    assert_allclose(pairs.sent[0], [sent(index, steps - 1) for index in range(indices)])
    assert_allclose(pairs.taken[0], [taken(index, steps - 1) for index in range(indices)])
    sides = waits(sending, ring.enqueue), waits(receiving, [*ring.enqueue[1:], ring.enqueue[0]])
    assert_allclose([pairs.gpu_wait[0], pairs.peer_wait[0], pairs.wire[0]], sides[0], atol=1e-6)
    assert_allclose([pairs.recv_wait[0], pairs.flush[0], pairs.recv_gpu_wait[0]], sides[1], atol=1e-6)


def test_steps_are_traced_where_somebody_asks_and_a_flush_may_never_be_seen() -> None:
    edges = uniform(4)
    pairs, _ = run_ring(edges, started(edges), 6, trace=True)
    assert pairs.steps is not None
    assert len(pairs.steps.sent) == len(pairs.steps.taken) == 6
    for step in range(6):
        posted, handed, sent = pairs.steps.posted[step], pairs.steps.handed[step], pairs.steps.sent[step]
        assert (posted <= handed).all()
        assert (handed < sent).all()
        assert (pairs.steps.arrived[step] <= pairs.steps.taken[step]).all()
    assert run_ring(edges, started(edges), 6)[0].steps is None
    out = outage(4, 0, 105.0)  # the first step is there at 101 and flushed at 108: never seen
    stopped = Pairs(replaced(edges, flush_ns=7.0, recv_proxy_out=out))
    came = stopped.send(0, np.zeros((1, 4)))
    stopped.read(0, came)
    assert stopped.recv_state[0].tolist() == [FLUSH, 0, 0, 0]


@pytest.mark.parametrize(("has_credits", "held"), [(True, PEER_WAIT), (False, WIRE)])
def test_dead_wire_stands_in_wire_and_a_stuck_gpu_waits_for_itself(has_credits: bool, held: int) -> None:
    edges = uniform(6, has_credits)
    send, recv = head_states(replaced(edges, wire_out=outage(6, 2, 250.0)), started(edges), 10)
    assert (send[2], recv[3]) == (WIRE, RECV_WAIT)  # the link itself
    assert (send[1], recv[2]) == (held, RECV_GPU_WAIT)  # the sender does not read any more: look further on
    assert [(send[index], recv[index]) for index in (4, 5, 0)] == [(GPU_WAIT, RECV_WAIT)] * 3
    send, recv = head_states(edges, Kernels(np.zeros((1, 6)), 1.0, outage(6, 3, 250.0)), 10)
    assert [index for index in range(6) if (send[index], recv[index]) == (GPU_WAIT, RECV_GPU_WAIT)] == [3]
    assert [recv[index] for index in (4, 5, 0)] == [RECV_WAIT] * 3


@pytest.mark.parametrize(("has_credits", "expected"), [(True, PEER_WAIT), (False, GPU_WAIT)])
def test_index_before_one_that_never_comes_waits_for_its_credit_on_ib_alone(has_credits: bool, expected: int) -> None:
    never = np.array([[0.0, 0.0, 0.0, NEVER, 0.0, 0.0]])
    edges = uniform(6, has_credits, 0 if has_credits else 8)
    edges = replaced(edges, send_from=never, recv_from=np.roll(never, -1, axis=1))
    send, recv = head_states(edges, Kernels(never), 10)
    assert send[2] == expected
    assert (send[3], recv[3]) == (0, 0)  # it has no step at all
    assert recv[4] == RECV_WAIT


@pytest.mark.parametrize("has_credits", [True, False])
@pytest.mark.parametrize(("at_ns", "expected"), [(160.0, RECV_GPU_WAIT), (230.0, RECV_WAIT)])
def test_stopped_process_stays_in_the_state_that_it_was_in(has_credits: bool, at_ns: float, expected: int) -> None:
    """Its GPU goes on, but nobody marks what it does; with a kernel that takes long to read, that is RecvGPUWait."""
    sides = {"send_proxy_out": outage(6, 3, at_ns), "recv_proxy_out": outage(6, 2, at_ns)}
    _, recv = head_states(replaced(uniform(6, has_credits), **sides), Kernels(np.zeros((1, 6)), 50.0), 10)
    assert [recv[index] for index in (3, 4, 5, 0)] == [expected] + [RECV_WAIT] * 3


def test_outage_counts_from_when_a_side_entered_its_state_until_the_wire_sends_again() -> None:
    out = outage(6, 2, 60.0)  # in the middle of the first step, which was filled and handed over at 50
    pairs, _ = run_ring(replaced(uniform(6), wire_out=out), Kernels(np.full((1, 6), 50.0)), 10)
    assert pairs.stuck_since[0, 0, 2] == 50.0
    assert pairs.stuck_since[0, 0, 3] == pytest.approx(152.0)  # acknowledged, and nothing came to be sent
    edges = uniform(4)
    _, whole = run_ring(edges, started(edges), 6)
    flapped, late = run_ring(replaced(edges, wire_out=outage(4, 1, 150.0, 1_000.0)), started(edges), 6)
    assert late.max() == pytest.approx(whole.max() + 1_000.0 - 101.0)  # its second step began at 101 and is repeated
    assert flapped.wire[0, 1] > 1_000.0 - 101.0
    assert (np.delete(flapped.wire[0], 1) < 700.0).all()
    assert flapped.send_state.max() == 0
