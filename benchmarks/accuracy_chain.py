"""What becomes of a world's rows on their way into the store: lost, cut off, thinned out, without times or names.

The same rows meet the same fate however they are cut into batches: every choice is a hash of what a row says.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME

_WHEN = {"collectives": "enqueue_ns", "transfers": "first_ns", "step_samples": "posted_ns", "steps": "end_ns"}
_KNOWN_AT = {"collectives": "end_ns", "transfers": "last_ns", "step_samples": "done_ns"}  # then a row can be sent
_KEPT = ("comms", "connections", "paths", "agents")  # said again and again by real agents: never lost for good
_WAITS = ("gpu_wait_ns", "peer_wait_ns", "wire_ns", "flush_ns", "wire_max_ns")
_HOLE_S, _APART_S = 0.5, 0.37  # of the governor: how long it looks away, and by how much ranks are staggered

Numbers = np.ndarray


@dataclass(frozen=True)
class Chain:
    """What the chain from the hosts to the store does to rows; times are seconds of the scenario."""

    seed: int
    ends_s: Mapping[str, float] = field(default_factory=dict)  # by host: nothing later arrives
    untold: frozenset[str] = frozenset()  # hosts of which nothing arrives at all
    coarse: frozenset[str] = frozenset()  # hosts that record operations, and no waits of transfers
    lost_batches: float = 0.0  # share of the seconds of a host and table
    lost_rows: float = 0.0  # share of sampled rows
    tables: frozenset[str] = frozenset()  # that are missing
    columns: frozenset[tuple[str, str]] = frozenset()  # that nobody fills
    fuses: bool = False  # two NICs are one device to NCCL
    hole_every_s: float | None = None  # the governor looks away so often

    def pass_on(self, name: str, rows: pa.Table, start_ns: int) -> pa.Table:
        """Return what arrives of some rows of a table."""
        if name in self.tables or not rows.num_rows:
            return rows.slice(0, 0)
        rows = rows.filter(pa.array(self._arrives(name, rows, start_ns)))
        rows = self._without_detail(name, rows)
        rows = self._without_times(name, rows, start_ns)
        for table, column in sorted(self.columns):
            rows = _forget(rows, column, np.ones(rows.num_rows, bool)) if table == name else rows
        return _fuse(rows) if self.fuses and "nic" in rows.column_names and name != "nic_counters" else rows

    def _arrives(self, name: str, rows: pa.Table, start_ns: int) -> Numbers:
        hosts = np.array(rows["host"].to_pylist(), object)
        sent_s = _seconds(rows, _KNOWN_AT.get(name, TABLE_BY_NAME[name].time), start_ns)
        arrives = sent_s <= np.array([self.ends_s.get(host, np.inf) for host in hosts])
        arrives &= ~np.isin(hosts, sorted(self.untold))
        if name in _KEPT:
            return np.asarray(arrives)
        which, second = _codes(hosts), np.floor(sent_s).astype(np.int64)
        arrives &= _chance(self.seed, name, which, second) >= self.lost_batches
        if name in ("collectives", "transfers", "step_samples"):
            numbers = [np.asarray(rows[column]).astype(np.int64) for column in ("rank", "seq")]
            arrives &= _chance(self.seed, name, which, *numbers, _seconds(rows, _WHEN[name], 0)) >= self.lost_rows
        return np.asarray(arrives)

    def _without_detail(self, name: str, rows: pa.Table) -> pa.Table:
        """Leave out what hosts with less detail do not see."""
        coarse = np.isin(np.array(rows["host"].to_pylist(), object), sorted(self.coarse))
        if not coarse.any():
            return rows
        if name == "step_samples":
            return rows.filter(pa.array(~coarse))
        for column in {*_WAITS, "head_peer", "head_channel"} & set(rows.column_names):
            rows = _forget(rows, column, coarse)
        for column, value in (("detail", "ops"), ("head_state", "unknown")):
            if column in rows.column_names:
                rows = _replace(rows, column, coarse, value)
        return rows

    def _without_times(self, name: str, rows: pa.Table, start_ns: int) -> pa.Table:
        """Mark what falls into a hole of the governor, which looks away on one rank after the other."""
        if self.hole_every_s is None or name not in ("collectives", "transfers", "step_samples", "progress"):
            return rows
        when_s = _seconds(rows, _WHEN.get(name, "ts_ns"), start_ns)
        in_hole = (when_s - _APART_S * np.asarray(rows["rank"])) % self.hole_every_s < _HOLE_S
        if name in ("transfers", "step_samples"):
            return rows.filter(pa.array(~in_hole))
        rows = _replace(rows, "untimed", in_hole, True)
        if name == "collectives":
            rows = _replace(_forget(_forget(rows, "start_ns", in_hole), "end_ns", in_hole), "clock", in_hole, "none")
        return rows


def fused_name(nic: str) -> str:
    """Return the name that NCCL's log gives the device which a NIC is a part of.

    >>> fused_name("eth3")
    'eth2,eth3'
    """
    first = int(nic.removeprefix("eth")) // 2 * 2
    return f"eth{first},eth{first + 1}"


def _fuse(rows: pa.Table) -> pa.Table:
    names = rows["nic"].combine_chunks().dictionary_encode()
    fused = pa.array([name and fused_name(name) for name in names.dictionary.to_pylist()], pa.string())
    return rows.set_column(rows.column_names.index("nic"), "nic", fused.take(names.indices).cast(rows["nic"].type))


def _seconds(rows: pa.Table, column: str | None, start_ns: int) -> Numbers:
    """Return when rows were made, in seconds of the scenario; at its beginning, where nobody says."""
    if column is None or column not in rows.column_names:
        return np.zeros(rows.num_rows)
    return (np.asarray(pc.fill_null(rows[column].cast(pa.int64()), start_ns)) - start_ns) / NS_PER_S


def _replace(rows: pa.Table, column: str, where: Numbers, value: object) -> pa.Table:
    kind = rows[column].type
    changed = pc.if_else(pa.array(where), pa.scalar(value, kind), rows[column].combine_chunks())
    return rows.set_column(rows.column_names.index(column), rows.schema.field(column), changed)


def _forget(rows: pa.Table, column: str, where: Numbers) -> pa.Table:
    return _replace(rows, column, where, None)


def _codes(names: Numbers) -> Numbers:
    known = {name: zlib.crc32(str(name).encode()) for name in set(names.tolist())}
    return np.array([known[name] for name in names.tolist()], np.int64)


def _chance(seed: int, name: str, *numbers: Numbers) -> Numbers:
    """Return a number from 0 to 1 for each row, as good as random and the same for the same numbers (splitmix64)."""
    mixed = np.full(len(numbers[0]), seed ^ zlib.crc32(name.encode()), np.uint64)
    with np.errstate(over="ignore"):
        for number in numbers:
            mixed = (mixed ^ np.asarray(number, np.float64).view(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
    return mixed.astype(np.float64) / 2.0**64
