"""Rings and trees keep their closed forms, and a ring worked out at once is about the one that goes step by step."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from simulator.collectives import Kernels, binary_tree, run_ring, run_ring_at_once, run_tree, tree_slices
from simulator.job import Collective
from simulator.operations import ring_steps
from simulator.pairs import NEVER, Edges, Pairs, Times
from tests.simulator.build import outage, replaced, uniform

RATE = 12.5  # bytes per nanosecond: 100 Gb/s
PLACES, START = 256, 200_000.0


@pytest.mark.parametrize("func", ["AllReduce", "AllGather", "ReduceScatter", "Broadcast"])
@pytest.mark.parametrize("size", [2, 8, 200])
def test_every_edge_carries_the_same_bytes_in_however_many_rounds(func: str, size: int) -> None:
    parts = {"AllReduce": 2 * (size - 1) / size, "Broadcast": 1.0}.get(func, size - 1.0)

    def steps_of(func: str, size_bytes: int, size: int, channels: int = 2) -> tuple[int, float]:
        return ring_steps(Collective("world", np.arange(1), func, "RING", size_bytes), size, channels)

    for size_bytes in (1_000, 1_000_000, 1_000_000_000):
        steps, chunk = steps_of(func, size_bytes, size)
        assert steps * chunk == pytest.approx(parts * size_bytes / 2)
        assert steps % (size - 1) == 0
    assert steps_of("AllReduce", 4 << 20, 4) == (6, 512 << 10)
    assert steps_of("AllReduce", 32 << 20, 4) == (12, 2 << 20)  # goes round twice
    assert steps_of("AllReduce", 1 << 30, 1_000, channels=1)[0] == 2 * 999


def test_rings_do_not_touch_each_other() -> None:
    step, start = np.array([[1.0] * 3, [7.0, 8.0, 9.0]]), np.array([[0.0] * 3, [5.0, 0.0, 9.0]])

    def ends(rings: slice) -> Times:
        times, begin = step[rings], start[rings]
        edges = Edges(times, 0 * times, begin, np.roll(begin, -1, axis=1), has_credits=True)
        return run_ring(edges, Kernels(begin), 4)[1]

    assert_allclose(ends(slice(0, 2)), [[4.0] * 3, ends(slice(1, 2))[0]])


# Trees.


SLICES = 16


def tree_time(size: int, size_bytes: float, latency_ns: float = 0.0) -> float:
    tree, slices = binary_tree(1, size), tree_slices(size_bytes)
    step = np.full(size - 1, size_bytes / slices / RATE)
    edges = Edges(step, np.full(size - 1, latency_ns), np.zeros(size - 1), np.zeros(size - 1), has_credits=True)
    return float(run_tree(tree, edges, edges, Kernels(np.zeros((1, size))), slices)[2].max())


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 15, 16, 100])
def test_tree_has_every_index_once_and_one_root(size: int) -> None:
    tree = binary_tree(2, size)
    for row in (0, 1):
        mine = tree.row == row
        assert len(set(tree.child[mine].tolist())) == size - 1
        (root,) = set(range(size)) - set(tree.child[mine].tolist())
        level = dict(zip(tree.child[mine].tolist(), tree.level[mine].tolist(), strict=True)) | {root: 0}
        ends = zip(tree.child[mine].tolist(), tree.parent[mine].tolist(), strict=True)
        assert all(level[child] == level[parent] + 1 for child, parent in ends)
        assert np.bincount(tree.parent[mine]).max() <= 2
    if size == 8:  # leaves of one tree are in the middle of the other
        assert not set(tree.parent[tree.row == 0].tolist()) & set(tree.parent[tree.row == 1].tolist())


@pytest.mark.parametrize(("size", "depth"), [(3, 1), (7, 2), (15, 3), (127, 6)])
def test_tree_takes_its_latencies_or_its_message_once_and_a_slice_per_level(size: int, depth: int) -> None:
    """Up and down once, and the last acknowledgement."""
    assert tree_time(size, 1.0, latency_ns=5_000.0) == pytest.approx((2 * depth + 1) * 5_000.0, rel=1e-3)
    assert tree_time(size, 1e9) == pytest.approx(1e9 / RATE * (1 + (2 * depth - 1) / SLICES), rel=1e-6)
    assert [tree_slices(message) for message in (1, 512 << 10, 1 << 20, 1 << 30)] == [1, 1, 2, SLICES]


def test_slow_edge_of_a_tree_shows_on_its_wire_and_its_brothers_wait_for_credits() -> None:
    tree = binary_tree(1, 7)
    step, zero = np.full(6, 100.0), np.zeros(6)
    step[2] = 800.0  # from 3 up to 1
    up, down = (Edges(step.copy(), zero, zero, zero, has_credits=True) for _ in range(2))
    down.step_ns[:] = 100.0
    up_pairs, _, end = run_tree(tree, up, down, Kernels(np.zeros((1, 7))), SLICES)
    assert up_pairs.wire.argmax() == 2
    assert end.max() == pytest.approx(SLICES * 800.0 + 400.0, rel=0.1)
    assert up_pairs.peer_wait[3] > 0.5 * up_pairs.sent[3]  # its brother: their parent reads both or none
    assert up_pairs.recv_wait[2] > 0.8 * up_pairs.taken[2]


# Rings worked out at once.


def coarse_and_fine(edges: Edges, kernels: Kernels) -> tuple[Pairs, Times, Pairs, Times]:
    steps = 2 * (edges.step_ns.shape[1] - 1)
    return (*run_ring_at_once(edges, kernels, steps), *run_ring(edges, kernels, steps))


def jittered(seed: int, has_credits: bool = True, socket_steps: int = 0) -> Edges:
    edges = uniform(PLACES, has_credits, socket_steps, 1_000.0, 50.0)
    jitter = np.random.default_rng(seed).normal(1.0, 0.03, (1, PLACES))
    return replaced(edges, step_ns=edges.step_ns * jitter)


@pytest.mark.parametrize("transport", ["ib", "socket"])
@pytest.mark.parametrize("slower", [1.0, 1.3, 2.0, 8.0])
def test_coarse_ring_takes_as_long_as_the_fine_one_with_the_same_waits(transport: str, slower: float) -> None:
    edges = jittered(7, transport == "ib", 0 if transport == "ib" else 2)
    edges.step_ns[0, 100] *= slower
    coarse, coarse_end, fine, fine_end = coarse_and_fine(edges, Kernels(np.full((1, PLACES), START), 60.0))
    assert_allclose(coarse_end, fine_end, rtol=0.02)
    assert_allclose(coarse.sent, fine.sent, rtol=0.02)
    assert_allclose(coarse.taken, fine.taken, rtol=0.02)
    assert_allclose(coarse.gpu_wait + coarse.peer_wait + coarse.wire, coarse.sent - edges.send_from)
    assert_allclose(coarse.recv_wait + coarse.flush + coarse.recv_gpu_wait, coarse.taken - edges.recv_from)
    if slower >= 2:
        assert coarse.wire[0].argmax() == fine.wire[0].argmax() == 100
        for name in ("gpu_wait", "peer_wait", "wire", "recv_wait", "recv_gpu_wait"):
            ours, theirs = getattr(coarse, name)[0], getattr(fine, name)[0]
            much = [waits > 0.4 * fine.sent[0] for waits in (ours, theirs)]
            assert np.mean(much[0] != much[1]) < 0.03, name
            assert np.median(np.abs(ours - theirs) / fine.sent[0]) < 0.03, name


def test_coarse_ring_waits_for_the_last_index_to_come() -> None:
    late = np.zeros((1, PLACES))
    late[0, 30] = 100_000.0
    edges = replaced(jittered(4), send_from=late, recv_from=np.roll(late, -1, axis=1))
    coarse, coarse_end, _, fine_end = coarse_and_fine(edges, Kernels(late, 60.0))
    assert_allclose(coarse_end, fine_end, rtol=0.08)
    assert (coarse_end - late)[0].argmin() == (fine_end - late)[0].argmin() == 30
    assert np.roll(coarse.recv_wait[0], 1).argmin() == 30


@pytest.mark.parametrize("end", [NEVER, 3_000_000.0])
def test_coarse_ring_stands_as_long_as_the_fine_one_and_with_the_same_states_near_the_cause(end: float) -> None:
    edges = replaced(jittered(4), wire_out=outage(PLACES, 30, START + 5_000.0, end))
    coarse, coarse_end, fine, fine_end = coarse_and_fine(edges, Kernels(np.full((1, PLACES), START), 60.0))
    assert ((coarse_end >= NEVER / 2) == (fine_end >= NEVER / 2)).all()
    assert (coarse_end > 2_900_000.0).all()
    if end == NEVER:
        for ours, theirs in ((coarse.send_state, fine.send_state), (coarse.recv_state, fine.recv_state)):
            assert (ours == theirs).mean() > 0.7
            assert ours[0, 25:40].tolist() == theirs[0, 25:40].tolist()
