"""Flows are what was really sent: none missed, none made up, and what cannot be told is said."""

from functools import lru_cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.arrow import schema_of
from lockstep.fabrics import dual_plane, leaf_spine
from lockstep.records import Comm, Connection, HostRecord, TransferStat
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME, TABLES
from lockstep.topology import Nic, Topology, TopologyIndex
from planner.paths import demand
from planner.paths.demand import Demand, DemandFacts, WiringBook, find_demand, read_demand
from planner.paths.flows import place_flows
from planner.paths.network import build_network
from simulator.operations import Operation
from simulator.scenario import Scenario, build_topology, find_scenario
from simulator.simulation import Simulation
from simulator.telemetry import Identity, Rows, SimulatedTelemetry
from tests.builders import SECOND, T0, make, rows
from tests.planner.paths.build import insert, sum_stats
from tests.tiers import long_except

GBIT = 125_000_000  # bytes
WINDOW_S = 10
END = T0 + WINDOW_S * SECOND
FABRIC = TopologyIndex(leaf_spine(hosts=4, nics_per_host=2, leaves=2, spines=2))  # 400 Gbit/s


def table_of(kind: type[HostRecord], records: list[HostRecord]) -> pa.Table:
    mine = [record for record in records if isinstance(record, kind)]
    table = next(table for table in TABLES if table.record is kind)
    return rows(*mine) if mine else schema_of(table).empty_table()


def facts_of(*records: HostRecord, topology: TopologyIndex = FABRIC) -> DemandFacts:
    sums = sum_stats(table_of(TransferStat, list(records)), T0, END)
    reported = list(records)
    return DemandFacts(table_of(Comm, reported), table_of(Connection, reported), sums, T0, END, topology)


def find(*records: HostRecord, **options: float) -> Demand:
    return find_demand(facts_of(*records), **options)


def member(rank: int, **fields: Any) -> Comm:
    return make(Comm, **{"host": f"h{rank}", "rank": rank, "init_ns": T0 - SECOND, **fields})


def sends(rank: int, peer: int, gbps: float = 40.0, seconds: int = WINDOW_S, **fields: Any) -> list[HostRecord]:
    """Return what a rank on the host of its number sent, so much in each of the first seconds of the window."""
    usual = {"host": f"h{rank}", "rank": rank, "peer": peer, "nic": None, "wire_ns": None, "transport": None}
    usual |= {"bytes": int(gbps * GBIT), **fields}
    return [make(TransferStat, ts_ns=T0 + second * SECOND, **usual) for second in range(seconds)]


def wire(rank: int, peer: int, **fields: Any) -> Connection:
    return make(Connection, **{"host": f"h{rank}", "rank": rank, "peer": peer, "transport": "ib", **fields})


MEMBERS = [member(rank) for rank in range(4)]


@pytest.mark.parametrize(
    ("sent", "gbps", "duty"),
    [
        ({"gbps": 100.0, "seconds": 2}, 100.0, 0.2),
        ({"gbps": 100.0, "wire_ns": SECOND // 2}, 200.0, 0.5),  # acknowledged wire time tells more
        ({"gbps": 300.0, "wire_ns": SECOND // 10, "nic": "eth0"}, 400.0, 0.75),  # as fast as its NIC
    ],
)
def test_a_flow_has_the_rate_of_the_time_in_which_it_sends(sent: dict[str, Any], gbps: float, duty: float) -> None:
    (flow,) = find(*MEMBERS, *sends(0, 1, **sent, transport="ib" if "wire_ns" in sent else None)).flows
    assert (flow.gbps, flow.duty) == pytest.approx((gbps, duty))


def test_a_young_communicator_is_measured_over_its_own_life() -> None:
    young = [member(rank, init_ns=T0 + 8 * SECOND) for rank in range(2)]
    late = [make(TransferStat, host="h0", peer=1, bytes=50 * GBIT, ts_ns=T0 + s * SECOND) for s in (8, 9)]
    (flow,) = find(*young, *late).flows
    assert flow.gbps * flow.duty == pytest.approx(50.0)


def test_each_queue_pair_is_a_flow_with_its_share() -> None:
    pairs = [wire(0, 1, nic="eth1", lqpn=7 + number, sport=50_000 + number) for number in range(4)]
    found = find(*MEMBERS, *sends(0, 1), *pairs)
    assert [flow.id for flow in found.flows] == [f"j1/7/r0-r1/c0/q{number}" for number in range(4)]
    assert {(flow.src, flow.dst, flow.gbps * flow.duty) for flow in found.flows} == {("h0/eth1", "h1", 10.0)}
    assert [found.wiring[flow.id].sport for flow in found.flows] == [50_000, 50_001, 50_002, 50_003]


def test_a_trickle_is_no_flow_and_is_counted_but_small_sends_that_are_much_together_are() -> None:
    found = find(*MEMBERS, *sends(0, 1), *sends(0, 2, gbps=1.0), *sends(0, 3, gbps=1.0))
    assert [flow.dst for flow in found.flows] == ["h1"]
    assert found.left_out == ("2 sends are no flows: together they are a trickle on their NIC",)
    many = [row for channel in range(8) for row in sends(0, 1, gbps=1.0, channel=channel)]
    assert len(find(*MEMBERS, *many, trickle_share=0.005).flows) == 6  # 2 of 400 Gbit/s


@pytest.mark.parametrize(
    ("reported", "reasons"),
    [
        (sends(0, 2, transport="nvls"), ["nvls has no peers to plan for"]),
        ([member(1, host="h0"), *sends(0, 1)], ["they stay inside a host"]),
        (sends(0, 1), ["nobody reported on which host their peer is"]),
        ([member(1, host="stranger"), *sends(0, 1)], ["the topology does not have one of their hosts"]),
        ([member(1), wire(0, 1)], []),
    ],
)
def test_what_is_no_flow_is_left_out_and_counted(reported: list[HostRecord], reasons: list[str]) -> None:
    found = find(member(0), *reported)
    assert (found.flows, found.wiring) == ([], {})
    assert found.left_out == tuple(f"1 sends are no flows: {reason}" for reason in reasons)


def test_of_a_restarted_job_only_the_newest_attempt_counts() -> None:
    again = [member(rank, attempt=1, comm=8) for rank in range(2)]
    found = find(*MEMBERS, *again, *sends(0, 1), *sends(0, 1, attempt=1, comm=8)).flows
    assert [flow.id for flow in found] == ["j1/8/r0-r1/c0/q0"]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(-1, 4), st.floats(0, 500), st.sampled_from([None, "eth0", "eth9"])),
        max_size=12,
    )
)
def test_whatever_was_told_can_be_planned(reported: list[tuple[int, int, float, str | None]]) -> None:
    stats = [
        row
        for channel, (rank, peer, gbps, nic) in enumerate(reported)
        for row in sends(rank, peer, gbps, seconds=1 + channel % 3, nic=nic, channel=channel)
    ]
    facts = facts_of(*MEMBERS, *stats)
    flows = find_demand(facts, trickle_share=0.0).flows
    place_flows(build_network(FABRIC.topology), flows)
    sent = sum(
        row.bytes for row in stats if isinstance(row, TransferStat) and 0 <= row.peer < 4 and row.peer != row.rank
    )
    assert sum(flow.gbps * flow.duty for flow in flows) == pytest.approx(sent / GBIT / WINDOW_S)


@lru_cache(maxsize=8)
def tell_beginning(scenario: Scenario, seconds: int) -> tuple[Rows, int]:
    telemetry = SimulatedTelemetry(Simulation(scenario, seed=3), Identity("train", T0))
    return telemetry.advance(T0 + seconds * SECOND), telemetry.watermark_ns


def simulate(scenario: Scenario, seconds: int, without: str = "") -> DemandFacts:
    reported, end_ns = tell_beginning(scenario, seconds)
    tables = {
        name: reported[name] if name in reported and name != without else schema_of(TABLE_BY_NAME[name]).empty_table()
        for name in ("comms", "connections", "transfer_stats")
    }
    topology = TopologyIndex(build_topology(scenario.cluster))
    sums = sum_stats(tables["transfer_stats"], T0, end_ns)
    return DemandFacts(tables["comms"], tables["connections"], sums, T0, end_ns, topology)


@lru_cache(maxsize=8)
def find_truth(scenario: Scenario, seconds: int) -> set[tuple[str, str, str]]:
    """Return connection, source and destination NIC of all that the simulator itself moved between hosts."""
    operations = Simulation(scenario, seed=3).run_until(seconds * SECOND)
    return {edge for operation in operations if "send" in operation.sides for edge in edges(operation, scenario)}


def edges(operation: Operation, scenario: Scenario) -> set[tuple[str, str, str]]:
    moved, nics = operation.transfers, scenario.cluster.nics_per_host
    if moved is None:
        return set()
    near, far = moved.seen_from("send"), moved.seen_from("recv")
    host_of = operation.comms.placement.host_of
    src = [f"h{host}/eth{nic % nics}" for host, nic in zip(host_of[near.rank], near.nic, strict=True)]
    dst = [f"h{host}/eth{nic % nics}" for host, nic in zip(host_of[far.rank], far.nic, strict=True)]
    ids = zip(operation.comms.ids[moved.group], near.index, near.peer, moved.channel, strict=True)
    names = [f"train/{int(comm):x}/r{rank}-r{peer}/c{channel}/q0" for comm, rank, peer, channel in ids]
    return set(zip(names, src, dst, strict=True))


@pytest.mark.parametrize(
    "name",
    long_except(["moe-mild-ib"], ["healthy", "nic-both-healthy-socket", "uneven-stages-mild-ib", "moe-mild-ib"]),
)
def test_the_flows_of_a_simulated_job_are_found_and_none_is_made_up(name: str) -> None:
    scenario = find_scenario(name)
    for without in ("", "connections"):
        found = find_demand(simulate(scenario, 3, without))
        assert {(flow.id, flow.src, flow.dst) for flow in found.flows} == find_truth(scenario, 3)
        assert found.left_out == ()


def test_without_any_source_for_nics_the_flows_are_those_of_the_hosts() -> None:
    scenario = find_scenario("nic-unknown-healthy-ib")
    found = {(flow.id, flow.src, flow.dst) for flow in find_demand(simulate(scenario, 3)).flows}
    assert found == {(name, src.split("/")[0], dst.split("/")[0]) for name, src, dst in find_truth(scenario, 3)}


KEY = ("j1", 0, 7, 0, 1, 0)  # rank 0 to rank 1 over channel 0
BOTH = (member(0), member(1))
PLANES = TopologyIndex(dual_plane(hosts=2, leaves_per_plane=1, spines_per_plane=1))


def book(*records: HostRecord, topology: TopologyIndex = FABRIC) -> WiringBook:
    return WiringBook(facts_of(*records, topology=topology))


def ends(*records: HostRecord, topology: TopologyIndex = FABRIC, nic: str | None = None) -> list[tuple[str, str]]:
    wires, why = book(*records, topology=topology).wire(KEY, "h0", nic, None)
    assert why == ""
    return [(each.src, each.dst) for each in wires]


def back(**fields: Any) -> Connection:
    return wire(1, 0, direction="recv", **fields)


def with_addresses(topology: Topology) -> TopologyIndex:
    """Return the fabric with the address 10.<host>.0.<nic> for each NIC."""
    nodes = []
    for number, node in enumerate(topology.nodes):
        nics = tuple(Nic(id=nic.id, address=f"10.{number}.0.{index}") for index, nic in enumerate(node.nics))
        nodes.append(node.model_copy(update={"nics": nics}))
    return TopologyIndex(topology.model_copy(update={"nodes": tuple(nodes)}))


ADDRESSED = with_addresses(leaf_spine(hosts=2, nics_per_host=2, leaves=2, spines=1))


TWO_PAIRS = [wire(0, 1, nic=f"eth{n}", lqpn=1 + n, rqpn=22 - n) for n in (0, 1)]
THEIRS = [back(nic=f"eth{n}", lqpn=21 + n) for n in (0, 1)]
BY_ADDRESS = wire(0, 1, nic=None, local="10.0.0.1", remote="10.1.0.0<49152>")


@pytest.mark.parametrize(
    ("reported", "topology", "nic", "expected"),
    [
        ([*BOTH, wire(0, 1, nic="eth1"), back(nic="eth0")], FABRIC, None, "h0/eth1 h1/eth0"),
        ([*BOTH, *sends(1, 0, direction="recv", nic="eth1")], FABRIC, "eth0", "h0/eth0 h1/eth1"),
        ([member(0), BY_ADDRESS], ADDRESSED, None, "h0/eth1 h1/eth0"),
        ([*BOTH], FABRIC, None, "h0 h1"),
        # The other queue pair is told by its number.
        ([*BOTH, *TWO_PAIRS, *THEIRS], FABRIC, None, "h0/eth0 h1/eth1 h0/eth1 h1/eth0"),
        # A fused NIC has a flow on each of its ports, left to left.
        (
            [*BOTH, wire(0, 1, nic="eth0,eth1"), back(nic="eth0,eth1")],
            PLANES,
            None,
            "h0/eth0 h1/eth0 h0/eth1 h1/eth1",
        ),
        ([*BOTH, *sends(1, 0, host="h3", direction="recv")], FABRIC, None, "h0 h3"),  # where it last sent
        ([make(Comm, host="h2", rank=1, init_ns=T0 + 5), *BOTH], FABRIC, None, "h0 h2"),  # the newest row
    ],
)
def test_ends_are_what_the_best_source_names(
    reported: list[HostRecord], topology: TopologyIndex, nic: str | None, expected: str
) -> None:
    found = ends(*reported, topology=topology, nic=nic)
    assert " ".join(" ".join(pair) for pair in found) == expected


def test_what_is_not_believed_is_counted() -> None:
    known = book(*BOTH, wire(0, 1, nic="mlx5_0"))
    (only,), _ = known.wire(KEY, "h0", None, None)
    assert only.src == "h0"
    assert list(known.remarks.values()) == [1]
    known = book(*BOTH, wire(0, 1, nic="eth0"), back(nic="eth1"), topology=PLANES)
    (only,), _ = known.wire(KEY, "h0", None, None)
    assert (only.src, only.dst) == ("h0/eth0", "h1")
    assert "planes that never meet" in next(iter(known.remarks))
    assert book(*BOTH, wire(0, 1, channel=None)).remarks == {"connections do not say whose they are": 1}


@pytest.mark.parametrize("exact", [{"sport": 50_000}, {"lqpn": 9}, {"lqpn": 9, "sport": 50_000}])
def test_a_connection_told_again_with_more_is_still_one(exact: dict[str, int]) -> None:
    first, later = wire(0, 1), wire(0, 1, seen_ns=T0 + 1, **exact)
    assert len(ends(*BOTH, first, later)) == 1
    assert len(ends(*BOTH, first, wire(0, 1, lqpn=9), later)) == (1 if "lqpn" in exact else 2)
    if "sport" in exact:
        assert len(ends(*BOTH, wire(0, 1, sport=50_000), wire(0, 1, sport=50_000, lqpn=9))) == 1
        assert len(ends(*BOTH, wire(0, 1, sport=50_000), wire(0, 1, sport=50_001))) == 2


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


def test_only_seconds_of_the_window_count(embedded_store: Store) -> None:
    insert(embedded_store, *MEMBERS, wire(0, 1))
    facts = read_demand(embedded_store, FABRIC, T0, END)
    assert (facts.members.num_rows, facts.connections.num_rows, facts.sums.num_rows) == (0, 0, 0)
    assert find_demand(facts).flows == []
    insert(embedded_store, *sends(0, 1, gbps=40))
    (flow,) = find_demand(read_demand(embedded_store, FABRIC, T0 + 5 * SECOND, END + 5 * SECOND)).flows
    assert flow.gbps * flow.duty == pytest.approx(20.0)


def test_of_too_many_sends_the_largest_are_kept(embedded_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "MOST_SENDS", 1)
    insert(embedded_store, *MEMBERS, *sends(0, 1, gbps=40), *sends(2, 3, gbps=41))
    found = find_demand(read_demand(embedded_store, FABRIC, T0, END))
    assert [flow.src for flow in found.flows] == ["h2"]
    assert found.left_out[0].startswith("more than 1 ends of connections")
