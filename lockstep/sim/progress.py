"""How far every rank has come, second by second: what was enqueued, begun and done, and what is open."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.arrow import schema_of
from lockstep.sim.communicators import Communicators
from lockstep.sim.operations import Heads, Operation
from lockstep.sim.placement import Flags, Ints
from lockstep.sim.rows import Desk
from lockstep.sim.wires import GPU_WAIT, NEVER, PEER_WAIT, RECV_GPU_WAIT, RECV_WAIT, STATES, WIRE
from lockstep.tables import TABLE_BY_NAME


@dataclass
class _Line:
    """One (communicator kind, function): counts per (group, rank, peer), and its operations that are not over."""

    comms: Communicators
    func: str
    attempt: int
    keys: Ints  # sorted; a key stands for group, place and peer
    counts: Ints  # (3, keys): enqueued, started, done
    waiting: list[Operation] = field(default_factory=list)


class ProgressBoard:
    """Looks at all ranks once a second; operations come in as they are simulated, in any order within a second."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._lines: dict[tuple[int, str, str], _Line] = {}
        self._seen_ns = -1.0

    def note(self, operation: Operation) -> None:
        name = (operation.attempt, operation.comms.kind, operation.func)
        if name not in self._lines:
            keys = np.zeros(0, np.int64)
            self._lines[name] = _Line(
                operation.comms, operation.func, operation.attempt, keys, np.zeros((3, 0), np.int64)
            )
        self._lines[name].waiting.append(operation)

    def look(self, second_ns: int, attempt: int) -> pa.Table:
        """Return the progress of the current attempt at a moment that is past for everything that was noted."""
        self._lines = {name: line for name, line in self._lines.items() if line.attempt == attempt}
        tables = [self._look_at(line, second_ns) for line in self._lines.values()]
        self._seen_ns = second_ns
        return pa.concat_tables(tables) if tables else schema_of(TABLE_BY_NAME["progress"]).empty_table()

    def _look_at(self, line: _Line, now_ns: int) -> pa.Table:
        for operation in line.waiting:
            self._count(line, operation, now_ns)
        line.waiting = [operation for operation in line.waiting if operation.end.max() > now_ns]
        return self._write(line, now_ns)

    def _count(self, line: _Line, operation: Operation, now_ns: int) -> None:
        keys = _keys(operation)
        fresh = np.setdiff1d(keys, line.keys)
        if len(fresh):
            merged = np.sort(np.concatenate([line.keys, fresh]))
            counts = np.zeros((3, len(merged)), np.int64)
            counts[:, np.searchsorted(merged, line.keys)] = line.counts
            line.keys, line.counts = merged, counts
        places = np.searchsorted(line.keys, keys)
        for row, moments in enumerate((operation.enqueue, operation.start, operation.end)):
            reached = (moments > self._seen_ns) & (moments <= now_ns)
            np.add.at(line.counts[row], places[reached], 1)

    def _write(self, line: _Line, now_ns: int) -> pa.Table:
        size = line.comms.size
        rest, peer = np.divmod(line.keys, size + 1)
        group, place = np.divmod(rest, size)
        ranks = line.comms.members[group, place]
        hosts = line.comms.placement.host_of[ranks]
        shown = self._desk.moments(hosts, np.full(len(hosts), float(now_ns)))
        return self._desk.job_rows(
            "progress",
            hosts,
            line.attempt,
            comm=line.comms.ids[group],
            rank=place,
            func=line.func,
            peer=peer - 1,
            ts_ns=shown,
            enqueued=line.counts[0],
            started=line.counts[1],
            done=line.counts[2],
            **self._open(line, hosts, now_ns),
        )

    def _open(self, line: _Line, hosts: Ints, now_ns: int) -> dict[str, object]:
        """Return what the oldest open operation of each row is, and what it waits for."""
        count = len(line.keys)
        since, size = np.full(count, NEVER), np.zeros(count, np.int64)
        state, peer, channel = np.zeros(count, np.int64), np.full(count, -1), np.full(count, -1)
        algo = "RING"
        for operation in reversed(line.waiting):  # the oldest last, so that it stays
            rows = np.flatnonzero((operation.enqueue <= now_ns) & (operation.end > now_ns))
            if not len(rows):
                continue
            places = np.searchsorted(line.keys, _keys(operation)[rows])
            heads = operation.heads or guess_heads(operation)
            begun = operation.start[rows] <= now_ns
            since[places], size[places] = operation.enqueue[rows], operation.bytes[rows]
            if operation.heads is None and operation.transfers:  # who has not begun has its buffers wait for the GPU
                state[places] = np.where(begun, heads.state[rows], GPU_WAIT)
            else:
                state[places] = heads.state[rows]
            peer[places], channel[places] = heads.peer[rows], heads.channel[rows]
            algo = operation.algo
        is_open = since < NEVER
        return {
            "open_bytes": _where(is_open, size),
            "open_dtype": _text_where(is_open, "ncclBfloat16"),
            "open_algo": _text_where(is_open, algo),
            "oldest_open_ns": _where(is_open, self._desk.moments(hosts, since)),
            "head_state": pa.array(STATES).take(pa.array(state)),
            "head_peer": _where(is_open & (peer >= 0), peer),
            "head_channel": _where(is_open & (channel >= 0), channel),
        }


def _keys(operation: Operation) -> Ints:
    return _key(operation.comms.size, operation.group, operation.place, operation.peer)


def _key(size: int, group: Ints, place: Ints, peer: Ints | np.int64) -> Ints:
    return (group * size + place) * (size + 1) + peer + 1


def _where(known: Flags, values: Ints) -> pa.Array:
    return pa.array(values, mask=~known)


def _text_where(known: Flags, text: str) -> pa.Array:
    return pc.if_else(pa.array(known), text, pa.scalar(None, pa.string()))


def guess_heads(operation: Operation) -> Heads:
    """Return the state in which each row spent most of an operation that does end: where a look would find it."""
    state = np.zeros(len(operation.rank), np.int8)
    peer, channel = np.full(len(state), -1), np.full(len(state), -1)
    moved = operation.transfers
    if moved is None:
        return Heads(state, peer, channel)
    send = ((moved.gpu_wait, GPU_WAIT), (moved.peer_wait, PEER_WAIT), (moved.wire, WIRE))
    recv = ((moved.recv_wait, RECV_WAIT), (moved.recv_gpu_wait, RECV_GPU_WAIT))
    ends = {"send": (moved.src_place, moved.dst_place, send), "recv": (moved.dst_place, moved.src_place, recv)}
    found = [
        (spent, _rows_of(operation, moved.group, place, other), np.full(len(spent), code), other, moved.channel)
        for place, other, waits in (ends[side] for side in operation.sides)
        for spent, code in waits
    ]
    spent, rows, codes, others, channels = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(spent, kind="stable")  # the longest last, so that it stays
    order = order[(rows[order] >= 0) & (spent[order] > 0)]
    state[rows[order]], peer[rows[order]], channel[rows[order]] = codes[order], others[order], channels[order]
    return Heads(state, peer, channel)


def _rows_of(operation: Operation, group: Ints, place: Ints, other: Ints) -> Ints:
    """Return the row of each side of a connection: its rank's, and its peer's where rows are of pairs; -1: none."""
    mine = _keys(operation)
    wanted = _key(operation.comms.size, group, place, other if operation.func in ("Send", "Recv") else np.int64(-1))
    order = np.argsort(mine)
    found = np.minimum(np.searchsorted(mine[order], wanted), len(mine) - 1)
    return np.where(mine[order][found] == wanted, order[found], -1)
