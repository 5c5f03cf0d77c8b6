"""The same scenario told otherwise: names changed, rows left out, doubled or shuffled, times stretched."""

import random
import re
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.diagnosis import diagnose
from analyzer.pipeline import FollowOptions
from lockstep.store.migrations import Layout, migrate
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import Topology, TopologyIndex
from lockstep.verdict import Verdict
from simulator.scenario import Scenario, build_topology
from tests.builders import T0
from tests.fixtures.stores import SharedEngine
from tests.simulated import tell

Rows = Mapping[str, pa.Table]
_HOST = re.compile(r"\bh(\d+)\b")


def rows_of(scenario: Scenario, seed: int) -> Rows:
    """Return all rows of a scenario, table by table."""
    (delivery,) = tell(scenario, seed, every_s=int(scenario.duration_s))
    return delivery.rows


def verdicts(engine: SharedEngine, rows: Rows, topology: Topology | None) -> list[Verdict]:
    """Return what the analyzer says of some rows, in a store of their own."""
    with engine.open_store() as store:
        migrate(store, Layout(store.database), now_ns=1)
        for name, table in rows.items():
            store.insert(TABLE_BY_NAME[name], table, token=f"retold/{name}")
        index = TopologyIndex(topology) if topology else None
        incidents = diagnose(store, index, FollowOptions())
        store.command(f"DROP DATABASE IF EXISTS {store.database} SYNC")
    return [incident.verdict for incident in incidents]


def renamer(seed: int, hosts: int) -> Callable[[str], str]:
    """Return a function that gives every host of a text another name, the same one each time."""
    numbers = random.Random(seed).sample(range(1_000), hosts)
    return lambda text: _HOST.sub(lambda match: f"node-{numbers[int(match[1])]}", text)


def renamed(rows: Rows, rename: Callable[[str], str], seed: int) -> Rows:
    """Return rows with other names for hosts and communicators, and world ranks in another order."""
    comms = np.random.default_rng(seed).integers(1, 2**63, dtype=np.uint64)
    return {name: _renamed_table(table, rename, int(comms)) for name, table in rows.items()}


def renamed_topology(scenario: Scenario, rename: Callable[[str], str]) -> Topology:
    return Topology.model_validate_json(rename(build_topology(scenario.cluster).model_dump_json()))


def thinned(rows: Rows, share: float, seed: int, tables: tuple[str, ...]) -> Rows:
    """Return rows of which a share of those tables is lost, any row as likely as the other."""
    draw = np.random.default_rng(seed)
    return {
        name: table.filter(pa.array(draw.random(table.num_rows) >= share)) if name in tables else table
        for name, table in rows.items()
    }


def shuffled_and_doubled(rows: Rows, seed: int, tables: tuple[str, ...]) -> Rows:
    """Return rows in any order, every fifth of those tables twice, as a retry without its token would leave them."""
    draw = np.random.default_rng(seed)
    return {name: _shuffled(table, draw, double=name in tables) for name, table in rows.items()}


def stretched(rows: Rows, times: int, tables: tuple[str, ...]) -> Rows:
    """Return the rows of some tables with every span and every moment since T0 so many times as long."""
    return {name: _stretched_table(table, times) for name, table in rows.items() if name in tables}


def _renamed_table(table: pa.Table, rename: Callable[[str], str], shift: int) -> pa.Table:
    for index, column in enumerate(table.schema):
        if pa.types.is_string(column.type):
            names = pa.array(
                [None if text is None else rename(text) for text in table[index].to_pylist()], pa.string()
            )
            table = table.set_column(index, column, names)
        elif column.name == "comm":
            other = [None if comm is None else comm ^ shift for comm in table[index].to_pylist()]
            table = table.set_column(index, column, pa.array(other, column.type))
    return table


def _shuffled(table: pa.Table, draw: np.random.Generator, *, double: bool) -> pa.Table:
    indexes = np.arange(table.num_rows)
    indexes = np.concatenate([indexes, indexes[::5]]) if double else indexes
    return table.take(pa.array(draw.permutation(indexes)))


def _stretched_table(table: pa.Table, times: int) -> pa.Table:
    for index, column in enumerate(table.schema):
        if column.name.endswith("_ns") and pa.types.is_int64(column.type):
            values = table[index]
            is_timestamp = pc.greater(values, T0 // 2)
            timestamp = pc.add(pc.multiply(pc.subtract(values, T0), times), T0)
            table = table.set_column(index, column, pc.if_else(is_timestamp, timestamp, pc.multiply(values, times)))
    return table
