"""What a simulation hands out: operations with all their ranks, and what connections between hosts did for them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.collectives import run_ring, run_ring_at_once, run_tree, tree_slices
from simulator.conditions import Scene
from simulator.job import Collective
from simulator.network import Communicators, Flows, flow_key
from simulator.pairs import NEVER, Codes, Floats, Ints, Pairs, Steps, Times

_OF_FLOWS = ("group", "channel", "src_index", "dst_index", "src", "dst", "tx_nic", "rx_nic", "sport", "paths")
_OF_PAIRS = ("gpu_wait", "peer_wait", "wire", "recv_wait", "flush", "recv_gpu_wait")


@dataclass(frozen=True)
class End:
    """One side of connections: world rank, rank inside the communicator, the other's, and the NIC."""

    rank: Ints
    index: Ints
    peer: Ints
    nic: Ints


@dataclass(frozen=True)
class Transfers:
    """Connections between hosts in one operation; one row each, seen from both sides."""

    group: Ints
    channel: Ints
    src_index: Ints
    dst_index: Ints
    src: Ints  # world rank
    dst: Ints
    tx_nic: Ints  # counted over the cluster
    rx_nic: Ints
    sport: Ints
    paths: Ints
    bytes: Ints
    steps: int
    gpu_wait: Times
    peer_wait: Times
    wire: Times
    recv_wait: Times
    flush: Times
    recv_gpu_wait: Times
    send_first: Times
    send_last: Times
    recv_first: Times
    recv_last: Times
    trace: Steps | None = None

    def seen_from(self, side: str) -> End:
        """Return the sending or the receiving side."""
        if side == "send":
            return End(self.src, self.src_index, self.dst_index, self.tx_nic)
        return End(self.dst, self.dst_index, self.src_index, self.rx_nic)


@dataclass(frozen=True)
class Heads:
    """What the oldest unfinished step of each rank waits for, in an operation that never ends."""

    state: Codes  # index into STATES
    peer: Ints  # rank inside the communicator, -1: none
    channel: Ints


@dataclass(frozen=True)
class Operation:
    """One operation of a kind in all groups that do it at the same time; one row per group and rank."""

    attempt: int
    comms: Communicators
    func: str
    algo: str
    group: Ints
    index: Ints  # rank inside the communicator
    rank: Ints  # world rank
    peer: Ints  # -1 unless send or receive
    seq: Ints
    bytes: Ints
    enqueue: Times
    start: Times
    end: Times
    transfers: Transfers | None = None
    sides: tuple[str, ...] = ("send", "recv")
    heads: Heads | None = None


def note_transfers(flows: Flows, pairs: Pairs, size: Ints | int, steps: int) -> Transfers | None:
    """Return what the connections between hosts did, or None when all of them stay inside."""
    crosses = flows.crosses
    if not crosses.any():
        return None
    sizes = np.broadcast_to(np.asarray(size, np.int64), crosses.shape)
    columns: dict[str, Any] = {name: getattr(flows, name)[crosses] for name in _OF_FLOWS}  # Any: of ints, of times
    columns |= {name: getattr(pairs, name)[crosses] for name in _OF_PAIRS}
    marks = {"send_first": pairs.edges.send_from, "send_last": pairs.sent}
    marks |= {"recv_first": pairs.edges.recv_from, "recv_last": pairs.taken}
    columns |= {name: timestamps[crosses] for name, timestamps in marks.items()}
    return Transfers(**columns, bytes=sizes[crosses], steps=steps, trace=_cut(pairs.steps, crosses))


def join_transfers(parts: Sequence[Transfers | None]) -> Transfers | None:
    """Return the connections of several parts of one operation."""
    known = [part for part in parts if part]
    if not known:
        return None
    names = [field.name for field in fields(Transfers) if field.name not in ("steps", "trace")]
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in known]) for name in names}
    return replace(known[0], **joined)


def _cut(steps: Steps | None, crosses: NDArray[np.bool_]) -> Steps | None:
    if steps is None:
        return None
    return replace(steps, **{name: [v[crosses] for v in getattr(steps, name)] for name in vars(steps)})


def find_heads(parts: Sequence[tuple[Flows, Pairs]], operation: Operation) -> Heads:
    """Return the state of each row's rank: of its unfinished step that has been waiting longest.

    A rank whose kernel waits for data inside its host has no such step; it is as its proxy sees it, idle.
    """
    state = np.zeros(len(operation.rank), np.int8)
    peer, channel = np.full(len(state), -1), np.full(len(state), -1)
    since, states, groups, indices, peers, channels = (np.concatenate(column) for column in _stuck_sides(parts))
    size = operation.comms.size
    row_of = np.full(len(operation.comms.members) * size, -1)
    row_of[operation.group * size + operation.index] = np.arange(len(state))
    rows = row_of[groups * size + indices]
    # The longest wait comes last, so that it stays; of two that are as long, the first.
    order = np.lexsort((-np.arange(len(rows)), -since))
    state[rows[order]], peer[rows[order]], channel[rows[order]] = states[order], peers[order], channels[order]
    return Heads(state, peer, channel)


def _stuck_sides(parts: Sequence[tuple[Flows, Pairs]]) -> Iterator[list[NDArray[Any]]]:
    """Return since when, state, group, position, peer and channel of all sides of connections that stand still."""
    found: list[list[NDArray[Any]]] = []
    for flows, pairs in parts:
        sides = (
            (pairs.send_state, flows.src_index, flows.dst_index),
            (pairs.recv_state, flows.dst_index, flows.src_index),
        )
        for side, (states, indices, peers) in enumerate(sides):
            stuck = flows.crosses & (states > 0)
            columns = (pairs.stuck_since[side], states, flows.group, indices, peers, flows.channel)
            found.append([column[stuck] for column in columns])
    return map(list, zip(*found, strict=True))


Rates = Callable[[tuple[object, ...], Flows, Scene], Floats]

_MOST_CELLS = 20_000_000  # steps x positions of one operation that are worth running one by one
_MOST_TRACED = 60_000  # steps x connections that are worth two rows each
_PAIR_STEPS = 4  # of a send and its receive
_LARGEST_CHUNK = 2 << 20  # NCCL: half of a connection's buffers of 4 MiB; what is larger goes round again
_MOST_STEPS = 64  # of rings that go round again; further rounds tell nothing new


def simulate_ring(operation: Operation, wave: Collective, scene: Scene, rates: Rates) -> Operation:
    """Return a ring's operation with its ends, transfers, and the states it stands in if it never ends."""
    comms, flows = operation.comms, scene.reroute(operation.comms.ring_flows(wave.groups))
    steps, chunk = ring_steps(wave, comms.size, comms.channels)
    edges = scene.edges(flows, chunk, rates(("ring", wave.kind, wave.groups.tobytes()), flows, scene))
    kernels = scene.kernels(flows.src, chunk)
    if flows.crosses.any() and steps * flows.src.size <= _MOST_CELLS:
        pairs, end = run_ring(edges, kernels, steps, trace=_is_traced(operation, steps * int(flows.crosses.sum())))
    else:
        pairs, end = run_ring_at_once(edges, kernels, steps)
    transfers = note_transfers(flows, pairs, int(chunk * steps), steps)
    return _finish(operation, wave, end, transfers, [(flows, pairs)])


def _is_traced(operation: Operation, cells: int) -> bool:
    """Return whether single steps are kept: of one ring operation in 64, the same on all ranks, unless it is huge."""
    return cells <= _MOST_TRACED and flow_key(operation.comms.kind, operation.func, operation.seq[0]) % 64 == 0


def simulate_tree(operation: Operation, wave: Collective, scene: Scene, rates: Rates) -> Operation:
    """Return a tree's operation, likewise."""
    comms = operation.comms
    tree = comms.tree(wave.groups)
    slices = tree_slices(wave.bytes / comms.channels)
    chunk = wave.bytes / comms.channels / slices
    up, down = (scene.reroute(comms.tree_flows(wave.groups, tree, is_up)) for is_up in (True, False))
    key = (wave.kind, wave.groups.tobytes())
    edges = [
        scene.edges(flows, chunk, rates((direction, *key), flows, scene))
        for direction, flows in (("up", up), ("down", down))
    ]
    ranks = comms.channel_table.rank[comms.channel_rows(wave.groups)]
    up_pairs, down_pairs, end = run_tree(tree, edges[0], edges[1], scene.kernels(ranks, chunk), slices)
    both = [(up, up_pairs), (down, down_pairs)]
    parts = [note_transfers(flows, pairs, int(chunk * slices), slices) for flows, pairs in both]
    return _finish(operation, wave, end, join_transfers(parts), both)


def _finish(
    operation: Operation,
    wave: Collective,
    row_end: Times,
    transfers: Transfers | None,
    parts: list[tuple[Flows, Pairs]],
) -> Operation:
    comms = operation.comms
    ended = np.empty_like(row_end)
    np.put_along_axis(ended, comms.channel_table.index[comms.channel_rows(wave.groups)], row_end, axis=1)
    end = ended.reshape(len(wave.groups), comms.channels, comms.size).max(axis=1).ravel()
    operation = replace(operation, end=np.minimum(end, NEVER), transfers=transfers)
    return replace(operation, heads=find_heads(parts, operation)) if end.max() >= NEVER / 2 else operation


def simulate_pairs(
    attempt: int, comms: Communicators, flows: Flows, sizes: Ints, scene: Scene, rates: Rates
) -> Iterator[Operation]:
    """Yield all sends, then all receives, of pairs that go on next to each other; they are not counted yet."""
    flows = scene.reroute(flows)
    key = (comms.kind, flows.group.tobytes(), flows.src_index.tobytes(), flows.dst_index.tobytes())
    pairs = Pairs(scene.edges(flows, sizes / _PAIR_STEPS, rates(key, flows, scene)))
    senders, receivers = scene.kernels(flows.src, 0.0), scene.kernels(flows.dst, 0.0)
    for step in range(_PAIR_STEPS):
        came = pairs.send(step, senders.after(pairs.buffer_free(step)))
        pairs.read(step, receivers.after(came))
    transfers = note_transfers(flows, pairs, sizes, _PAIR_STEPS)
    sides = (
        ("Send", flows.src_index, flows.dst_index, flows.src, pairs.sent, pairs.send_state),
        ("Recv", flows.dst_index, flows.src_index, flows.dst, pairs.taken, pairs.recv_state),
    )
    for func, index, peer, rank, end, state in sides:
        yield Operation(
            attempt=attempt,
            comms=comms,
            func=func,
            algo="RING",
            group=flows.group,
            index=index,
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
