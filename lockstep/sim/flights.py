"""Operations from their first step to the last: rings, trees and pairs in a scene, and what is seen of them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from lockstep.sim.collectives import run_ring, run_ring_at_once, run_tree, tree_slices
from lockstep.sim.communicators import Communicators, Flows
from lockstep.sim.network import Floats, flow_key
from lockstep.sim.operations import Heads, Operation, Transfers, find_heads, join_transfers, note_transfers
from lockstep.sim.placement import Ints
from lockstep.sim.scene import Scene
from lockstep.sim.schedule import Collective
from lockstep.sim.wires import NEVER, Times, Wires

Rates = Callable[[tuple[object, ...], Flows, Scene], Floats]

_MOST_CELLS = 20_000_000  # steps x places of one operation that are worth running one by one
_MOST_TRACED = 60_000  # steps x connections that are worth two rows each
_PAIR_STEPS = 4  # of a send and its receive
_LARGEST_CHUNK = 2 << 20  # NCCL: half of a connection's buffers of 4 MiB; what is larger goes round again
_MOST_STEPS = 64  # of rings that go round again; further rounds tell nothing new


def fly_ring(operation: Operation, wave: Collective, scene: Scene, rates: Rates) -> Operation:
    """Return a ring's operation with its ends, transfers, and the states it stands in if it never ends."""
    comms, flows = operation.comms, scene.reroute(operation.comms.ring_flows(wave.groups))
    steps, chunk = ring_steps(wave, comms.size, comms.channels)
    edges = scene.edges(flows, chunk, rates(("ring", wave.kind, wave.groups.tobytes()), flows, scene))
    kernels = scene.kernels(flows.src, chunk)
    if flows.crosses.any() and steps * flows.src.size <= _MOST_CELLS:
        wires, end = run_ring(edges, kernels, steps, trace=_is_traced(operation, steps * int(flows.crosses.sum())))
    else:
        wires, end = run_ring_at_once(edges, kernels, steps)
    transfers = note_transfers(flows, wires, int(chunk * steps), steps)
    return _finish(operation, wave, end, transfers, [(flows, wires)])


def _is_traced(operation: Operation, cells: int) -> bool:
    """Return whether single steps are kept: of one ring operation in 64, the same on all ranks, unless it is huge."""
    return cells <= _MOST_TRACED and flow_key(operation.comms.kind, operation.func, operation.seq[0]) % 64 == 0


def fly_tree(operation: Operation, wave: Collective, scene: Scene, rates: Rates) -> Operation:
    """Return a tree's operation, likewise."""
    comms = operation.comms
    tree = comms.tree(wave.groups)
    slices = tree_slices(wave.bytes / comms.channels)
    chunk = wave.bytes / comms.channels / slices
    up, down = (scene.reroute(comms.tree_flows(wave.groups, tree, is_up)) for is_up in (True, False))
    key = (wave.kind, wave.groups.tobytes())
    edges = [
        scene.edges(flows, chunk, rates((way, *key), flows, scene)) for way, flows in (("up", up), ("down", down))
    ]
    ranks = comms.lanes.rank[comms.lanes_of(wave.groups)]
    climbing, falling, end = run_tree(tree, edges[0], edges[1], scene.kernels(ranks, chunk), slices)
    both = [(up, climbing), (down, falling)]
    parts = [note_transfers(flows, wires, int(chunk * slices), slices) for flows, wires in both]
    return _finish(operation, wave, end, join_transfers(parts), both)


def _finish(
    operation: Operation,
    wave: Collective,
    lane_end: Times,
    transfers: Transfers | None,
    parts: list[tuple[Flows, Wires]],
) -> Operation:
    comms = operation.comms
    ended = np.empty_like(lane_end)
    np.put_along_axis(ended, comms.lanes.place[comms.lanes_of(wave.groups)], lane_end, axis=1)
    end = ended.reshape(len(wave.groups), comms.channels, comms.size).max(axis=1).ravel()
    operation = replace(operation, end=np.minimum(end, NEVER), transfers=transfers)
    return replace(operation, heads=find_heads(parts, operation)) if end.max() >= NEVER / 2 else operation


def fly_pairs(
    attempt: int, comms: Communicators, flows: Flows, sizes: Ints, scene: Scene, rates: Rates
) -> Iterator[Operation]:
    """Yield all sends, then all receives, of pairs that go on next to each other; they are not counted yet."""
    flows = scene.reroute(flows)
    key = (comms.kind, flows.group.tobytes(), flows.src_place.tobytes(), flows.dst_place.tobytes())
    wires = Wires(scene.edges(flows, sizes / _PAIR_STEPS, rates(key, flows, scene)))
    senders, receivers = scene.kernels(flows.src, 0.0), scene.kernels(flows.dst, 0.0)
    for step in range(_PAIR_STEPS):
        came = wires.send(step, senders.after(wires.buffer_free(step)))
        wires.read(step, receivers.after(came))
    transfers = note_transfers(flows, wires, sizes, _PAIR_STEPS)
    sides = (
        ("Send", flows.src_place, flows.dst_place, flows.src, wires.sent, wires.send_state),
        ("Recv", flows.dst_place, flows.src_place, flows.dst, wires.taken, wires.recv_state),
    )
    for func, place, peer, rank, end, state in sides:
        yield Operation(
            attempt=attempt,
            comms=comms,
            func=func,
            algo="RING",
            group=flows.group,
            place=place,
            rank=rank,
            peer=peer,
            seq=np.zeros_like(rank),
            bytes=sizes,
            enqueue=scene.enqueue[rank],
            start=scene.start[rank],
            end=np.minimum(end, NEVER),
            transfers=transfers,
            sides=(func.lower(),),
            heads=Heads(state * flows.crosses, peer, np.zeros_like(peer)) if end.max() >= NEVER / 2 else None,
        )


def ring_steps(wave: Collective, size: int, channels: int) -> tuple[int, float]:
    """Return the steps of a ring and the bytes of each; all-gather and reduce-scatter count one rank's part.

    A broadcast goes round in parts, so that each edge carries the whole once. Large messages go round several times.

    >>> ring_steps(Collective("dp", np.arange(1), "AllReduce", "RING", 64 << 20), 8, 2)
    (28, 2097152.0)
    """
    if wave.func == "AllReduce":
        steps, chunk = 2 * (size - 1), wave.bytes / channels / size
    elif wave.func == "Broadcast":
        steps, chunk = size - 1, wave.bytes / channels / (size - 1)
    else:
        steps, chunk = size - 1, wave.bytes / channels
    rounds = max(min(int(np.ceil(chunk / _LARGEST_CHUNK)), _MOST_STEPS // steps), 1)
    return steps * rounds, chunk / rounds
