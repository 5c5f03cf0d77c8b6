"""How large a store a fleet needs: rows, disks and shards, by what was measured of a busy host of eight GPUs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lockstep.store.maintenance import DEFAULT_RETENTION_DAYS


class Measured(NamedTuple):
    """What one host adds to a table; rows as they are stored, bytes after merges."""

    rows_per_s: float
    bytes_per_row: float


# Rows of benchmarks/fleet_rows.py: 80 hosts (72 of dense jobs, 8 of one with EP64) for 60 s, engine 26.9, merged.
# Together 12.0 bytes a row that was sent; `bench fleet` has 12.3 (benchmarks/results.md, "A fleet against one head
# node"). Tables that are not here take next to nothing; where `LOCKSTEP_SAMPLE` asks for more, transfers take more.
PER_HOST: dict[str, Measured] = {
    "agents": Measured(1.0, 13.2),
    "collectives": Measured(23.0, 12.9),
    "gpu_health": Measured(8.0, 9.5),
    "nic_counters": Measured(8.0, 33.8),
    "op_stats": Measured(56.0, 12.1),
    "operations": Measured(9.9, 21.1),
    "progress": Measured(86.4, 13.4),
    "rank_minutes": Measured(1.9, 17.0),
    "transfer_stats": Measured(355.2, 10.0),
    "transfers": Measured(32.0, 16.6),
    "wire_minutes": Measured(5.8, 7.5),
}
# `bench fleet`, 512 agents: the store took 1.08 cores for 277,408 rows/s, merges included (benchmarks/results.md).
_ROWS_PER_CORE_S = 256_000
_SHARE_FOR_INSERTS = 0.5  # of the cores; the analyzer and people read with the rest
_FULL = 0.7  # of a disk: merges need room, and self-watch complains at 0.9
_S_PER_DAY = 86_400


@dataclass(frozen=True)
class Machine:
    """What one node of the store has, and how many nodes hold the same rows."""

    disk_tb: float = 8.0
    cores: int = 16
    replicas: int = 2


@dataclass(frozen=True)
class TablePlan:
    """One table of the whole fleet."""

    table: str
    kept_days: int
    rows_per_s: float
    rows: float
    bytes: float


@dataclass(frozen=True)
class StorePlan:
    """The store of a fleet after so many days; bytes are those of one replica."""

    hosts: int
    days: int
    tables: tuple[TablePlan, ...]
    shards: int
    nodes: int
    disk_tb: float  # of each node, that is in use

    @property
    def rows_per_s(self) -> float:
        return sum(table.rows_per_s for table in self.tables)

    @property
    def rows(self) -> float:
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> float:
        return sum(table.bytes for table in self.tables)


def plan_store(hosts: int, days: int, retention_days: Mapping[str, int], machine: Machine) -> StorePlan:
    """Return what a fleet fills in so many days, when tables keep their rows as long as the settings say.

    >>> plan = plan_store(1250, 30, {}, Machine())
    >>> plan.shards, plan.nodes, round(plan.bytes / 1e12, 1)
    (3, 6, 16.4)
    """
    kept = DEFAULT_RETENTION_DAYS | dict(retention_days)
    tables = tuple(
        _plan_table(name, hosts, min(kept[name] or days, days), measured) for name, measured in PER_HOST.items()
    )
    size = sum(table.bytes for table in tables)
    by_disk = size / (machine.disk_tb * 1e12 * _FULL)
    rows_per_s = sum(table.rows_per_s for table in tables)
    by_cores = rows_per_s / (machine.cores * _SHARE_FOR_INSERTS * _ROWS_PER_CORE_S)
    shards = max(1, math.ceil(max(by_disk, by_cores)))
    return StorePlan(hosts, days, tables, shards, shards * machine.replicas, size / shards / 1e12)


def _plan_table(name: str, hosts: int, kept_days: int, measured: Measured) -> TablePlan:
    rows_per_s = hosts * measured.rows_per_s
    rows = rows_per_s * kept_days * _S_PER_DAY
    return TablePlan(name, kept_days, rows_per_s, rows, rows * measured.bytes_per_row)
