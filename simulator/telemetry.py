"""A simulation as the rows its hosts would send: complete operations, everything folded per second, and progress."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S
from lockstep.folding import fold_operations, fold_transfers
from lockstep.tables import TABLE_BY_NAME
from simulator.devices import DeviceTelemetry, host_clocks
from simulator.faults import active_faults
from simulator.network import Communicators, flow_key
from simulator.operations import Heads, Operation
from simulator.pairs import GPU_WAIT, NEVER, PEER_WAIT, RECV_GPU_WAIT, RECV_WAIT, STATES, WIRE, Flags, Ints
from simulator.rows import Identity, Rows, RowWriter, SimulatedProbes, paths, step_samples
from simulator.simulation import Simulation


@dataclass
class _Line:
    """One (communicator kind, function): counts per (group, rank, peer), and its operations that are not over."""

    comms: Communicators
    func: str
    attempt: int
    keys: Ints  # sorted; a key stands for group, index and peer
    counts: Ints  # (3, keys): enqueued, started, done
    waiting: list[Operation] = field(default_factory=list)


class ProgressTracker:
    """Looks at all ranks once a second; operations come in as they are simulated, in any order within a second."""

    def __init__(self, writer: RowWriter) -> None:
        self._writer = writer
        self._lines: dict[tuple[int, str, str], _Line] = {}
        self._seen_ns = -1.0

    def note(self, operation: Operation) -> None:
        name = (operation.attempt, operation.comms.kind, operation.func)
        if name not in self._lines:
            keys, counts = np.zeros(0, np.int64), np.zeros((3, 0), np.int64)
            self._lines[name] = _Line(operation.comms, operation.func, operation.attempt, keys, counts)
        self._lines[name].waiting.append(operation)

    def snapshot(self, second_ns: int, attempt: int) -> pa.Table:
        """Return the progress of the current attempt at a moment that is past for everything that was noted."""
        self._lines = {name: line for name, line in self._lines.items() if line.attempt == attempt}
        tables = []
        for line in self._lines.values():
            for operation in line.waiting:
                self._count(line, operation, second_ns)
            line.waiting = [operation for operation in line.waiting if operation.end.max() > second_ns]
            tables.append(self._write(line, second_ns))
        self._seen_ns = second_ns
        return _stack("progress", tables)

    def _count(self, line: _Line, operation: Operation, now_ns: int) -> None:
        keys = _keys(operation)
        fresh = np.setdiff1d(keys, line.keys)
        if len(fresh):
            merged = np.sort(np.concatenate([line.keys, fresh]))
            counts = np.zeros((3, len(merged)), np.int64)
            counts[:, np.searchsorted(merged, line.keys)] = line.counts
            line.keys, line.counts = merged, counts
        indices = np.searchsorted(line.keys, keys)
        for row, timestamps in enumerate((operation.enqueue, operation.start, operation.end)):
            reached = (timestamps > self._seen_ns) & (timestamps <= now_ns)
            np.add.at(line.counts[row], indices[reached], 1)

    def _write(self, line: _Line, now_ns: int) -> pa.Table:
        size = line.comms.size
        rest, peer = np.divmod(line.keys, size + 1)
        group, index = np.divmod(rest, size)
        ranks = line.comms.members[group, index]
        hosts = line.comms.placement.host_of[ranks]
        shown = self._writer.timestamps(hosts, np.full(len(hosts), float(now_ns)))
        return self._writer.job_rows(
            "progress",
            hosts,
            line.attempt,
            comm=line.comms.ids[group],
            rank=index,
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
            indices = np.searchsorted(line.keys, _keys(operation)[rows])
            heads = operation.heads or guess_heads(operation)
            begun = operation.start[rows] <= now_ns
            since[indices], size[indices] = operation.enqueue[rows], operation.bytes[rows]
            if operation.heads is None and operation.transfers:  # who has not begun has its buffers wait for the GPU
                state[indices] = np.where(begun, heads.state[rows], GPU_WAIT)
            else:
                state[indices] = heads.state[rows]
            peer[indices], channel[indices] = heads.peer[rows], heads.channel[rows]
            algo = operation.algo
        is_open = since < NEVER
        return {
            "open_bytes": _where(is_open, size),
            "open_dtype": pc.if_else(pa.array(is_open), "ncclBfloat16", _NO_TEXT),
            "open_algo": pc.if_else(pa.array(is_open), algo, _NO_TEXT),
            "oldest_open_ns": _where(is_open, self._writer.timestamps(hosts, since)),
            "head_state": pa.array(STATES).take(pa.array(state)),
            "head_peer": _where(is_open & (peer >= 0), peer),
            "head_channel": _where(is_open & (channel >= 0), channel),
        }


def _keys(operation: Operation) -> Ints:
    return _key(operation.comms.size, operation.group, operation.index, operation.peer)


def _key(size: int, group: Ints, index: Ints, peer: Ints | np.int64) -> Ints:
    return (group * size + index) * (size + 1) + peer + 1


def _where(known: Flags, values: Ints) -> pa.Array:
    return pa.array(values, mask=~known)


_NO_TEXT = pa.scalar(None, pa.string())


def guess_heads(operation: Operation) -> Heads:
    """Return the state in which each row spent most of an operation that does end: where a look would find it."""
    state = np.zeros(len(operation.rank), np.int8)
    peer, channel = np.full(len(state), -1), np.full(len(state), -1)
    moved = operation.transfers
    if moved is None:
        return Heads(state, peer, channel)
    send = ((moved.gpu_wait, GPU_WAIT), (moved.peer_wait, PEER_WAIT), (moved.wire, WIRE))
    recv = ((moved.recv_wait, RECV_WAIT), (moved.recv_gpu_wait, RECV_GPU_WAIT))
    ends = {"send": (moved.src_index, moved.dst_index, send), "recv": (moved.dst_index, moved.src_index, recv)}
    found = [
        (spent, _rows_of(operation, moved.group, index, other), np.full(len(spent), code), other, moved.channel)
        for index, other, waits in (ends[side] for side in operation.sides)
        for spent, code in waits
    ]
    spent, rows, codes, others, channels = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(spent, kind="stable")  # the longest last, so that it stays
    order = order[(rows[order] >= 0) & (spent[order] > 0)]
    state[rows[order]], peer[rows[order]], channel[rows[order]] = codes[order], others[order], channels[order]
    return Heads(state, peer, channel)


def _rows_of(operation: Operation, group: Ints, index: Ints, other: Ints) -> Ints:
    """Return the row of each side of a connection: its rank's, and its peer's where rows are of pairs; -1: none."""
    mine = _keys(operation)
    wanted = _key(operation.comms.size, group, index, other if operation.func in ("Send", "Recv") else np.int64(-1))
    order = np.argsort(mine)
    found = np.minimum(np.searchsorted(mine[order], wanted), len(mine) - 1)
    return np.where(mine[order][found] == wanted, order[found], -1)


__all__ = ["Identity", "Rows", "SimulatedTelemetry"]

_CONTEXT_NS = 5 * NS_PER_S  # operations kept for the gap before the next one
_RECORDED = ("collectives", "op_stats", "transfers", "transfer_stats", "progress", "connections", "step_samples")


class SimulatedTelemetry:
    """Turns a running simulation into rows; a second's statistics come once it is over for all ranks."""

    def __init__(self, simulation: Simulation, identity: Identity, heartbeats: bool = False) -> None:
        """`heartbeats`: rows of `agents` too, for captures; real agents send their own."""
        self.simulation, self.identity = simulation, identity
        self.writer = RowWriter(simulation.scenario, identity, *host_clocks(simulation.scenario, simulation.seed))
        self._heartbeats = heartbeats
        self._progress = ProgressTracker(self.writer)
        self._devices = DeviceTelemetry(simulation, identity.start_ns)
        self._probes = SimulatedProbes(simulation.scenario, simulation.network, simulation.seed)
        self._recent = {name: schema_of(TABLE_BY_NAME[name]).empty_table() for name in ("collectives", "transfers")}
        # A second is over when it is on every clock.
        self._slack_ns = int(np.ceil(np.abs(self.writer.offset_ns).max()))
        self._reported_until_ns = identity.start_ns // NS_PER_S * NS_PER_S
        self._introduced: set[tuple[object, ...]] = set()

    @property
    def watermark_ns(self) -> int:
        """Every row that ended before this has been handed out."""
        return self._reported_until_ns

    def advance(self, until_ns: int) -> Rows:
        """Run the scenario until that moment of UNIX time and return the rows that became complete."""
        operations = self.simulation.run_until(until_ns - self.identity.start_ns)
        parts = [*self._operations(operations), *self._seconds()]
        names = dict.fromkeys(name for part in parts for name in part)
        rows = {name: pa.concat_tables([part[name] for part in parts if name in part]) for name in names}
        return {name: table for name, table in self._censor(rows).items() if table.num_rows}

    def _operations(self, operations: Iterable[Operation]) -> Iterator[Rows]:
        collectives, transfers = [], []
        for operation in operations:
            self._progress.note(operation)
            self._devices.note(operation)
            yield from self._introduce(operation)
            collectives.append(self.writer.collectives(operation))
            transfers.append(self.writer.transfers(operation))
            if operation.transfers and operation.transfers.trace:
                yield {"step_samples": step_samples(self.writer, operation, operation.transfers)}
        whole = {"collectives": _stack("collectives", collectives), "transfers": _stack("transfers", transfers)}
        self._recent = {name: pa.concat_tables([self._recent[name], whole[name]]) for name in self._recent}
        yield {name: self._sampled(table) for name, table in whole.items()}
        for attempt, step, hosts, begin, end in self.simulation.take_steps():
            if self.simulation.scenario.telemetry.steps:
                yield {"steps": self.writer.steps(hosts, attempt, step, begin, end)}

    def _introduce(self, operation: Operation) -> Iterator[Rows]:
        """Yield communicators and connections when they are used for the first time, or through another NIC."""
        comms, moved = operation.comms, operation.transfers
        if self._is_new((operation.attempt, comms.kind)):
            yield {"comms": self.writer.comms(comms, operation.attempt, self.simulation.attempt_began_ns)}
        ends = [getattr(moved, name).tobytes() for name in ("src", "dst", "tx_nic", "rx_nic")] if moved else []
        if moved and self._is_new((operation.attempt, comms.kind, operation.func, hash(tuple(ends)))):
            yield {"connections": self.writer.connections(operation)}
            yield {"paths": paths(self.writer, operation, self.simulation.network)}

    def _is_new(self, what: tuple[object, ...]) -> bool:
        known = what in self._introduced
        self._introduced.add(what)
        return not known

    def _seconds(self) -> Iterator[Rows]:
        """Yield what is said once a second, for every second that is over."""
        since, start = self._reported_until_ns, self.identity.start_ns
        until = max((start + self.simulation.now_ns - self._slack_ns) // NS_PER_S * NS_PER_S, since)
        for second in range(since + NS_PER_S, until + 1, NS_PER_S):
            yield {"progress": self._progress.snapshot(second - start, self.simulation.attempt)}
            yield self._devices.until(second - start)
            yield {"probes": self._probes.at(second - start, self.writer)}
            if self._heartbeats:
                yield {"agents": self.writer.agents(second - start)}
        self._reported_until_ns = until
        yield self._fold(since, until)

    def _fold(self, since: int, until: int) -> Rows:
        """Fold by the hosts' own clocks, as they would."""
        operations, transfers = self._recent["collectives"], self._recent["transfers"]
        self._recent = {
            "collectives": operations.filter(pc.greater_equal(operations["end_ns"], until - _CONTEXT_NS)),
            "transfers": transfers.filter(pc.greater_equal(transfers["last_ns"], until)),
        }
        return {
            "op_stats": fold_operations(operations, since, until),
            "transfer_stats": fold_transfers(transfers, operations, since, until),
        }

    def _sampled(self, rows: pa.Table) -> pa.Table:
        """Return the complete rows that are sent: a pure function of (comm, func, seq), as on real hosts."""
        share = self.simulation.scenario.telemetry.sample
        if share >= 1 or not rows.num_rows:
            return rows
        named = rows.select(["comm", "func", "seq"])
        numbers = [named[name].combine_chunks().dictionary_encode().indices.to_numpy() for name in named.column_names]
        _, firsts, which = np.unique(np.stack(numbers), axis=1, return_index=True, return_inverse=True)
        keys = named.take(pa.array(firsts)).to_pylist()
        kept = np.array([flow_key(*key.values()) % 10_000 < share * 10_000 for key in keys])
        return rows.filter(pa.array(kept[which.ravel()]))

    def _censor(self, rows: Rows) -> Rows:
        """Leave out what hosts do not tell: silent or gone ones everything, others what no plugin recorded."""
        scenario = self.simulation.scenario
        ends = {fault.name: fault.at_s for fault in scenario.timeline if fault.effect in ("silent", "gone")}
        heals = {fault.part for fault in active_faults(scenario.timeline, self.simulation.now_ns / NS_PER_S)}
        for host, at_s in ends.items():
            if f"host:{host}" in heals:
                end_ns = self.identity.start_ns + int(at_s * NS_PER_S)
                rows = {name: _before(table, name, host, end_ns) for name, table in rows.items()}
        if scenario.telemetry.without:
            unseen = pa.array(scenario.telemetry.without)
            for name in set(_RECORDED) & rows.keys():
                rows[name] = rows[name].filter(pc.invert(pc.is_in(rows[name]["host"], unseen)))
        return rows


def _before(table: pa.Table, name: str, host: str, timestamp_ns: int) -> pa.Table:
    column = {"collectives": "end_ns", "transfers": "last_ns", "steps": "end_ns"}.get(name, TABLE_BY_NAME[name].time)
    is_sent = pc.or_(pc.not_equal(table["host"], host), pc.less(table[column], timestamp_ns))
    return table.filter(pc.fill_null(is_sent, True))


def _stack(name: str, parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts) if parts else schema_of(TABLE_BY_NAME[name]).empty_table()
