"""What the store adds up is what the pure functions make of the same rows."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lockstep.fabrics import leaf_spine
from lockstep.records import HostRecord, Path, Probe
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME, TABLES
from lockstep.topology import TopologyIndex
from planner.paths import reading
from planner.paths.catalogue import Circumstances
from planner.paths.demand import KEY as CONNECTION
from planner.paths.demand import SUMS, find_demand
from planner.paths.reading import read_catalogue, read_demand, read_paths, read_probes
from simulator.scenario import build_topology, find_scenario
from simulator.simulation import Simulation
from simulator.telemetry import Identity, SimulatedTelemetry
from tests.builders import SECOND, T0, rows
from tests.planner.paths.build import PORT, entry, fold_probes, lost, probe, sum_stats
from tests.planner.paths.test_demand import FABRIC, MEMBERS, facts_of, sends, wire

END = T0 + 10 * SECOND
_tokens = itertools.count()


def insert(store: Store, *records: HostRecord) -> None:
    for table in TABLES:
        mine = [record for record in records if type(record) is table.record]
        if mine:
            store.insert(table, rows(*mine), token=f"paths/{next(_tokens)}")


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


def test_flows_from_the_store_are_those_of_the_same_rows(store: Store) -> None:
    reported = [
        *MEMBERS,
        *sends(0, 1, gbps=30, nic="eth0", transport="ib", wire_ns=SECOND // 4),
        *sends(0, 1, gbps=10, nic="eth0", transport="ib", wire_ns=SECOND // 4, func="Broadcast"),
        *sends(1, 0, gbps=40, nic="eth1", direction="recv"),
        *sends(2, 3, gbps=50, seconds=3, nic=None),
        *sends(2, 3, gbps=50, seconds=3, nic=None, func="Broadcast"),
        *sends(3, 2, gbps=50, nic="eth0", seconds=4),
        *sends(3, 2, gbps=50, nic="eth1")[4:],
        *sends(2, -1, gbps=50),
        wire(0, 1, nic="eth0", lqpn=4, sport=50_000),
        wire(0, 1, nic="eth0", lqpn=5, sport=50_001),
        wire(1, 0, nic="eth1", direction="recv"),
    ]
    insert(store, *reported)
    found = find_demand(read_demand(store, FABRIC, T0, END))
    assert found == find_demand(facts_of(*reported))
    assert [(flow.src, flow.dst) for flow in found.flows] == [
        ("h0/eth0", "h1/eth1"),
        ("h0/eth0", "h1/eth1"),
        ("h2", "h3"),
        ("h3/eth1", "h2"),
    ]
    assert found.flows[2].duty == pytest.approx(0.3)


def test_only_seconds_of_the_window_count_and_of_jobs_that_send_nothing_nothing_is_read(
    embedded_store: Store,
) -> None:
    insert(embedded_store, *MEMBERS, wire(0, 1))
    facts = read_demand(embedded_store, FABRIC, T0, END)
    assert (facts.members.num_rows, facts.connections.num_rows, facts.sums.num_rows) == (0, 0, 0)
    assert find_demand(facts).flows == []
    insert(embedded_store, *sends(0, 1, gbps=40))
    (flow,) = find_demand(read_demand(embedded_store, FABRIC, T0 + 5 * SECOND, END + 5 * SECOND)).flows
    assert flow.gbps * flow.duty == pytest.approx(20.0)


def test_with_too_many_sends_the_largest_are_kept_and_it_is_said(
    embedded_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_SENDS", 1)
    insert(embedded_store, *MEMBERS, *sends(0, 1, gbps=40), *sends(2, 3, gbps=41))
    found = find_demand(read_demand(embedded_store, FABRIC, T0, END))
    assert [flow.src for flow in found.flows] == ["h2"]
    assert found.left_out[0].startswith("more than 1 ends of connections")


def test_a_simulated_job_is_found_through_the_store(embedded_store: Store) -> None:
    scenario = find_scenario("nic-both-healthy-ib")
    telemetry = SimulatedTelemetry(Simulation(scenario, seed=3), Identity("train", T0))
    reported = telemetry.advance(T0 + 5 * SECOND)
    for name in ("comms", "connections", "transfer_stats"):
        embedded_store.insert(TABLE_BY_NAME[name], reported[name], token=f"paths/{next(_tokens)}")
    end_ns = telemetry.watermark_ns
    facts = read_demand(embedded_store, TopologyIndex(build_topology(scenario.cluster)), T0, end_ns)
    names = [*CONNECTION, *SUMS]
    assert in_order(facts.sums.select(names)) == in_order(
        sum_stats(reported["transfer_stats"], T0, end_ns).select(names)
    )
    assert len(find_demand(facts).flows) == reported["connections"].num_rows // 2


def test_probes_fold_in_the_store_as_they_do_outside(embedded_store: Store) -> None:
    """Ports are lost, move, come back and fall silent, all at different times."""
    rng = np.random.default_rng(1)
    rtts = [int(value) if value > 30 else None for value in rng.integers(0, 100, 180)]
    paths = rng.choice(["spine0", "spine0", "spine0", "spine1", "*"], 180).tolist()
    ports = (PORT + rng.integers(0, 18, 180)).tolist()
    probes = [
        probe(index / 20, path, sport=port, rtt_ns=rtt_ns)
        for index, (path, port, rtt_ns) in enumerate(zip(paths, ports, rtts, strict=True))
    ]
    insert(embedded_store, *probes)
    assert in_order(read_probes(embedded_store, T0, END)) == in_order(fold_probes(*probes))


_WAY = ["leaf0", "spine0", "leaf1"]
_FOLDS: dict[str, tuple[list[Probe], dict[str, Any]]] = {
    "probes that agree are counted": (
        [probe(second) for second in range(5)],
        {"route": _WAY, "agreed": 5, "differing": 0, "returned": 0, "lost": 0, "lost_since": 0}
        | {"seen_ns": T0 + 4 * SECOND, "tried_ns": T0 + 4 * SECOND},
    ),
    "a later probe contradicts all before": (
        [probe(3, "spine1"), probe(1), probe(0)],
        {"route": ["leaf0", "spine1", "leaf1"], "agreed": 1, "differing": 2},
    ),
    "losses before the route was taken do not count against it": (
        [probe(0), lost(1), lost(2), probe(3, "spine1"), lost(4), probe(5, "spine1")],
        {"agreed": 2, "lost": 1, "lost_since": 0},
    ),
    "a route that came back is told from a new one": (
        [probe(0), probe(1), probe(2, "spine1"), probe(3)],
        {"agreed": 1, "differing": 1, "returned": 2},
    ),
    "losses at the end are counted apart": (
        [lost(0), probe(1), lost(2), lost(3)],
        {"lost": 2, "lost_since": 2, "agreed": 1, "seen_ns": T0 + SECOND, "tried_ns": T0 + 3 * SECOND},
    ),
    "routes with silent hops are no routes": (
        [probe(0, "*"), probe(1, hops=[])],
        {"route": [], "agreed": 0, "seen_ns": 0, "lost_since": 0},
    ),
    "a port that never answered has the route that was lost": (
        [lost(0), lost(1)],
        {"route": _WAY, "agreed": 0, "lost": 2, "lost_since": 2, "seen_ns": 0, "tried_ns": T0 + SECOND},
    ),
    "an answer tells more of the route than a later loss": ([probe(0), lost(1, via="spine1")], {"route": _WAY}),
}


def test_probes_of_a_port_fold_into_its_newest_route_and_how_well_that_is_borne_out(embedded_store: Store) -> None:
    for number, (probes, _) in enumerate(_FOLDS.values()):
        insert(embedded_store, *(replace(each, sport=PORT + number) for each in probes))
    folded = {row["sport"] - PORT: row for row in read_probes(embedded_store, T0, END).to_pylist()}
    for number, (name, (_, expected)) in enumerate(_FOLDS.items()):
        assert {key: folded[number][key] for key in expected} == expected, name


def test_ports_destinations_and_protocols_are_kept_apart(embedded_store: Store) -> None:
    insert(embedded_store, probe(), probe(sport=PORT + 1), probe(proto="tcp"), probe(dst="h3"), probe(1), lost(20))
    assert sorted(read_probes(embedded_store, T0, END)["agreed"].to_pylist()) == [1, 1, 1, 2]
    earlier = read_probes(embedded_store, T0, T0 + SECOND).to_pylist()
    assert {(row["agreed"], row["lost"], row["tried_ns"]) for row in earlier} == {(1, 0, T0)}


def test_the_newest_row_of_a_path_is_read(embedded_store: Store) -> None:
    newer = entry("spine1", seen_ns=T0 + 1, dst=None, dst_nic="h2/eth0")
    insert(embedded_store, entry(), newer, entry(sport=PORT + 1, seen_ns=T0 - 1))
    (row,) = read_paths(embedded_store, T0, END).to_pylist()
    assert Path(**row) == entry("spine1", seen_ns=T0 + 1)


def test_the_catalogue_is_made_of_paths_and_probes(embedded_store: Store) -> None:
    topology = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)
    empty = read_catalogue(embedded_store, Circumstances(topology, END))
    assert (empty.paths, empty.left_out) == ((), ())
    insert(embedded_store, entry(), entry(sport=PORT + 1), probe(1, "spine1"), probe(2, sport=PORT + 2))
    insert(embedded_store, *(lost(3 + index, sport=PORT + 2) for index in range(3)))
    found = read_catalogue(embedded_store, Circumstances(topology, END))
    assert [(path.sport, path.links[1]) for path in found.paths] == [
        (PORT, "leaf0--spine1"),
        (PORT + 1, "leaf0--spine0"),
    ]
    assert [(each.path.sport, each.why) for each in found.left_out] == [(PORT + 2, "dead")]
