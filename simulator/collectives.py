"""Collectives as NCCL runs them: what every position of a ring or tree does with every step.

In a ring of n positions an all-reduce has 2 (n - 1) steps, an all-gather or reduce-scatter n - 1. A position may fill
the buffer of its k-th send when the k-th buffer is free and its k-1st receive is there; by filling it, it reads that
receive. In a tree data goes up to the root in slices and comes down again, each slice as soon as it can.

Cost: O(steps x positions) array elements, a few dozen operations on arrays per step.
"""

from dataclasses import dataclass

import numpy as np

from simulator.pairs import BUFFERS, GPU_WAIT, NEVER, RECV_WAIT, Edges, Ints, Outage, Pairs, Times

_SLICE_BYTES, _MOST_SLICES = 512 << 10, 16  # of a tree's message on a channel; NCCL's are one of its eight steps


@dataclass(frozen=True)
class Kernels:
    """The GPUs of an operation, one per position."""

    start: Times
    step_ns: Times | float = 0.0  # to reduce or copy one step
    out: Outage | None = None  # when a kernel stands still

    def after(self, timestamp: Times) -> Times:
        timestamp = np.maximum(timestamp, self.start) + self.step_ns
        return timestamp if self.out is None else self.out.after(timestamp)


def run_ring(edges: Edges, kernels: Kernels, steps: int, trace: bool = False) -> tuple[Pairs, Times]:
    """Return the connections after the operation, and when each position was done; rows are rings.

    >>> zero = np.zeros((1, 4))
    >>> edges = Edges(zero + 10.0, zero, zero, zero, has_credits=True)
    >>> float(run_ring(edges, Kernels(zero), steps=6)[1].max())  # 2 (n - 1) steps of 10
    60.0
    """
    pairs = Pairs(edges, trace, may_stall=_may_stall(edges, kernels))
    came = np.full(edges.step_ns.shape, -NEVER)
    filled = came
    for step in range(steps):
        filled = kernels.after(np.maximum(np.maximum(pairs.buffer_free(step), came), filled))
        if step:
            pairs.read(step - 1, _to_sender(filled))
        came = _to_receiver(pairs.send(step, filled))
    end = kernels.after(np.maximum(came, filled))
    pairs.read(steps - 1, _to_sender(end))
    return pairs, np.maximum(end, pairs.sent)


def _may_stall(edges: Edges, kernels: Kernels) -> bool:
    outages = (edges.wire_out, edges.send_proxy_out, edges.recv_proxy_out, kernels.out)
    timestamps = [edges.send_from, edges.recv_from, kernels.start, *(out.end for out in outages if out)]
    return any(timestamp.max() >= NEVER / 2 for timestamp in timestamps)


def _to_receiver(values: Times) -> Times:
    """Return what holds for edges at the positions they lead to."""
    moved = np.empty_like(values)
    moved[..., 1:], moved[..., 0] = values[..., :-1], values[..., -1]
    return moved


def _to_sender(values: Times) -> Times:
    """Return what holds for positions at the edges that lead to them."""
    moved = np.empty_like(values)
    moved[..., :-1], moved[..., -1] = values[..., 1:], values[..., 0]
    return moved


def run_ring_at_once(edges: Edges, kernels: Kernels, steps: int) -> tuple[Pairs, Times]:
    """Return about the same as `run_ring` without going through its steps: for very large rings.

    The recurrence of `run_ring` is linear in (max, +), so that a moment is the longest of the ways to it. Of those
    only a few matter: everybody's data comes round at the mean pace of the edges from when the last position is
    there; a slow edge lets one step through at a time, which reaches the position d edges on with d steps less to
    wait for, and holds up the position d edges back as soon as the buffers between them are full. Cost: O(positions).
    """
    pairs = Pairs(edges)
    kernel = np.broadcast_to(np.asarray(kernels.step_ns, float), edges.step_ns.shape)
    begin = np.maximum(np.maximum(edges.send_from, edges.recv_from), kernels.start).max(axis=-1, keepdims=True)
    around = (edges.step_ns + edges.latency_ns + kernel).mean(axis=-1, keepdims=True)
    came = begin + steps * around + np.zeros_like(edges.step_ns)  # when the last step is there, at its position
    held = begin + np.zeros_like(came)  # when the last step is taken by the wire, if nothing but full buffers counts
    indices, size = np.arange(edges.step_ns.shape[-1]), edges.step_ns.shape[-1]
    room = 2 * BUFFERS + 2 * edges.socket_steps - 1  # steps between two positions before the first has to wait
    for slow in _slowest(edges.step_ns, kernel):
        pace = np.take_along_axis(np.maximum(edges.step_ns, kernel), slow, axis=-1)
        behind, before = (indices - slow - 1) % size, (slow - indices) % size  # edges after its end, before its begin
        came = np.maximum(came, begin + (steps - behind) * pace + (behind + 1) * around)
        held = np.maximum(held, begin + (steps - before * room) * pace + before * around)
    _fill_waits(pairs, kernels.start + np.zeros_like(came), kernel, steps, came, held)
    end = np.maximum(came, pairs.sent)
    stalled_until = _outage_end(edges, kernels, begin, end)
    if stalled_until.max() >= NEVER / 2:
        _mark_stalled(pairs, edges, kernels, steps, stalled_until)
    pairs.sent, pairs.taken = np.maximum(pairs.sent, stalled_until), np.maximum(pairs.taken, stalled_until)
    return pairs, np.maximum(end, stalled_until)


_TOLERANCE = 1e-3
_STEPS_NEAR = 64  # that a ring goes through to see how it stalls; further from the cause everybody waits for data
_SLOW_EDGES = 4  # of a ring that may hold it up; more are slow together, which shows in their mean


def _slowest(step_ns: Times, kernel: Times) -> list[Ints]:
    pace = np.maximum(step_ns, kernel)
    count = min(_SLOW_EDGES, pace.shape[-1])
    order = np.argpartition(pace, pace.shape[-1] - count, axis=-1)[..., -count:]
    return [order[..., number : number + 1] for number in range(count)]


def _fill_waits(pairs: Pairs, start: Times, kernel: Times, steps: int, came: Times, held: Times) -> None:
    """Tell waits from when the last step came to each position and when its own last step could leave."""
    edges = pairs.edges
    acknowledged = 2 * edges.latency_ns if edges.has_credits else 0.0
    pairs.sent = np.maximum(np.maximum(came - kernel, held), edges.send_from) + acknowledged
    busy = pairs.sent - np.maximum(edges.send_from, start)
    is_slow = steps * edges.step_ns >= busy * (1 - _TOLERANCE)  # always sending: it holds up the others
    wire = np.minimum(steps * (edges.step_ns + acknowledged), busy)
    if edges.socket_steps:  # the kernel takes the bytes at once, until its buffer is full
        wire = np.where(is_slow, np.maximum(busy - edges.socket_steps * edges.step_ns, 0.0), 0.0)
    stopped = np.where((held > came - kernel) & ~is_slow, busy - wire, 0.0)
    pairs.wire[:], pairs.peer_wait[:] = (wire, stopped) if edges.has_credits else (wire + stopped, 0.0)
    pairs.gpu_wait[:] = pairs.sent - edges.send_from - pairs.wire - pairs.peer_wait
    pairs.taken = np.maximum(_to_sender(np.maximum(came, held)), edges.recv_from)
    whole = pairs.taken - edges.recv_from
    there = np.maximum(start + edges.step_ns + edges.latency_ns, edges.recv_from)  # the first step
    reading = np.maximum(_to_sender(start) - there, 0.0) + _to_sender(kernel) * steps
    pairs.recv_gpu_wait[:] = np.where(_to_sender(held) > _to_sender(came), whole, np.minimum(reading, whole))
    pairs.recv_wait[:] = whole - pairs.recv_gpu_wait


def _outage_end(edges: Edges, kernels: Kernels, begin: Times, end: Times) -> Times:
    """Return until when each ring stands still, by whatever stands still in it; 0 where nothing does."""
    stalled_until = np.zeros_like(begin)
    for out in (edges.wire_out, edges.send_proxy_out, edges.recv_proxy_out, kernels.out):
        if out is not None:
            hit = (out.begin < end) & (out.end > begin)
            stalled_until = np.maximum(stalled_until, np.where(hit, out.end, 0.0).max(axis=-1, keepdims=True))
    return np.where(begin >= NEVER / 2, NEVER, stalled_until)


def _mark_stalled(pairs: Pairs, edges: Edges, kernels: Kernels, steps: int, stalled_until: Times) -> None:
    """Note the states of rings that stand for good: by their first steps, and far from the cause by waiting."""
    near, _ = run_ring(edges, kernels, min(steps, _STEPS_NEAR))
    for_good = stalled_until >= NEVER / 2
    pairs.send_state[:] = np.where(near.send_state > 0, near.send_state, GPU_WAIT) * for_good
    pairs.recv_state[:] = np.where(near.recv_state > 0, near.recv_state, RECV_WAIT) * for_good
    since = np.maximum(edges.send_from, edges.recv_from)
    pairs.stuck_since = np.where(near.stuck_since < NEVER, near.stuck_since, since)


@dataclass(frozen=True)
class Tree:
    """Edges between positions of every channel; up, edge e joins child[e] to parent[e], and down the other way."""

    row: Ints
    child: Ints
    parent: Ints
    level: Ints  # of the child, 1 below the root


def binary_tree(rows: int, size: int) -> Tree:
    """Return a binary tree over the positions of each row; every second row has it mirrored, so leaves take turns."""
    child = np.arange(1, size)
    parent, level = (child - 1) // 2, np.floor(np.log2(child + 1)).astype(np.int64)
    row = np.repeat(np.arange(rows), size - 1)
    child, parent = np.tile(child, rows), np.tile(parent, rows)
    mirrored = row % 2 == 1
    return Tree(
        row,
        np.where(mirrored, size - 1 - child, child),
        np.where(mirrored, size - 1 - parent, parent),
        np.tile(level, rows),
    )


def tree_slices(message: float) -> int:
    """Return into how many slices a tree cuts its message on one channel."""
    return int(np.clip(np.ceil(message / _SLICE_BYTES), 1, _MOST_SLICES))


def run_tree(tree: Tree, up: Edges, down: Edges, kernels: Kernels, slices: int) -> tuple[Pairs, Pairs, Times]:
    """Return the connections up and down after an all-reduce, and when each position of each row was done."""
    up_pairs, down_pairs = Pairs(up), Pairs(down)
    levels = [np.flatnonzero(tree.level == level) for level in range(1, int(tree.level.max()) + 1)]
    shape = kernels.start.shape
    summed, known = np.full(shape, -NEVER), np.full(shape, -NEVER)
    is_root = np.ones(shape, bool)
    is_root[tree.row, tree.child] = False
    for step in range(slices):
        summed = _reduce_up(tree, up_pairs, levels, kernels, summed, step)
        known = _broadcast_down(tree, down_pairs, levels, kernels, np.where(is_root, summed, known), step)
    end = known.copy()
    np.maximum.at(end, (tree.row, tree.child), up_pairs.sent)
    np.maximum.at(end, (tree.row, tree.parent), down_pairs.sent)
    return up_pairs, down_pairs, end


def _reduce_up(tree: Tree, pairs: Pairs, levels: list[Ints], kernels: Kernels, before: Times, step: int) -> Times:
    """Return when each position has summed what is below it; the deepest are done first."""
    summed, filled = kernels.after(before), np.full(len(tree.row), -NEVER)
    for edges in reversed(levels):
        filled[edges] = np.maximum(summed[tree.row[edges], tree.child[edges]], pairs.buffer_free(step)[edges])
        came = pairs.arrival(step, filled)[edges]
        np.maximum.at(summed, (tree.row[edges], tree.parent[edges]), came)
    pairs.send(step, filled)
    pairs.read(step, summed[tree.row, tree.parent])
    return summed


def _broadcast_down(tree: Tree, pairs: Pairs, levels: list[Ints], kernels: Kernels, known: Times, step: int) -> Times:
    """Return when each position knows the sum; `known` holds it for the root."""
    known, filled = kernels.after(known), np.full(len(tree.row), -NEVER)
    for edges in levels:
        filled[edges] = np.maximum(known[tree.row[edges], tree.parent[edges]], pairs.buffer_free(step)[edges])
        index = (tree.row[edges], tree.child[edges])
        known[index] = np.maximum(known[index], pairs.arrival(step, filled)[edges])
    pairs.send(step, filled)
    pairs.read(step, known[tree.row, tree.child])
    return known
