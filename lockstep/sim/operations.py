"""What a simulation hands out: operations with all their ranks, and what connections between hosts did for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.sim.communicators import Communicators, Flows
from lockstep.sim.placement import Ints
from lockstep.sim.wires import Codes, Steps, Times, Wires

_OF_FLOWS = ("group", "channel", "src_place", "dst_place", "src", "dst", "tx_nic", "rx_nic", "sport", "paths")
_OF_WIRES = ("gpu_wait", "peer_wait", "wire", "recv_wait", "flush", "recv_gpu_wait")


class End(NamedTuple):
    """One side of connections: world rank, rank inside the communicator, the other's, and the NIC."""

    rank: Ints
    place: Ints
    peer: Ints
    nic: Ints


@dataclass(frozen=True)
class Transfers:
    """Connections between hosts in one operation; one row each, seen from both sides."""

    group: Ints
    channel: Ints
    src_place: Ints
    dst_place: Ints
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
            return End(self.src, self.src_place, self.dst_place, self.tx_nic)
        return End(self.dst, self.dst_place, self.src_place, self.rx_nic)


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
    place: Ints  # rank inside the communicator
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


def note_transfers(flows: Flows, wires: Wires, size: Ints | int, steps: int) -> Transfers | None:
    """Return what the connections between hosts did, or None when all of them stay inside."""
    crosses = flows.crosses
    if not crosses.any():
        return None
    sizes = np.broadcast_to(np.asarray(size, np.int64), crosses.shape)
    columns: dict[str, Any] = {name: getattr(flows, name)[crosses] for name in _OF_FLOWS}  # Any: of ints, of times
    columns |= {name: getattr(wires, name)[crosses] for name in _OF_WIRES}
    marks = {"send_first": wires.edges.send_from, "send_last": wires.sent}
    marks |= {"recv_first": wires.edges.recv_from, "recv_last": wires.taken}
    columns |= {name: moments[crosses] for name, moments in marks.items()}
    return Transfers(**columns, bytes=sizes[crosses], steps=steps, trace=_cut(wires.steps, crosses))


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


def find_heads(parts: Sequence[tuple[Flows, Wires]], operation: Operation) -> Heads:
    """Return the state of each row's rank: of its unfinished step that has been waiting longest.

    A rank whose kernel waits for data inside its host has no such step; it is as its proxy sees it, idle.
    """
    state = np.zeros(len(operation.rank), np.int8)
    peer, channel = np.full(len(state), -1), np.full(len(state), -1)
    since, states, groups, places, peers, channels = (np.concatenate(column) for column in _stuck_sides(parts))
    size = operation.comms.size
    row_of = np.full(len(operation.comms.members) * size, -1)
    row_of[operation.group * size + operation.place] = np.arange(len(state))
    rows = row_of[groups * size + places]
    # The longest wait comes last, so that it stays; of two that are as long, the first.
    order = np.lexsort((-np.arange(len(rows)), -since))
    state[rows[order]], peer[rows[order]], channel[rows[order]] = states[order], peers[order], channels[order]
    return Heads(state, peer, channel)


def _stuck_sides(parts: Sequence[tuple[Flows, Wires]]) -> Iterator[list[NDArray[Any]]]:
    """Return since when, state, group, place, peer and channel of all sides of connections that stand still."""
    found: list[list[NDArray[Any]]] = []
    for flows, wires in parts:
        sides = (
            (wires.send_state, flows.src_place, flows.dst_place),
            (wires.recv_state, flows.dst_place, flows.src_place),
        )
        for side, (states, places, peers) in enumerate(sides):
            stuck = flows.crosses & (states > 0)
            columns = (wires.stuck_since[side], states, flows.group, places, peers, flows.channel)
            found.append([column[stuck] for column in columns])
    return map(list, zip(*found, strict=True))
