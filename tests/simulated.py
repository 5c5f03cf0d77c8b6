"""Scenarios told once and kept: the rows that the hosts of a simulated cluster send, one delivery after the other."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from lockstep.records import Step
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from simulator.scenario import Scenario
from simulator.simulation import Simulation
from simulator.telemetry import Identity, Rows, SimulatedTelemetry
from tests.builders import SECOND, T0

JOB = "train"


@dataclass(frozen=True)
class Delivery:
    """What became complete since the delivery before, and up to when everything is."""

    rows: Rows
    watermark_ns: int


@lru_cache(maxsize=8)  # small scenarios are told many times; a large one takes tens of megabytes
def tell(scenario: Scenario, seed: int, every_s: int) -> tuple[Delivery, ...]:
    """Return a scenario that begins at T0, to its end, in deliveries of so many seconds; it is simulated once."""
    telemetry = SimulatedTelemetry(Simulation(scenario, seed), Identity(JOB, T0))
    timestamps = range(T0 + every_s * SECOND, T0 + int(scenario.duration_s) * SECOND + 1, every_s * SECOND)
    return tuple(Delivery(telemetry.advance(timestamp), telemetry.watermark_ns) for timestamp in timestamps)


def load(store: Store, deliveries: Iterable[Delivery]) -> None:
    """Put all rows of some deliveries into a store."""
    parts: dict[str, list[pa.Table]] = {}
    for delivery in deliveries:
        for name, rows in delivery.rows.items():
            parts.setdefault(name, []).append(rows)
    for name, tables in parts.items():
        store.insert(TABLE_BY_NAME[name], pa.concat_tables(tables), token=f"scenario/{name}")


def told_step(number: int, start_s: float, length_s: float) -> Step:
    """Return a step of rank 0 that the job itself told."""
    start_ns = T0 + int(start_s * SECOND)
    return Step(
        host="h0",
        job=JOB,
        attempt=0,
        world_rank=0,
        step=number,
        start_ns=start_ns,
        end_ns=start_ns + int(length_s * SECOND),
        source="told",
    )
