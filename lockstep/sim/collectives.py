"""Collectives as NCCL runs them: what every place of a ring or tree does with every step.

In a ring of n places an all-reduce has 2 (n - 1) steps, an all-gather or reduce-scatter n - 1. A place may fill the
buffer of its k-th send when the k-th buffer is free and its k-1st receive is there; by filling it, it reads that
receive. In a tree data goes up to the root in slices and comes down again, each slice as soon as it can.

Cost: O(steps x places) array elements, a few dozen operations on arrays per step.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.sim.placement import Ints
from lockstep.sim.wires import BUFFERS, GPU_WAIT, NEVER, RECV_WAIT, Edges, Outage, Times, Wires

_SLICE_BYTES, _MOST_SLICES = 512 << 10, 16  # of a tree's message on a channel; NCCL's are one of its eight steps


@dataclass(frozen=True)
class Kernels:
    """The GPUs of an operation, one per place."""

    start: Times
    step_ns: Times | float = 0.0  # to reduce or copy one step
    out: Outage | None = None  # when a kernel stands still

    def after(self, moment: Times) -> Times:
        moment = np.maximum(moment, self.start) + self.step_ns
        return moment if self.out is None else self.out.after(moment)


def run_ring(edges: Edges, kernels: Kernels, steps: int, trace: bool = False) -> tuple[Wires, Times]:
    """Return the connections after the operation, and when each place was done; rows are rings.

    >>> zero = np.zeros((1, 4))
    >>> edges = Edges(zero + 10.0, zero, zero, zero, has_credits=True)
    >>> float(run_ring(edges, Kernels(zero), steps=6)[1].max())  # 2 (n - 1) steps of 10
    60.0
    """
    wires = Wires(edges, trace, may_stand=_may_stand(edges, kernels))
    came = np.full(edges.step_ns.shape, -NEVER)
    filled = came
    for step in range(steps):
        filled = kernels.after(np.maximum(np.maximum(wires.buffer_free(step), came), filled))
        if step:
            wires.read(step - 1, _to_sender(filled))
        came = _to_receiver(wires.send(step, filled))
    end = kernels.after(np.maximum(came, filled))
    wires.read(steps - 1, _to_sender(end))
    return wires, np.maximum(end, wires.sent)


def _may_stand(edges: Edges, kernels: Kernels) -> bool:
    outages = (edges.wire_out, edges.send_proxy_out, edges.recv_proxy_out, kernels.out)
    moments = [edges.send_from, edges.recv_from, kernels.start, *(out.end for out in outages if out)]
    return any(moment.max() >= NEVER / 2 for moment in moments)


def _to_receiver(values: Times) -> Times:
    """Return what holds for edges at the places they lead to."""
    moved = np.empty_like(values)
    moved[..., 1:], moved[..., 0] = values[..., :-1], values[..., -1]
    return moved


def _to_sender(values: Times) -> Times:
    """Return what holds for places at the edges that lead to them."""
    moved = np.empty_like(values)
    moved[..., :-1], moved[..., -1] = values[..., 1:], values[..., 0]
    return moved


def run_ring_at_once(edges: Edges, kernels: Kernels, steps: int) -> tuple[Wires, Times]:
    """Return about the same as `run_ring` without going through its steps: for very large rings.

    The recurrence of `run_ring` is linear in (max, +), so that a moment is the longest of the ways to it. Of those
    only a few matter: everybody's data comes round at the mean pace of the edges from when the last place is there; a
    slow edge lets one step through at a time, which reaches the place d edges on with d steps less to wait for, and
    holds up the place d edges back as soon as the buffers between them are full. Cost: O(places).
    """
    wires = Wires(edges)
    kernel = np.broadcast_to(np.asarray(kernels.step_ns, float), edges.step_ns.shape)
    begin = np.maximum(np.maximum(edges.send_from, edges.recv_from), kernels.start).max(axis=-1, keepdims=True)
    around = (edges.step_ns + edges.latency_ns + kernel).mean(axis=-1, keepdims=True)
    came = begin + steps * around + np.zeros_like(edges.step_ns)  # when the last step is there, at its place
    held = begin + np.zeros_like(came)  # when the last step is taken by the wire, if nothing but full buffers counts
    for slow in _slowest(edges.step_ns, kernel):
        pace = np.take_along_axis(np.maximum(edges.step_ns, kernel), slow, axis=-1)
        behind, before = _distances(slow, edges.step_ns.shape[-1])
        came = np.maximum(came, begin + (steps - behind) * pace + (behind + 1) * around)
        held = np.maximum(held, begin + (steps - before * _between_places(edges)) * pace + before * around)
    _fill_waits(wires, kernels.start + np.zeros_like(came), kernel, steps, came, held)
    end = np.maximum(came, wires.sent)
    stands = _outage_end(edges, kernels, begin, end)
    if stands.max() >= NEVER / 2:
        _stand(wires, edges, kernels, steps, stands)
    wires.sent, wires.taken = np.maximum(wires.sent, stands), np.maximum(wires.taken, stands)
    return wires, np.maximum(end, stands)


_TOLERANCE = 1e-3
_STEPS_NEAR = 64  # that a ring goes through to see how it stands; further from the cause everybody waits for data
_SLOW_EDGES = 4  # of a ring that may hold it up; more are slow together, which their mean tells


def _slowest(step_ns: Times, kernel: Times) -> list[Ints]:
    pace = np.maximum(step_ns, kernel)
    count = min(_SLOW_EDGES, pace.shape[-1])
    order = np.argpartition(pace, pace.shape[-1] - count, axis=-1)[..., -count:]
    return [order[..., number : number + 1] for number in range(count)]


def _distances(slow: Ints, size: int) -> tuple[Ints, Ints]:
    """Return for every place how many edges after the slow edge's end it is, and how many before its beginning."""
    places = np.arange(size)
    return (places - slow - 1) % size, (slow - places) % size


def _between_places(edges: Edges) -> int:
    """Return the steps that fit between two places before the first has to wait: the buffers of both."""
    return 2 * BUFFERS + 2 * edges.socket_steps - 1


def _fill_waits(wires: Wires, start: Times, kernel: Times, steps: int, came: Times, held: Times) -> None:
    """Tell waits from when the last step came to each place and when its own last step could leave."""
    edges = wires.edges
    acknowledged = 2 * edges.latency_ns if edges.has_credits else 0.0
    wires.sent = np.maximum(np.maximum(came - kernel, held), edges.send_from) + acknowledged
    busy = wires.sent - np.maximum(edges.send_from, start)
    is_slow = steps * edges.step_ns >= busy * (1 - _TOLERANCE)  # always sending: it holds up the others
    wire = np.minimum(steps * (edges.step_ns + acknowledged), busy)
    if edges.socket_steps:  # the kernel takes the bytes at once, until its buffer is full
        wire = np.where(is_slow, np.maximum(busy - edges.socket_steps * edges.step_ns, 0.0), 0.0)
    stopped = np.where((held > came - kernel) & ~is_slow, busy - wire, 0.0)
    wires.wire[:], wires.peer_wait[:] = (wire, stopped) if edges.has_credits else (wire + stopped, 0.0)
    wires.gpu_wait[:] = wires.sent - edges.send_from - wires.wire - wires.peer_wait
    wires.taken = np.maximum(_to_sender(np.maximum(came, held)), edges.recv_from)
    whole = wires.taken - edges.recv_from
    there = np.maximum(start + edges.step_ns + edges.latency_ns, edges.recv_from)  # the first step
    reading = np.maximum(_to_sender(start) - there, 0.0) + _to_sender(kernel) * steps
    wires.recv_gpu_wait[:] = np.where(_to_sender(held) > _to_sender(came), whole, np.minimum(reading, whole))
    wires.recv_wait[:] = whole - wires.recv_gpu_wait


def _outage_end(edges: Edges, kernels: Kernels, begin: Times, end: Times) -> Times:
    """Return until when each ring stands still, by whatever stands still in it; 0 where nothing does."""
    stands = np.zeros_like(begin)
    for out in (edges.wire_out, edges.send_proxy_out, edges.recv_proxy_out, kernels.out):
        if out is not None:
            hit = (out.begin < end) & (out.end > begin)
            stands = np.maximum(stands, np.where(hit, out.end, 0.0).max(axis=-1, keepdims=True))
    return np.where(begin >= NEVER / 2, NEVER, stands)


def _stand(wires: Wires, edges: Edges, kernels: Kernels, steps: int, stands: Times) -> None:
    """Note the states of rings that stand for good: by their first steps, and far from the cause by waiting."""
    near, _ = run_ring(edges, kernels, min(steps, _STEPS_NEAR))
    for_good = stands >= NEVER / 2
    wires.send_state[:] = np.where(near.send_state > 0, near.send_state, GPU_WAIT) * for_good
    wires.recv_state[:] = np.where(near.recv_state > 0, near.recv_state, RECV_WAIT) * for_good
    since = np.maximum(edges.send_from, edges.recv_from)
    wires.stuck_since = np.where(near.stuck_since < NEVER, near.stuck_since, since)


@dataclass(frozen=True)
class Tree:
    """Edges between places of every lane; edge e of the up part joins child[e] to parent[e], and back below it."""

    lane: Ints
    child: Ints
    parent: Ints
    level: Ints  # of the child, 1 below the root


def binary_tree(lanes: int, size: int) -> Tree:
    """Return a binary tree over the places of each lane; every second lane has it mirrored, so leaves take turns."""
    child = np.arange(1, size)
    parent, level = (child - 1) // 2, np.floor(np.log2(child + 1)).astype(np.int64)
    lane = np.repeat(np.arange(lanes), size - 1)
    child, parent = np.tile(child, lanes), np.tile(parent, lanes)
    mirrored = lane % 2 == 1
    return Tree(
        lane,
        np.where(mirrored, size - 1 - child, child),
        np.where(mirrored, size - 1 - parent, parent),
        np.tile(level, lanes),
    )


def tree_slices(message: float) -> int:
    """Return into how many slices a tree cuts its message on one channel."""
    return int(np.clip(np.ceil(message / _SLICE_BYTES), 1, _MOST_SLICES))


def run_tree(tree: Tree, up: Edges, down: Edges, kernels: Kernels, slices: int) -> tuple[Wires, Wires, Times]:
    """Return the connections up and down after an all-reduce, and when each place of each lane was done."""
    climbing, falling = Wires(up), Wires(down)
    levels = [np.flatnonzero(tree.level == level) for level in range(1, int(tree.level.max()) + 1)]
    shape = kernels.start.shape
    summed, known = np.full(shape, -NEVER), np.full(shape, -NEVER)
    for step in range(slices):
        summed = _climb(tree, climbing, levels, kernels, summed, step)
        known = _fall(tree, falling, levels, kernels, np.where(_roots(tree, shape), summed, known), step)
    end = known.copy()
    np.maximum.at(end, (tree.lane, tree.child), climbing.sent)
    np.maximum.at(end, (tree.lane, tree.parent), falling.sent)
    return climbing, falling, end


def _roots(tree: Tree, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    root = np.ones(shape, bool)
    root[tree.lane, tree.child] = False
    return root


def _climb(tree: Tree, wires: Wires, levels: list[Ints], kernels: Kernels, before: Times, step: int) -> Times:
    """Return when each place has summed what is below it; the deepest are done first."""
    summed, filled = kernels.after(before), np.full(len(tree.lane), -NEVER)
    for edges in reversed(levels):
        filled[edges] = np.maximum(summed[tree.lane[edges], tree.child[edges]], wires.buffer_free(step)[edges])
        came = wires.arrival(step, filled)[edges]
        np.maximum.at(summed, (tree.lane[edges], tree.parent[edges]), came)
    wires.send(step, filled)
    wires.read(step, summed[tree.lane, tree.parent])
    return summed


def _fall(tree: Tree, wires: Wires, levels: list[Ints], kernels: Kernels, known: Times, step: int) -> Times:
    """Return when each place knows the sum; `known` holds it for the root."""
    known, filled = kernels.after(known), np.full(len(tree.lane), -NEVER)
    for edges in levels:
        filled[edges] = np.maximum(known[tree.lane[edges], tree.parent[edges]], wires.buffer_free(step)[edges])
        place = (tree.lane[edges], tree.child[edges])
        known[place] = np.maximum(known[place], wires.arrival(step, filled)[edges])
    wires.send(step, filled)
    wires.read(step, known[tree.lane, tree.child])
    return known
