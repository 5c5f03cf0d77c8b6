"""What the store adds up is what the pure functions make of the same rows."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lockstep.fabrics import leaf_spine
from lockstep.records import FabricCounter, HostRecord, NicCounter, Path, Probe
from lockstep.sim.library import find_story
from lockstep.sim.simulation import Simulation
from lockstep.sim.story import build_topology
from lockstep.sim.telemetry import Identity, SimulatedTelemetry
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME, TABLES
from lockstep.topology import TopologyIndex
from planner.paths import reading
from planner.paths.catalogue import Circumstances
from planner.paths.demand import find_demand
from planner.paths.health import LinkHealth, Parts, judge_ports
from planner.paths.reading import read_catalogue, read_demand, read_paths, read_ports, read_probes
from planner.paths.routes import fold_probes
from planner.paths.wiring import KEY as CONNECTION
from planner.paths.wiring import SUMS, sum_stats
from tests.builders import SECOND, T0, make, rows
from tests.planner.paths.probed import PORT, entry, lost, packets, probe
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
    told = [
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
    insert(store, *told)
    found = find_demand(read_demand(store, FABRIC, T0, END))
    assert found == find_demand(facts_of(*told))
    assert [(flow.src, flow.dst) for flow in found.flows] == [
        ("h0/eth0", "h1/eth1"),
        ("h0/eth0", "h1/eth1"),
        ("h2", "h3"),
        ("h3/eth1", "h2"),
    ]
    assert found.flows[2].duty == pytest.approx(0.3)


def test_only_seconds_of_the_window_count(embedded_store: Store) -> None:
    insert(embedded_store, *MEMBERS, *sends(0, 1, gbps=40))
    (flow,) = find_demand(read_demand(embedded_store, FABRIC, T0 + 5 * SECOND, END + 5 * SECOND)).flows
    assert flow.gbps * flow.duty == pytest.approx(20.0)


def test_of_jobs_that_send_nothing_nothing_is_read(embedded_store: Store) -> None:
    insert(embedded_store, *MEMBERS, wire(0, 1))
    facts = read_demand(embedded_store, FABRIC, T0, END)
    assert (facts.members.num_rows, facts.connections.num_rows, facts.sums.num_rows) == (0, 0, 0)
    assert find_demand(facts).flows == []


def test_with_too_many_sends_the_largest_are_kept_and_it_is_said(
    embedded_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_SENDS", 1)
    insert(embedded_store, *MEMBERS, *sends(0, 1, gbps=40), *sends(2, 3, gbps=41))
    found = find_demand(read_demand(embedded_store, FABRIC, T0, END))
    assert [flow.src for flow in found.flows] == ["h2"]
    assert found.left_out[0].startswith("more than 1 ends of connections")


def test_a_simulated_job_is_found_through_the_store(embedded_store: Store) -> None:
    story = find_story("nic-both-healthy-ib")
    telemetry = SimulatedTelemetry(Simulation(story, seed=3), Identity("train", T0))
    told = telemetry.advance(T0 + 5 * SECOND)
    for name in ("comms", "connections", "transfer_stats"):
        embedded_store.insert(TABLE_BY_NAME[name], told[name], token=f"paths/{next(_tokens)}")
    end_ns = telemetry.watermark_ns
    facts = read_demand(embedded_store, TopologyIndex(build_topology(story.cluster)), T0, end_ns)
    names = [*CONNECTION, *SUMS]
    assert in_order(facts.sums.select(names)) == in_order(sum_stats(told["transfer_stats"], T0, end_ns).select(names))
    assert len(find_demand(facts).flows) == told["connections"].num_rows // 2


def some_probes(seed: int) -> list[Probe]:
    """Return probes of a few ports that are lost, move, come back and fall silent, all at different moments."""
    rng = np.random.default_rng(seed)
    ways = ["spine0", "spine0", "spine0", "spine1", "*"]
    return [
        probe(place / 7, str(rng.choice(ways)), sport=PORT + int(rng.integers(6)), rtt_ns=rtt_ns)
        for place, rtt_ns in enumerate(int(value) if value > 30 else None for value in rng.integers(0, 100, 60))
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_probes_fold_in_the_store_as_they_do_outside(embedded_store: Store, seed: int) -> None:
    probes = some_probes(seed)
    insert(embedded_store, *probes)
    assert in_order(read_probes(embedded_store, T0, END)) == in_order(fold_probes(packets(*probes)))


def test_probes_outside_the_window_are_not_read(embedded_store: Store) -> None:
    insert(embedded_store, probe(0), probe(1, "spine1"), lost(20))
    (row,) = read_probes(embedded_store, T0, T0 + SECOND).to_pylist()
    assert (row["agreed"], row["lost"], row["tried_ns"]) == (1, 0, T0)


def test_the_newest_row_of_a_path_is_read(embedded_store: Store) -> None:
    newer = entry("spine1", seen_ns=T0 + 1, dst=None, dst_nic="h2/eth0")
    insert(embedded_store, entry(), newer, entry(sport=PORT + 1, seen_ns=T0 - 1))
    (row,) = read_paths(embedded_store, T0, END).to_pylist()
    assert Path(**row) == entry("spine1", seen_ns=T0 + 1)


def test_the_catalogue_is_made_of_paths_and_probes(embedded_store: Store) -> None:
    topology = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)
    insert(embedded_store, entry(), entry(sport=PORT + 1), probe(1, "spine1"), probe(2, sport=PORT + 2))
    insert(embedded_store, *(lost(3 + place, sport=PORT + 2) for place in range(3)))
    found = read_catalogue(embedded_store, Circumstances(topology, END))
    assert [(path.sport, path.links[1]) for path in found.paths] == [
        (PORT, "leaf0--spine1"),
        (PORT + 1, "leaf0--spine0"),
    ]
    assert [(each.path.sport, each.why) for each in found.left_out] == [(PORT + 2, "dead")]


def test_an_empty_store_gives_an_empty_catalogue(embedded_store: Store) -> None:
    topology = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)
    found = read_catalogue(embedded_store, Circumstances(topology, END))
    assert (found.paths, found.left_out) == ((), ())


def port(switch: str, name: str, **fields: Any) -> FabricCounter:
    usual: dict[str, Any] = {
        "host": "h0",
        "ts_ns": T0,
        "up": True,
        "speed_mbps": 400_000,
        "rx_bytes": 0,
        "tx_bytes": 0,
    }
    usual |= dict.fromkeys(("errors", "drops", "pause_rx", "pause_tx", "fec_uncorrected")) | {"extra": {}}
    return FabricCounter(**{**usual, "switch": switch, "port": name, **fields})


def test_ports_are_read_with_their_state_and_what_they_received(embedded_store: Store) -> None:
    later: dict[str, Any] = {"ts_ns": T0 + SECOND}
    insert(
        embedded_store,
        make(NicCounter, nic="eth0"),
        make(NicCounter, nic="eth0", up=False, speed_mbps=None, **later),
        port("leaf0", "spine0", errors=5),
        port("leaf0", "spine0", errors=15, rx_bytes=1280 * 4096, **later),
        port("leaf0", "spine1"),
    )
    ports = read_ports(embedded_store, T0, END)
    topology = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)
    told = judge_ports(ports, Parts(topology), LinkHealth())
    assert {each.link: (each.weight, each.ts_ns) for each in told} == {
        "h0/eth0--leaf0": (0.0, T0 + SECOND),
        "leaf0--spine0": (0.5, T0 + SECOND),
    }
