"""A scenario's hosts get their own rows, all of them, each once, whoever asks first."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pyarrow as pa

from collector.sources.simulated import SimulatedCluster, SimulatedSource
from simulator.scenario import ClusterShape, JobShape, Scenario
from simulator.simulation import Simulation
from simulator.telemetry import Identity, SimulatedTelemetry
from tests.builders import SECOND, T0

SCENARIO = Scenario(
    name="small",
    summary="four hosts, nothing breaks",
    duration_s=5,
    cluster=ClusterShape(
        hosts=4, gpus_per_host=1, nics_per_host=1, hosts_per_leaf=2, spines=2, nic_gbps=100.0, transport="ib"
    ),
    job=JobShape(compute_ms=200.0, allreduce_mb=(64,)),
)
SEED = 3


def telemetry() -> SimulatedTelemetry:
    return SimulatedTelemetry(Simulation(SCENARIO, SEED), Identity(job="j1", start_ns=T0))


@cache
def all_rows() -> dict[str, pa.Table]:
    return {name: sorted_rows(rows) for name, rows in telemetry().advance(T0 + 2 * SECOND).items()}


def sorted_rows(rows: pa.Table) -> pa.Table:
    keys = [name for name in rows.column_names if rows.schema.field(name).type != pa.map_(pa.string(), pa.uint64())]
    return rows.sort_by([(key, "ascending") for key in keys]).combine_chunks()


def gather(readings: list[dict[str, pa.Table]]) -> dict[str, pa.Table]:
    names = {name for tables in readings for name in tables}
    return {
        name: sorted_rows(pa.concat_tables([tables[name] for tables in readings if name in tables])) for name in names
    }


def test_host_gets_its_own_rows_once_and_none_before_its_watermark() -> None:
    cluster = SimulatedCluster(telemetry())
    assert cluster.hosts == ["h0", "h1", "h2", "h3"]
    source = SimulatedSource(cluster, "h2")
    first, again = source.read(T0 + 2 * SECOND, ()), source.read(T0 + 2 * SECOND, ())
    assert {"collectives", "transfers", "op_stats", "transfer_stats", "comms"} <= set(first.tables)
    assert {host for rows in first.tables.values() for host in rows["host"].to_pylist()} == {"h2"}
    assert (again.tables, again.watermark_ns) == ({}, first.watermark_ns)
    assert first.watermark_ns >= T0 + SECOND
    later = cluster.read_host("h2", T0 + 4 * SECOND).tables
    assert min(later["op_stats"]["ts_ns"].to_pylist()) >= first.watermark_ns


def test_threads_that_ask_in_any_order_get_all_rows_exactly_once() -> None:
    cluster = SimulatedCluster(telemetry())

    def follow(host: str) -> list[dict[str, pa.Table]]:
        return [dict(cluster.read_host(host, T0 + quarter * SECOND // 4).tables) for quarter in range(1, 9)]

    with ThreadPoolExecutor(len(cluster.hosts)) as pool:
        readings = [tables for reported in pool.map(follow, cluster.hosts) for tables in reported]
    readings += [dict(cluster.read_host(host, T0 + 2 * SECOND).tables) for host in cluster.hosts]
    assert gather(readings) == all_rows()
