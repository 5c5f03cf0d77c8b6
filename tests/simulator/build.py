"""Small clusters and scenarios for tests of the simulator; without noise unless a test asks for it."""

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from lockstep.clock import NS_PER_S
from simulator.collectives import Kernels, run_ring
from simulator.devices import DeviceTelemetry
from simulator.faults import Fault, parse_fault
from simulator.operations import Operation, Transfers
from simulator.pairs import NEVER, Edges, Outage
from simulator.scenario import ClusterShape, Doing, JobShape, Layout, Noise, Scenario
from simulator.simulation import Simulation
from tests.builders import T0

SILENCE = Noise(compute=0.0, transfer=0.0, enqueue_us=0.0)


def cluster(**fields: Any) -> ClusterShape:
    """Return four hosts with four GPUs and two NICs each, on two leaves, unless told otherwise."""
    usual = {"hosts": 4, "gpus_per_host": 4, "nics_per_host": 2, "hosts_per_leaf": 2, "spines": 2, "nic_gbps": 100.0}
    return ClusterShape.model_validate(usual | fields)


def scenario(*timeline: Fault | str, noise: Noise = SILENCE, **fields: Any) -> Scenario:
    """Return a scenario on the usual cluster: 50 ms of compute, then two all-reduces; lines are parsed."""
    usual = {
        "name": "test",
        "summary": "for a test",
        "duration_s": 10.0,
        "cluster": cluster(),
        "job": JobShape(compute_ms=50.0, allreduce_mb=(64, 32)),
    }
    faults = tuple(parse_fault(fault) if isinstance(fault, str) else fault for fault in timeline)
    return Scenario(**usual | {"timeline": faults, "noise": noise} | fields)


def slow(part: str, rate: float, at_s: float = 0.0, **fields: Any) -> Fault:
    """Return a fault after which a part has a share of its rate."""
    return Fault(at_s=at_s, effect="rate", part=part, amount=rate, **fields)


Tables = dict[str, pa.Table]
Row = dict[str, Any]


def follow(told: Scenario, seconds: int, seed: int = 1) -> Tables:
    """Return all rows of a scenario's first seconds."""
    return follow_all(told, seconds, seed)[0]


@lru_cache(maxsize=24)  # the healthy ones are compared with many times
def follow_all(told: Scenario, seconds: int, seed: int = 1) -> tuple[Tables, list[Operation]]:
    """Return all rows of a scenario's first seconds, and the operations that they come from."""
    simulation = Simulation(told, seed)
    devices = DeviceTelemetry(simulation, T0)
    operations: list[Operation] = []
    pieces: list[Tables] = []
    for second in range(seconds + 1):
        for operation in simulation.run_until(second * NS_PER_S):
            devices.note(operation)
            operations.append(operation)
        pieces.append(devices.until(second * NS_PER_S))
    return joined(pieces), operations


def joined(pieces: list[Tables]) -> Tables:
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {name: pa.concat_tables([piece[name] for piece in pieces if name in piece]) for name in names}


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


LINE = cluster(hosts=8, gpus_per_host=1, nics_per_host=1, hosts_per_leaf=4)  # a ring of eight hosts
TENSOR_THEN_DATA = JobShape(
    layout=Layout(tp=4),
    step=(
        Doing(do="compute", ms=50.0),
        Doing(do="AllReduce", mb=8, group="tp"),
        Doing(do="ReduceScatter", mb=8, group="dp"),
    ),
)


def uniform(
    indices: int, has_credits: bool = True, socket_steps: int = 0, step_ns: float = 100.0, latency_ns: float = 1.0
) -> Edges:
    """Return a ring in which every wire takes as long."""
    zero = np.zeros((1, indices))
    return Edges(zero + step_ns, zero + latency_ns, zero, zero, has_credits, socket_steps)


def started(edges: Edges) -> Kernels:
    return Kernels(np.zeros_like(edges.step_ns))


def head_states(edges: Edges, kernels: Kernels, steps: int) -> tuple[list[int], list[int]]:
    """Return in which state each index's sending and receiving side stands for good; 0: it does not."""
    pairs, _ = run_ring(edges, kernels, steps)
    return pairs.send_state[0].tolist(), np.roll(pairs.recv_state[0], 1).tolist()


def replaced(edges: Edges, **fields: object) -> Edges:
    return Edges(**vars(edges) | fields)


def outage(size: int, index: int, begin: float, end: float = NEVER) -> Outage:
    """Return an outage of one index of a ring."""
    out = Outage(np.full((1, size), NEVER), np.full((1, size), NEVER))
    out.begin[0, index], out.end[0, index] = begin, end
    return out


def moved_by(operation: Operation) -> Transfers:
    """Return the transfers between hosts of an operation that has some."""
    assert operation.transfers is not None
    return operation.transfers
