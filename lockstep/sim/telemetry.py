"""A simulation as the rows its hosts would send: complete operations, everything folded per second, and progress."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S
from lockstep.folding import fold_operations, fold_transfers
from lockstep.sim.host_clocks import host_clocks
from lockstep.sim.network import flow_key
from lockstep.sim.operations import Operation, Transfers
from lockstep.sim.probing import SimulatedProbes
from lockstep.sim.progress import ProgressBoard
from lockstep.sim.rows import Desk, Identity, Rows
from lockstep.sim.samples import paths, step_samples
from lockstep.sim.simulation import Simulation
from lockstep.sim.surroundings import Surroundings
from lockstep.sim.timeline import turns_now
from lockstep.tables import TABLE_BY_NAME

__all__ = ["Identity", "Rows", "SimulatedTelemetry"]

_CONTEXT_NS = 5 * NS_PER_S  # operations kept for the gap before the next one
_RECORDED = ("collectives", "op_stats", "transfers", "transfer_stats", "progress", "connections", "step_samples")


class SimulatedTelemetry:
    """Turns a running simulation into rows; a second's statistics come once it is over for all ranks."""

    def __init__(self, simulation: Simulation, identity: Identity, heartbeats: bool = False) -> None:
        """`heartbeats`: rows of `agents` too, for captures; real agents send their own."""
        self.simulation, self.identity = simulation, identity
        self.desk = Desk(simulation.story, identity, *host_clocks(simulation.story, simulation.seed))
        self._heartbeats = heartbeats
        self._board = ProgressBoard(self.desk)
        self._surroundings = Surroundings(simulation, identity.start_ns)
        self._probes = SimulatedProbes(simulation.story, simulation.network, simulation.seed)
        self._recent = {name: schema_of(TABLE_BY_NAME[name]).empty_table() for name in ("collectives", "transfers")}
        self._slack_ns = int(np.ceil(np.abs(self.desk.offset_ns).max()))  # a second is over when it is on every clock
        self._told_until_ns = identity.start_ns // NS_PER_S * NS_PER_S
        self._introduced: set[tuple[object, ...]] = set()

    @property
    def watermark_ns(self) -> int:
        """Every row that ended before this has been handed out."""
        return self._told_until_ns

    def advance(self, until_ns: int) -> Rows:
        """Run the story until that moment of UNIX time and return the rows that became complete."""
        operations = self.simulation.run_until(until_ns - self.identity.start_ns)
        parts = [*self._operations(operations), *self._seconds()]
        rows = _join(parts)
        return {name: table for name, table in self._censor(rows).items() if table.num_rows}

    def _operations(self, operations: Iterable[Operation]) -> Iterator[Rows]:
        collectives, transfers = [], []
        for operation in operations:
            self._board.note(operation)
            self._surroundings.note(operation)
            yield from self._introduce(operation)
            collectives.append(self.desk.collectives(operation))
            transfers.append(self.desk.transfers(operation))
            if operation.transfers and operation.transfers.trace:
                yield {"step_samples": step_samples(self.desk, operation, operation.transfers)}
        whole = {"collectives": _stack("collectives", collectives), "transfers": _stack("transfers", transfers)}
        self._recent = {name: pa.concat_tables([self._recent[name], whole[name]]) for name in self._recent}
        yield {name: self._sampled(table) for name, table in whole.items()}
        yield from self._told_steps()

    def _introduce(self, operation: Operation) -> Iterator[Rows]:
        """Yield communicators and connections when they are used for the first time, or through another NIC."""
        comms, moved = operation.comms, operation.transfers
        if self._is_new((operation.attempt, comms.kind)):
            yield {"comms": self.desk.comms(comms, operation.attempt, self.simulation.attempt_began_ns)}
        if moved and self._is_new((operation.attempt, comms.kind, operation.func, _who(moved))):
            yield {"connections": self.desk.connections(operation)}
            yield {"paths": paths(self.desk, operation, self.simulation.network)}

    def _is_new(self, what: tuple[object, ...]) -> bool:
        known = what in self._introduced
        self._introduced.add(what)
        return not known

    def _told_steps(self) -> Iterator[Rows]:
        for attempt, step, hosts, begin, end in self.simulation.take_steps():
            if self.simulation.story.telling.steps:
                yield {"steps": self.desk.steps(hosts, attempt, step, begin, end)}

    def _seconds(self) -> Iterator[Rows]:
        """Yield what is said once a second, for every second that is over."""
        since, start = self._told_until_ns, self.identity.start_ns
        until = max((start + self.simulation.now_ns - self._slack_ns) // NS_PER_S * NS_PER_S, since)
        for second in range(since + NS_PER_S, until + 1, NS_PER_S):
            yield {"progress": self._board.look(second - start, self.simulation.attempt)}
            yield self._surroundings.until(second - start)
            yield {"probes": self._probes.at(second - start, self.desk)}
            if self._heartbeats:
                yield {"agents": self.desk.agents(second - start)}
        self._told_until_ns = until
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
        share = self.simulation.story.telling.sample
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
        story = self.simulation.story
        ends = {turn.name: turn.at_s for turn in story.timeline if turn.effect in ("silent", "gone")}
        heals = {turn.part for turn in turns_now(story.timeline, self.simulation.now_ns / NS_PER_S)}
        for host, at_s in ends.items():
            if f"host:{host}" in heals:
                rows = {
                    name: _before(table, name, host, self.identity.start_ns + int(at_s * NS_PER_S))
                    for name, table in rows.items()
                }
        if story.telling.without:
            unseen = pa.array(story.telling.without)
            for name in set(_RECORDED) & rows.keys():
                rows[name] = rows[name].filter(pc.invert(pc.is_in(rows[name]["host"], unseen)))
        return rows


def _who(moved: Transfers) -> int:
    """Return what tells connections from others: their ends and NICs."""
    return hash((moved.src.tobytes(), moved.dst.tobytes(), moved.tx_nic.tobytes(), moved.rx_nic.tobytes()))


def _before(table: pa.Table, name: str, host: str, moment_ns: int) -> pa.Table:
    column = {"collectives": "end_ns", "transfers": "last_ns", "steps": "end_ns"}.get(name, TABLE_BY_NAME[name].time)
    told = pc.or_(pc.not_equal(table["host"], host), pc.less(table[column], moment_ns))
    return table.filter(pc.fill_null(told, True))


def _join(parts: Sequence[Rows]) -> Rows:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: pa.concat_tables([part[name] for part in parts if name in part]) for name in names}


def _stack(name: str, parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts) if parts else schema_of(TABLE_BY_NAME[name]).empty_table()
