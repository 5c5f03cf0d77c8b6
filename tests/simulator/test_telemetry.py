"""A simulated cluster sends what a real one would: sound rows, both ends of every wire, and honest statistics."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lockstep.arrow import conform, find_duplicate
from lockstep.clock import NS_PER_S
from lockstep.folding import fold_operations, fold_transfers
from lockstep.tables import TABLE_BY_NAME
from simulator.scenario import Doing, JobShape, Layout, Noise, Scenario, Telemetry, build_topology
from simulator.simulation import Simulation
from simulator.telemetry import Identity, Rows, SimulatedTelemetry
from tests.builders import T0
from tests.simulator.build import cluster, joined, scenario, slow
from tests.tiers import long_except

NOISY = scenario(slow("nic:h1/eth0", 0.5, at_s=1.0), noise=Noise())
SECONDS = 3
LOOKS = 6
SELDOM = JobShape(compute_ms=200.0, allreduce_mb=(64, 32))  # few operations, for tests that look at seconds


@lru_cache(maxsize=16)
def advanced(told: Scenario, seconds: Iterable[float], seed: int = 1, start_ns: int = T0) -> Rows:
    """Return all rows that a scenario gives while it is advanced to each of these seconds."""
    telemetry = SimulatedTelemetry(Simulation(told, seed), Identity(job="j1", start_ns=start_ns))
    return joined([telemetry.advance(start_ns + int(second * NS_PER_S)) for second in seconds])


@pytest.fixture(scope="module")
def rows() -> Rows:
    return advanced(NOISY, range(1, SECONDS + 1))


def sums(table: pa.Table, by: list[str]) -> dict[tuple[object, ...], int]:
    found = table.group_by(by).aggregate([("bytes", "sum")]).to_pylist()
    return {tuple(row[name] for name in by): row["bytes_sum"] for row in found}


def test_all_rows_are_sound_and_none_comes_twice(rows: Rows) -> None:
    operations = {"comms", "connections", "collectives", "transfers", "op_stats", "transfer_stats", "progress"}
    assert set(rows) == operations | {"step_samples", "nic_counters"}  # the others are read more rarely
    for name, table in rows.items():
        assert conform(TABLE_BY_NAME[name], table).equals(table)
        assert find_duplicate(TABLE_BY_NAME[name], table) is None


def test_rows_are_those_of_the_seed_however_often_they_are_asked_for(rows: Rows) -> None:
    other = advanced(NOISY, (0.2,), seed=2)["collectives"]
    assert not other.equals(rows["collectives"].slice(0, other.num_rows))
    often = advanced(NOISY, tuple(np.linspace(0.1, SECONDS, 10)))
    for name in ("collectives", "transfers", "comms"):
        assert often[name].equals(rows[name]), name
    for name in ("op_stats", "transfer_stats"):
        assert sorted(map(repr, often[name].to_pylist())) == sorted(map(repr, rows[name].to_pylist())), name


def test_statistics_are_the_folded_rows(rows: Rows) -> None:
    until_ns = T0 + SECONDS * NS_PER_S
    operations, transfers = rows["collectives"], rows["transfers"]
    for name, folded in (
        ("op_stats", fold_operations(operations, 0, until_ns)),
        ("transfer_stats", fold_transfers(transfers, operations, 0, until_ns)),
    ):
        assert sorted(map(repr, rows[name].to_pylist())) == sorted(map(repr, folded.to_pylist()))
        assert sorted(set(rows[name]["ts_ns"].to_pylist())) == [T0 + second * NS_PER_S for second in range(SECONDS)]


def test_watermark_is_kept_and_nothing_new_is_nothing() -> None:
    told = scenario(job=SELDOM, noise=Noise())
    telemetry = SimulatedTelemetry(Simulation(told, 1), Identity(job="j1", start_ns=T0 + 5))
    for half in range(1, 7):
        promised_ns = telemetry.watermark_ns
        given = telemetry.advance(T0 + 5 + half * NS_PER_S // 2)
        assert telemetry.watermark_ns >= promised_ns
        assert telemetry.watermark_ns % NS_PER_S == 0
        for name, column in (("collectives", "end_ns"), ("transfers", "last_ns"), ("op_stats", "ts_ns")):
            assert name not in given or pc.min(given[name][column]).as_py() >= promised_ns, name
    telemetry = SimulatedTelemetry(Simulation(told, 1), Identity(job="j1", start_ns=T0))
    assert "comms" in telemetry.advance(T0 + NS_PER_S)
    assert telemetry.advance(T0 + NS_PER_S) == {}


def test_every_rank_introduces_itself_once(rows: Rows) -> None:
    comms = rows["comms"].to_pylist()
    assert [row["rank"] for row in comms] == list(range(16))
    assert [row["host"] for row in comms[::4]] == ["h0", "h1", "h2", "h3"]
    assert [row["gpu"] for row in comms[:5]] == [0, 1, 2, 3, 0]
    assert {(row["nranks"], row["nnodes"], row["comm"]) for row in comms} == {(16, 4, comms[0]["comm"])}


def test_every_wire_has_a_sender_and_a_receiver_that_count_the_same_bytes(rows: Rows) -> None:
    nics = {(host.id, nic.id) for host in build_topology(NOISY.cluster).hosts for nic in host.nics}
    first = [row for row in rows["transfers"].to_pylist() if row["seq"] == 0]
    sends = {(row["rank"], row["peer"], row["channel"]) for row in first if row["direction"] == "send"}
    receives = {(row["peer"], row["rank"], row["channel"]) for row in first if row["direction"] == "recv"}
    assert sends == receives
    assert len(first) == 2 * len(sends) == 2 * 4 * 2
    assert {(row["host"], row["nic"]) for row in first} == nics
    assert all(row["rank"] // 4 != row["peer"] // 4 for row in first)
    assert all(row["host"] == f"h{row['rank'] // 4}" for row in first)
    sent = rows["transfers"].filter(pc.equal(rows["transfers"]["direction"], "send"))
    received = rows["transfers"].filter(pc.equal(rows["transfers"]["direction"], "recv"))
    assert sums(sent, ["seq", "channel"]) == sums(received, ["seq", "channel"])
    assert sums(sent, ["channel", "rank", "peer"]) == sums(received, ["channel", "peer", "rank"])
    for row in rows["transfers"].slice(0, 64).to_pylist():
        knows_wire = row["wire_ns"] is not None
        assert knows_wire == (row["direction"] == "send") == (row["flush_ns"] is None)
        assert row["first_ns"] < row["last_ns"]
    first = rows["transfers"].slice(0, 1).to_pylist()[0]
    assert (first["steps"], first["bytes"]) == (30, 64_000_000 * 30 // 32)


def test_slow_nic_shows_in_the_wire_times_of_its_statistics(rows: Rows) -> None:
    def wire_of(host: str, second: int) -> float:
        key = {"host": host, "nic": "eth0", "ts_ns": T0 + second * NS_PER_S, "direction": "send", "size_class": 25}
        found = [row for row in rows["transfer_stats"].to_pylist() if key.items() <= row.items()]
        return float(np.mean([row["wire_ns"] / row["n"] for row in found]))

    assert wire_of("h1", 2) > 1.5 * wire_of("h1", 0)
    assert wire_of("h2", 2) == pytest.approx(wire_of("h2", 0), rel=0.1)


def test_rows_carry_transport_job_attempt_and_gpu() -> None:
    over_sockets = advanced(scenario(cluster=cluster(transport="socket"), job=SELDOM), (1,))
    assert set(over_sockets["transfers"]["transport"].to_pylist()) == {"socket"}
    telemetry = SimulatedTelemetry(Simulation(scenario(job=SELDOM), 1), Identity("j9", start_ns=T0, attempt=3))
    for name, table in telemetry.advance(T0 + NS_PER_S).items():
        if TABLE_BY_NAME[name].has_job:
            assert set(zip(table["job"].to_pylist(), table["attempt"].to_pylist(), strict=True)) == {("j9", 3)}, name
    told = advanced(scenario(job=SELDOM), range(1, LOOKS + 1))
    known = {(row["host"], row["gpu"], row["gpu_uuid"]) for row in told["gpu_health"].to_pylist()}
    assert {(row["host"], row["gpu"], row["gpu_uuid"]) for row in told["comms"].to_pylist()} == known


def test_port_that_fails_over_is_silent_and_its_traffic_is_told_of_the_other() -> None:
    told = advanced(scenario("at 2 s fail nic:h1/eth0 over to eth1 after 1 s", job=SELDOM), range(1, LOOKS + 1))
    mine = [row for row in told["transfer_stats"].to_pylist() if row["host"] == "h1"]
    used = {second: {row["nic"] for row in mine if row["ts_ns"] == T0 + second * NS_PER_S} for second in (1, 5)}
    assert used == {1: {"eth0", "eth1"}, 5: {"eth1"}}
    per_byte = {
        second: sum(row["wire_ns"] for row in rows) / sum(row["bytes"] for row in rows)
        for second in (1, 5)
        if (rows := [r for r in mine if r["ts_ns"] == T0 + second * NS_PER_S and r["direction"] == "send"])
    }
    assert per_byte[5] > 1.5 * per_byte[1], "two connections share what one had"
    counters = [row for row in told["nic_counters"].to_pylist() if (row["host"], row["nic"]) == ("h1", "eth0")]
    assert [row["up"] for row in counters] == [True, False, False, False, False, False]
    assert counters[-1]["tx_bytes"] == counters[3]["tx_bytes"], "what was under way ended in second 4"
    known = {row["nic"] for row in told["connections"].to_pylist() if (row["host"], row["channel"]) == ("h1", 0)}
    assert known == {"eth0", "eth1"}


# Single steps and paths.


def test_steps_of_a_sampled_operation_are_seen_from_both_sides_and_show_the_slow_wire_of_a_socket() -> None:
    brief = JobShape(compute_ms=5.0, allreduce_mb=(8, 4))
    samples = advanced(scenario(job=brief), (0.4,))["step_samples"].to_pylist()
    assert 0 < len({(row["func"], row["seq"]) for row in samples}) < 10, "one in 64 of 110, and all ranks agree"
    assert all(row["posted_ns"] <= row["wire_ns"] <= row["done_ns"] for row in samples)
    key = ("seq", "channel", "step")
    sent = {(*(row[k] for k in key), row["rank"], row["peer"]): row for row in samples if row["direction"] == "send"}
    came = {(*(row[k] for k in key), row["peer"], row["rank"]): row for row in samples if row["direction"] == "recv"}
    assert sent.keys() == came.keys()
    assert all(came[edge]["wire_ns"] > row["wire_ns"] for edge, row in sent.items()), "nothing arrives before it left"
    told = scenario(slow("nic:h1/eth0", 0.2, side="tx"), cluster=cluster(transport="socket"), job=brief)
    samples = advanced(told, (0.4,))["step_samples"].to_pylist()
    left = {(r["seq"], r["channel"], r["step"], r["rank"]): r for r in samples if r["direction"] == "send"}
    transits: dict[tuple[str, str], list[int]] = {}
    for row in (r for r in samples if r["direction"] == "recv"):
        sender = left[row["seq"], row["channel"], row["step"], row["peer"]]
        transits.setdefault((sender["host"], sender["nic"]), []).append(row["wire_ns"] - sender["wire_ns"])
    assert max(transits, key=lambda wire: float(np.median(transits[wire]))) == ("h1", "eth0")


def test_paths_are_told_only_where_the_scenario_says_so_and_lead_from_nic_to_nic() -> None:
    assert not {"paths", "probes"} & advanced(scenario(job=SELDOM), (2,)).keys()
    rows = advanced(scenario(telemetry=Telemetry(paths=True), job=SELDOM), (1,))["paths"].to_pylist()
    assert {len(row["links"]) for row in rows} == {2, 4}
    for row in rows:
        assert row["links"][0].startswith(f"{row['host']}/{row['src_nic']}--")
        assert row["links"][-1].startswith(f"{row['dst']}/{row['dst_nic']}--")


def looked_at(*lines: str, **fields: Any) -> list[list[dict[str, Any]]]:
    """Return the rows of each second of a job with few operations."""
    told = scenario(*lines, **{"job": SELDOM, **fields})
    seconds: dict[int, list[dict[str, Any]]] = {}
    for row in advanced(told, range(1, LOOKS + 1))["progress"].to_pylist():
        seconds.setdefault(row["ts_ns"], []).append(row)
    return list(seconds.values())


def test_healthy_ranks_are_looked_at_every_second_and_idle_ones_have_nothing_open() -> None:
    seconds = looked_at()
    assert [len(rows) for rows in seconds] == [16] * LOOKS
    done = [min(row["done"] for row in rows) for rows in seconds]
    assert done == sorted(done)
    assert done[-1] > done[0] > 0
    for row in (row for rows in seconds for row in rows):
        assert row["done"] <= row["started"] <= row["enqueued"] <= row["done"] + 2  # one step's operations
        is_open = row["enqueued"] > row["done"]
        assert is_open == (row["oldest_open_ns"] is not None) == (row["open_bytes"] is not None)
        assert is_open or row["head_state"] == "idle"


def test_rank_that_never_enqueues_is_behind_and_one_with_other_arguments_shows_other_bytes() -> None:
    rows = looked_at("at 2 s fail rank:5 absent")[-1]
    (absent,) = [row for row in rows if row["rank"] == 5]
    others = [row for row in rows if row["rank"] != 5]
    assert all(row["enqueued"] > absent["enqueued"] for row in others)
    assert (absent["enqueued"], absent["head_state"], absent["oldest_open_ns"]) == (absent["done"], "idle", None)
    assert all(T0 + 2 * NS_PER_S <= row["oldest_open_ns"] < T0 + 3 * NS_PER_S for row in others)
    rows = looked_at("at 2 s fail rank:5 mismatched")[-1]
    sizes = {row["rank"]: row["open_bytes"] for row in rows}
    assert sizes.pop(5) not in set(sizes.values())
    assert len(set(sizes.values())) == 1


@pytest.mark.parametrize("transport", long_except(["ib"], ["ib", "socket"]))
def test_open_operation_goes_on_being_told_while_it_stands(transport: str) -> None:
    seconds = looked_at("at 2 s fail link:h1/eth0--leaf0 down", cluster=cluster(transport=transport))
    last = [{row["rank"]: row for row in rows} for rows in seconds[-3:]]
    for rank in range(16):
        stands = [{key: value for key, value in rows[rank].items() if key != "ts_ns"} for rows in last]
        assert stands[0] == stands[1] == stands[2], "nothing but the moment changes"
    assert "wire" in {row["head_state"] for row in last[-1].values()}


def test_sends_and_receives_are_told_per_peer() -> None:
    job = JobShape(layout=Layout(tp=4, pp=4), step=(Doing(do="pipeline", ms=100, backward_ms=200, mb=8),))
    rows = looked_at(job=job)[-1]
    ways = [(stage, stage + by) for stage in range(4) for by in (-1, 1) if 0 <= stage + by < 4]
    neighbours = {(row["func"], row["rank"], row["peer"]) for row in rows}
    assert neighbours == {(func, *way) for func in ("Send", "Recv") for way in ways}


LINK = "link:leaf0--spine1"


def probed(*lines: str, seconds: int = 20) -> list[dict[str, Any]]:
    job = JobShape(compute_ms=1e6)  # nothing but probes
    told = scenario(*lines, job=job, telemetry=Telemetry(paths=True), duration_s=float(seconds))
    rows: list[dict[str, Any]] = advanced(told, (seconds,))["probes"].to_pylist()
    return rows


def test_every_nic_probes_every_other_host_in_turn_over_all_spines_where_paths_are_told() -> None:
    rows = probed()
    first = [row for row in rows if row["ts_ns"] <= T0 + 3 * NS_PER_S]
    assert len(first) == 3 * 4 * 2
    every = {(f"h{a}", f"h{b}") for a in range(4) for b in range(4) if a != b}
    assert {(row["host"], row["dst"]) for row in first} == every
    assert all(row["src_nic"] == row["dst_nic"] for row in rows)
    inside = [row for row in rows if int(row["host"][1]) // 2 == int(row["dst"][1]) // 2]
    across = [row for row in rows if row not in inside]
    assert {tuple(row["hops"]) for row in inside} == {("leaf0",), ("leaf1",)}
    ways = {(f"leaf{a}", f"spine{spine}", f"leaf{1 - a}") for a in range(2) for spine in range(2)}
    assert {tuple(row["hops"]) for row in across} == ways
    assert all(5_000 < row["rtt_ns"] < 20_000 for row in rows)


@pytest.mark.parametrize(("what", "losing"), [("losing 50 %", True), ("down", True), ("delayed 2 ms", False)])
def test_probe_meets_what_is_wrong_with_a_link_on_its_way(what: str, losing: bool) -> None:
    rows = probed(f"at 0 s fail {LINK} {what}")
    over = [row for row in rows if "spine1" in row["hops"]]
    # The way back has a port of its own, so a probe over the other spine may come back over this one.
    inside = [row for row in rows if len(row["hops"]) == 1]
    assert all(row["rtt_ns"] is not None and row["rtt_ns"] < 20_000 for row in inside)
    rtts = [row["rtt_ns"] for row in over]
    assert None in rtts if losing else min(rtts) > 1_500_000
