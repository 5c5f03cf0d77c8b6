"""What the surroundings of a story tell while it runs, second after second."""

from typing import Any

import numpy as np
import pyarrow as pa

from lockstep.clock import NS_PER_S
from lockstep.sim.operations import Operation
from lockstep.sim.simulation import Simulation
from lockstep.sim.story import Story
from lockstep.sim.surroundings import Surroundings
from tests.builders import T0

Tables = dict[str, pa.Table]
Row = dict[str, Any]


def follow(told: Story, seconds: int, seed: int = 1) -> Tables:
    """Return all rows of a story's first seconds."""
    return follow_all(told, seconds, seed)[0]


def follow_all(told: Story, seconds: int, seed: int = 1) -> tuple[Tables, list[Operation]]:
    """Return all rows of a story's first seconds, and the operations that they come from."""
    simulation = Simulation(told, seed)
    surroundings = Surroundings(simulation, T0)
    operations: list[Operation] = []
    pieces: list[Tables] = []
    for second in range(seconds + 1):
        for operation in simulation.run_until(second * NS_PER_S):
            surroundings.note(operation)
            operations.append(operation)
        pieces.append(surroundings.until(second * NS_PER_S))
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {name: pa.concat_tables([piece[name] for piece in pieces if name in piece]) for name in names}, operations


def rows_at(tables: Tables, name: str, second: int) -> list[Row]:
    """Return the rows of a reading; maps become dictionaries."""
    rows = [row for row in tables[name].to_pylist() if row["ts_ns"] == T0 + second * NS_PER_S]
    return [row | {"extra": dict(row["extra"])} if "extra" in row else row for row in rows]


def nics_with(tables: Tables, column: str, second: int) -> dict[str, int]:
    """Return the NICs that have counted something in a column, or under a name of `extra`, and how much."""
    found = {}
    for row in rows_at(tables, "nic_counters", second):
        count = row[column] if column in row else row["extra"].get(column, 0)
        if count:
            found[f"{row['host']}/{row['nic']}"] = count
    return found


def ports_with(tables: Tables, column: str, second: int) -> dict[str, int]:
    """Return the ports of switches that have counted something in a column, and how much."""
    rows = rows_at(tables, "fabric_counters", second)
    return {f"{row['switch']}:{row['port']}": row[column] for row in rows if row[column]}


def moved_bytes(operations: list[Operation], until_s: float) -> int:
    """Return the bytes of all transfers between hosts that ended before a moment."""
    moved = [operation.transfers for operation in operations if "send" in operation.sides]
    return int(sum(np.sum(each.bytes[each.send_last < until_s * NS_PER_S]) for each in moved if each is not None))
