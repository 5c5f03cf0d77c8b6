"""A simulated cluster sends what a real one would: sound rows, both ends of every wire, and honest statistics."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lockstep.arrow import conform, find_duplicate
from lockstep.clock import NS_PER_S
from lockstep.folding import fold_operations, fold_transfers
from lockstep.sim.simulation import Simulation
from lockstep.sim.story import Noise, Story, Telling, build_topology
from lockstep.sim.telemetry import Identity, Rows, SimulatedTelemetry
from lockstep.tables import TABLE_BY_NAME
from tests.builders import T0
from tests.lockstep.sim.build import cluster, slow, story

NOISY = story(slow("nic:h1/eth0", 0.5, at_s=1.0), noise=Noise())
SECONDS = 3


def advanced(told: Story, seconds: Iterable[float], seed: int = 1, start_ns: int = T0) -> Rows:
    """Return all rows that a story gives while it is advanced to each of these seconds."""
    telemetry = SimulatedTelemetry(Simulation(told, seed), Identity(job="j1", start_ns=start_ns))
    pieces = [telemetry.advance(start_ns + int(second * NS_PER_S)) for second in seconds]
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {name: pa.concat_tables([piece[name] for piece in pieces if name in piece]) for name in names}


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


def test_same_seed_gives_the_same_rows_bit_for_bit(rows: Rows) -> None:
    again = advanced(NOISY, range(1, SECONDS + 1))
    assert {name: table.equals(again[name]) for name, table in rows.items()} == dict.fromkeys(rows, True)


def test_another_seed_gives_other_rows(rows: Rows) -> None:
    other = advanced(NOISY, range(1, SECONDS + 1), seed=2)
    assert not other["collectives"].equals(rows["collectives"])


def test_rows_do_not_depend_on_how_often_they_are_asked_for(rows: Rows) -> None:
    often = advanced(NOISY, np.linspace(0.1, SECONDS, 30))
    for name in ("collectives", "transfers", "comms"):
        assert often[name].equals(rows[name]), name
    for name in ("op_stats", "transfer_stats"):
        assert sorted(map(repr, often[name].to_pylist())) == sorted(map(repr, rows[name].to_pylist())), name


def test_bytes_sent_are_bytes_received_on_every_channel(rows: Rows) -> None:
    sent = rows["transfers"].filter(pc.equal(rows["transfers"]["direction"], "send"))
    received = rows["transfers"].filter(pc.equal(rows["transfers"]["direction"], "recv"))
    assert sums(sent, ["seq", "channel"]) == sums(received, ["seq", "channel"])
    assert sums(sent, ["channel", "rank", "peer"]) == sums(received, ["channel", "peer", "rank"])


@pytest.mark.parametrize("name", ["op_stats", "transfer_stats"])
def test_statistics_are_the_folded_rows(name: str, rows: Rows) -> None:
    until_ns = T0 + SECONDS * NS_PER_S
    operations, transfers = rows["collectives"], rows["transfers"]
    folded = {
        "op_stats": fold_operations(operations, 0, until_ns),
        "transfer_stats": fold_transfers(transfers, operations, 0, until_ns),
    }[name]
    assert sorted(map(repr, rows[name].to_pylist())) == sorted(map(repr, folded.to_pylist()))
    assert sorted(set(rows[name]["ts_ns"].to_pylist())) == [T0 + second * NS_PER_S for second in range(SECONDS)]


def test_watermark_is_kept() -> None:
    telemetry = SimulatedTelemetry(Simulation(NOISY, 1), Identity(job="j1", start_ns=T0 + 5))
    for half in range(1, 7):
        promised_ns = telemetry.watermark_ns
        given = telemetry.advance(T0 + 5 + half * NS_PER_S // 2)
        assert telemetry.watermark_ns >= promised_ns
        assert telemetry.watermark_ns % NS_PER_S == 0
        for name, column in (("collectives", "end_ns"), ("transfers", "last_ns"), ("op_stats", "ts_ns")):
            assert name not in given or pc.min(given[name][column]).as_py() >= promised_ns, name


def test_nothing_new_is_nothing() -> None:
    telemetry = SimulatedTelemetry(Simulation(NOISY, 1), Identity(job="j1", start_ns=T0))
    assert "comms" in telemetry.advance(T0 + NS_PER_S)
    assert telemetry.advance(T0 + NS_PER_S) == {}


def test_every_rank_introduces_itself_once(rows: Rows) -> None:
    comms = rows["comms"].to_pylist()
    assert [row["rank"] for row in comms] == list(range(16))
    assert [row["host"] for row in comms[::4]] == ["h0", "h1", "h2", "h3"]
    assert [row["gpu"] for row in comms[:5]] == [0, 1, 2, 3, 0]
    assert {(row["nranks"], row["nnodes"], row["comm"]) for row in comms} == {(16, 4, comms[0]["comm"])}


def test_every_wire_has_a_sender_and_a_receiver_on_nics_of_the_topology(rows: Rows) -> None:
    nics = {(host.id, nic.id) for host in build_topology(NOISY.cluster).hosts for nic in host.nics}
    first = [row for row in rows["transfers"].to_pylist() if row["seq"] == 0]
    sends = {(row["rank"], row["peer"], row["channel"]) for row in first if row["direction"] == "send"}
    receives = {(row["peer"], row["rank"], row["channel"]) for row in first if row["direction"] == "recv"}
    assert sends == receives
    assert len(first) == 2 * len(sends) == 2 * 4 * 2
    assert {(row["host"], row["nic"]) for row in first} == nics
    assert all(row["rank"] // 4 != row["peer"] // 4 for row in first)
    assert all(row["host"] == f"h{row['rank'] // 4}" for row in first)


def test_only_senders_know_the_wire_and_only_receivers_wait_for_senders(rows: Rows) -> None:
    for row in rows["transfers"].slice(0, 64).to_pylist():
        knows_wire = row["wire_ns"] is not None
        assert knows_wire == (row["direction"] == "send") == (row["flush_ns"] is None)
        assert row["first_ns"] < row["last_ns"]


def test_bytes_on_a_wire_are_its_share_of_the_ring(rows: Rows) -> None:
    """Each of 16 places sends 30 chunks of a sixteenth of a channel's half of 64 MB."""
    first = rows["transfers"].slice(0, 1).to_pylist()[0]
    assert (first["steps"], first["bytes"]) == (30, 64_000_000 * 30 // 32)


def test_slow_nic_shows_in_the_wire_times_of_its_statistics(rows: Rows) -> None:
    def wire_of(host: str, nic: str, second: int) -> float:
        found = [
            row["wire_ns"] / row["n"]
            for row in rows["transfer_stats"].to_pylist()
            if (row["host"], row["nic"], row["ts_ns"]) == (host, nic, T0 + second * NS_PER_S)
            and row["direction"] == "send"
            and row["size_class"] == 25
        ]
        return float(np.mean(found))

    assert wire_of("h1", "eth0", 2) > 1.5 * wire_of("h1", "eth0", 0)
    assert wire_of("h2", "eth0", 2) == pytest.approx(wire_of("h2", "eth0", 0), rel=0.1)


def test_transport_is_that_of_the_cluster() -> None:
    told = story(cluster=cluster(transport="socket"))
    assert set(advanced(told, [1])["transfers"]["transport"].to_pylist()) == {"socket"}


def test_job_and_attempt_are_those_of_the_identity() -> None:
    telemetry = SimulatedTelemetry(Simulation(story(), 1), Identity(job="j9", start_ns=T0, attempt=3))
    for name, table in telemetry.advance(T0 + NS_PER_S).items():
        if TABLE_BY_NAME[name].has_job:
            assert set(zip(table["job"].to_pylist(), table["attempt"].to_pylist(), strict=True)) == {("j9", 3)}, name


def test_gpu_of_a_rank_is_the_one_whose_health_is_read() -> None:
    told = advanced(story(), range(1, 7))
    known = {(row["host"], row["gpu"], row["gpu_uuid"]) for row in told["gpu_health"].to_pylist()}
    assert {(row["host"], row["gpu"], row["gpu_uuid"]) for row in told["comms"].to_pylist()} == known


def test_port_that_fails_over_is_silent_and_its_traffic_is_told_of_the_other() -> None:
    told = advanced(story("at 2 s fail nic:h1/eth0 over to eth1 after 1 s"), range(1, 7))
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


def test_steps_of_a_sampled_operation_are_seen_from_both_sides_and_in_order() -> None:
    samples = advanced(story(), range(1, 11))["step_samples"].to_pylist()
    assert len({(row["func"], row["seq"]) for row in samples}) < 20, "one in 64 of some 300, and all ranks agree"
    assert all(row["posted_ns"] <= row["wire_ns"] <= row["done_ns"] for row in samples)
    key = ("seq", "channel", "step")
    sent = {(*(row[k] for k in key), row["rank"], row["peer"]): row for row in samples if row["direction"] == "send"}
    came = {(*(row[k] for k in key), row["peer"], row["rank"]): row for row in samples if row["direction"] == "recv"}
    assert sent.keys() == came.keys()
    assert all(came[edge]["wire_ns"] > row["wire_ns"] for edge, row in sent.items()), "nothing arrives before it left"


def test_transit_shows_the_slow_wire_on_sockets_where_the_kernel_hides_it() -> None:
    told = story(slow("nic:h1/eth0", 0.2, side="tx"), cluster=cluster(transport="socket"))
    samples = advanced(told, range(1, 11))["step_samples"].to_pylist()
    left = {(r["seq"], r["channel"], r["step"], r["rank"]): r for r in samples if r["direction"] == "send"}
    transits: dict[tuple[str, str], list[int]] = {}
    for row in (r for r in samples if r["direction"] == "recv"):
        sender = left[row["seq"], row["channel"], row["step"], row["peer"]]
        transits.setdefault((sender["host"], sender["nic"]), []).append(row["wire_ns"] - sender["wire_ns"])
    assert max(transits, key=lambda wire: float(np.median(transits[wire]))) == ("h1", "eth0")


def test_paths_are_told_only_where_the_story_says_so_and_lead_from_nic_to_nic() -> None:
    assert "paths" not in advanced(story(), [1])
    rows = advanced(story(telling=Telling(paths=True)), [1])["paths"].to_pylist()
    assert {len(row["links"]) for row in rows} == {2, 4}
    for row in rows:
        assert row["links"][0].startswith(f"{row['host']}/{row['src_nic']}--")
        assert row["links"][-1].startswith(f"{row['dst']}/{row['dst_nic']}--")
