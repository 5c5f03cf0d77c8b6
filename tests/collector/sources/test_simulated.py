"""A scenario's hosts get their own rows, all of them, each once, whoever asks first."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

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
        hosts=4, gpus_per_host=2, nics_per_host=2, hosts_per_leaf=2, spines=2, nic_gbps=100.0, transport="ib"
    ),
    job=JobShape(compute_ms=50.0, allreduce_mb=(64,)),
)
SEED = 3


def telemetry() -> SimulatedTelemetry:
    return SimulatedTelemetry(Simulation(SCENARIO, SEED), Identity(job="j1", start_ns=T0))


def all_rows(until_ns: int) -> dict[str, pa.Table]:
    return {name: sorted_rows(rows) for name, rows in telemetry().advance(until_ns).items()}


def sorted_rows(rows: pa.Table) -> pa.Table:
    keys = [name for name in rows.column_names if rows.schema.field(name).type != pa.map_(pa.string(), pa.uint64())]
    return rows.sort_by([(key, "ascending") for key in keys]).combine_chunks()


def gather(readings: list[dict[str, pa.Table]]) -> dict[str, pa.Table]:
    names = {name for tables in readings for name in tables}
    return {
        name: sorted_rows(pa.concat_tables([tables[name] for tables in readings if name in tables])) for name in names
    }


def test_hosts_are_those_of_the_scenario() -> None:
    assert SimulatedCluster(telemetry()).hosts == ["h0", "h1", "h2", "h3"]


def test_host_gets_its_own_rows_and_no_others() -> None:
    cluster = SimulatedCluster(telemetry())
    tables = SimulatedSource(cluster, "h2").read(T0 + 2 * SECOND, ()).tables
    assert {"collectives", "transfers", "op_stats", "transfer_stats", "comms"} <= set(tables)
    assert {host for rows in tables.values() for host in rows["host"].to_pylist()} == {"h2"}


@pytest.mark.parametrize("order", [["h0", "h1", "h2", "h3"], ["h3", "h1", "h0", "h2"]])
def test_all_rows_are_handed_out_exactly_once_in_any_order_of_asking(order: list[str]) -> None:
    cluster = SimulatedCluster(telemetry())
    moments = [T0 + tenth * SECOND // 10 for tenth in (3, 7, 12, 20)]
    readings = [dict(cluster.read_host(host, moment).tables) for moment in moments for host in order]
    # The last ones asked have not seen what the first ones moved on to, so everybody is asked once more.
    readings += [dict(cluster.read_host(host, moments[-1]).tables) for host in order]
    assert gather(readings) == gather([all_rows(moments[-1])])


def test_host_that_is_asked_late_gets_all_it_missed() -> None:
    cluster = SimulatedCluster(telemetry())
    for tenth in range(1, 20):
        cluster.read_host("h0", T0 + tenth * SECOND // 10)
    late = cluster.read_host("h1", T0 + 2 * SECOND).tables
    whole = all_rows(T0 + 2 * SECOND)["collectives"].to_pylist()
    assert late["collectives"].num_rows == sum(row["host"] == "h1" for row in whole)


def test_host_that_is_asked_again_at_the_same_time_has_nothing_new() -> None:
    cluster = SimulatedCluster(telemetry())
    first = cluster.read_host("h0", T0 + SECOND)
    again = cluster.read_host("h0", T0 + SECOND)
    assert again.tables == {}
    assert again.watermark_ns == first.watermark_ns


def test_watermark_is_not_passed_by_rows_that_come_later() -> None:
    cluster = SimulatedCluster(telemetry())
    first = cluster.read_host("h0", T0 + 2 * SECOND)
    assert first.watermark_ns >= T0 + SECOND
    later = cluster.read_host("h0", T0 + 4 * SECOND).tables
    assert min(later["op_stats"]["ts_ns"].to_pylist()) >= first.watermark_ns


def test_threads_that_ask_at_once_share_the_rows_without_loss() -> None:
    cluster = SimulatedCluster(telemetry())

    def follow(host: str) -> list[dict[str, pa.Table]]:
        return [dict(cluster.read_host(host, T0 + tenth * SECOND // 10).tables) for tenth in range(1, 21)]

    with ThreadPoolExecutor(len(cluster.hosts)) as pool:
        readings = [tables for reported in pool.map(follow, cluster.hosts) for tables in reported]
    readings += [dict(cluster.read_host(host, T0 + 2 * SECOND).tables) for host in cluster.hosts]
    assert gather(readings) == gather([all_rows(T0 + 2 * SECOND)])
