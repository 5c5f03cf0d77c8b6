"""A simulation as the rows its hosts would send: complete operations, and everything folded per second."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep import __version__
from lockstep.arrow import fill_rows, schema_of
from lockstep.clock import NS_PER_S
from lockstep.folding import fold_operations, fold_transfers
from lockstep.sim.simulation import Operation, Simulation
from lockstep.tables import TABLE_BY_NAME

Rows = dict[str, pa.Table]

COMM = 0x10C5_7E9  # any number will do: it is the same on all ranks
_CONTEXT_NS = 5 * NS_PER_S  # operations kept for the gap before the next one


@dataclass(frozen=True)
class Identity:
    """Whose rows these are and when the story began."""

    job: str
    start_ns: int
    attempt: int = 0


class SimulatedTelemetry:
    """Turns a running simulation into rows; a second's statistics come once it is over for all ranks."""

    def __init__(self, simulation: Simulation, identity: Identity) -> None:
        self.simulation = simulation
        self.identity = identity
        self._edges = {side: _edges_between_hosts(simulation, side) for side in ("send", "recv")}
        self._recent = {name: schema_of(TABLE_BY_NAME[name]).empty_table() for name in ("collectives", "transfers")}
        self._folded_until_ns = identity.start_ns // NS_PER_S * NS_PER_S
        self._greeted = False

    @property
    def watermark_ns(self) -> int:
        """Every row that ended before this has been handed out."""
        return self._folded_until_ns

    def advance(self, until_ns: int) -> Rows:
        """Run the story until that moment of UNIX time and return the rows that became complete."""
        operations = list(self.simulation.run_until(until_ns - self.identity.start_ns))
        rows = {"collectives": self._collectives(operations), "transfers": self._transfers(operations)}
        self._recent = {name: pa.concat_tables([self._recent[name], rows[name]]) for name in self._recent}
        rows |= self._fold()
        if not self._greeted:
            rows["comms"], self._greeted = self._comms(), True
        return {name: table for name, table in rows.items() if table.num_rows}

    def _fold(self) -> Rows:
        since = self._folded_until_ns
        until = (self.identity.start_ns + self.simulation.now_ns) // NS_PER_S * NS_PER_S
        operations, transfers = self._recent["collectives"], self._recent["transfers"]
        self._folded_until_ns = max(since, until)
        folded = {
            "op_stats": fold_operations(operations, since, until),
            "transfer_stats": fold_transfers(transfers, operations, since, until),
        }
        self._recent = {
            "collectives": operations.filter(pc.greater_equal(operations["end_ns"], until - _CONTEXT_NS)),
            "transfers": transfers.filter(pc.greater_equal(transfers["last_ns"], until)),
        }
        return folded

    def _comms(self) -> pa.Table:
        shape, ranks = self.simulation.story.cluster, np.arange(self.simulation.story.ranks)
        return self._table(
            "comms",
            ranks,
            name="world",
            rank=ranks,
            nranks=len(ranks),
            nnodes=shape.hosts,
            world_rank=ranks,
            pid=1000 + ranks,
            gpu=ranks % shape.gpus_per_host,
            plugin_version=f"sim {__version__}",
            detail="steps",
            init_ns=self.identity.start_ns,
        )

    def _collectives(self, operations: Sequence[Operation]) -> pa.Table:
        ranks = np.arange(self.simulation.story.ranks)
        parts = [
            self._table(
                "collectives",
                ranks,
                func="AllReduce",
                peer=-1,
                seq=op.seq,
                replay=0,
                seq_valid=True,
                captured=False,
                epoch=0,
                rank=ranks,
                algo="RING",
                proto="SIMPLE",
                dtype="ncclBfloat16",
                bytes=op.bytes,
                channels=self.simulation.story.cluster.nics_per_host,
                enqueue_ns=self._moments(op.enqueue),
                start_ns=self._moments(op.start),
                end_ns=self._moments(op.end),
                clock="gpu",
            )
            for op in operations
        ]
        return _stack("collectives", parts)

    def _transfers(self, operations: Sequence[Operation]) -> pa.Table:
        parts = [self._transfer(op, side) for op in operations for side in ("send", "recv")]
        return _stack("transfers", parts)

    def _transfer(self, op: Operation, side: str) -> pa.Table:
        crosses = self.simulation.rings.crosses
        channels, places = crosses.shape
        steps = 2 * (places - 1)
        waits = _sender_waits(op, crosses) if side == "send" else _receiver_waits(op, crosses)
        return self._table(
            "transfers",
            self._edges[side]["rank"],
            func="AllReduce",
            seq=op.seq,
            replay=0,
            epoch=0,
            direction=side,
            transport=self.simulation.story.cluster.transport,
            bytes=op.bytes * steps // (channels * places),
            steps=steps,
            detail="steps",
            first_ns=self._moments(op.ring.first[crosses]),
            last_ns=self._moments(op.ring.last[crosses]),
            **self._edges[side],
            **waits,
        )

    def _table(self, table: str, ranks: np.ndarray, **columns: object) -> pa.Table:
        """Return rows of a job table about these ranks; single values are repeated, missing ones are null."""
        hosts = pa.array([f"h{host}" for host in range(self.simulation.story.cluster.hosts)])
        whole = columns | {
            "host": hosts.take(pa.array(ranks // self.simulation.story.cluster.gpus_per_host)),
            "job": self.identity.job,
            "attempt": self.identity.attempt,
            "comm": COMM,
        }
        return fill_rows(TABLE_BY_NAME[table], len(ranks), whole)

    def _moments(self, since_start: np.ndarray) -> np.ndarray:
        return since_start.astype(np.int64) + self.identity.start_ns


def _edges_between_hosts(simulation: Simulation, side: str) -> dict[str, np.ndarray | pa.Array]:
    """Return rank, channel, peer and NIC of every edge between hosts, as this side of it sees them."""
    rings = simulation.rings
    sender, receiver = rings.rank[rings.crosses], np.roll(rings.rank, -1, axis=1)[rings.crosses]
    nic = (rings.tx_nic if side == "send" else rings.rx_nic)[rings.crosses] % simulation.story.cluster.nics_per_host
    names = pa.array([f"eth{number}" for number in range(simulation.story.cluster.nics_per_host)])
    return {
        "rank": sender if side == "send" else receiver,
        "peer": receiver if side == "send" else sender,
        "channel": np.nonzero(rings.crosses)[0],
        "nic": names.take(pa.array(nic)),
    }


def _sender_waits(op: Operation, crosses: np.ndarray) -> dict[str, object]:
    return {
        "gpu_wait_ns": op.ring.gpu_wait[crosses].astype(np.int64),
        "peer_wait_ns": 0,
        "wire_ns": op.ring.wire[crosses].astype(np.int64),
    }


def _receiver_waits(op: Operation, crosses: np.ndarray) -> dict[str, object]:
    return {"gpu_wait_ns": 0, "peer_wait_ns": op.ring.recv_wait[crosses].astype(np.int64), "flush_ns": 0}


def _stack(name: str, parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts) if parts else schema_of(TABLE_BY_NAME[name]).empty_table()
