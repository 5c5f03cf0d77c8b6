"""Ranks that really send are recorded by the real plugin and read by the real collector, every operation once."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.workers.plan import Collective, Compute, Hop, Layout
from tests.testbed_checks.workers.jobs import MIB, following, plan_job, record, running

RANKS = 8


def test_eight_ranks_are_recorded_whole_with_transfers_and_waits(built: Path, tmp_path: Path) -> None:
    plan = plan_job(RANKS, steps=50)
    recordings = record(plan, built, tmp_path / "job")

    assert recordings.lost == 0
    operations = recordings.rows("collectives")
    wanted = {(rank, seq) for rank in range(RANKS) for seq in range(50)}
    assert sorted((row["rank"], row["seq"]) for row in operations) == sorted(wanted)
    assert {(row["func"], row["bytes"], row["algo"], row["channels"]) for row in operations} == {
        ("AllReduce", MIB, "RING", 2)
    }
    assert all(row["enqueue_ns"] <= row["start_ns"] <= row["end_ns"] for row in operations)
    transfers = recordings.rows("transfers")
    counts = Counter((row["rank"], row["seq"], row["channel"], row["direction"]) for row in transfers)
    assert counts == {(*each, channel, way): 1 for each in wanted for channel in (0, 1) for way in ("send", "recv")}
    assert {row["bytes"] for row in transfers} == {
        2 * (RANKS - 1) * MIB // 2 // RANKS
    }  # half, on each of two channels
    assert all(row["gpu_wait_ns"] > 0 and row["peer_wait_ns"] > 0 for row in transfers)
    assert all((row["wire_ns"] is not None) == (row["direction"] == "send") for row in transfers)
    assert {
        (row["rank"] + (1 if row["direction"] == "send" else -1)) % RANKS == row["peer"] for row in transfers
    } == {True}
    assert len(recordings.rows("step_samples")) == sum(row["steps"] for row in transfers)


def test_paced_connection_makes_its_sender_wait_for_the_wire_and_nobody_else(built: Path, tmp_path: Path) -> None:
    plan = plan_job(RANKS, (Compute(5), Collective("world", "AllReduce", 2 * MIB)))
    folder = tmp_path / "job"
    with following(plan.hosts, folder) as recordings, running(plan, built, folder) as job:
        job.wait_for_step(3)
        job.ranks[3].tell("pace 0 10000000")
        job.ranks[3].wait_for("obeyed pace 0 10000000")
        first = job.ranks[3].steps[-1].step + 2
        recordings.read()
        job.wait_for_step(first + 10)
        recordings.read(6)
    waits = Counter[tuple[int, int]]()  # on the other channel rank 4 may keep it waiting, who begins each step late
    for row in recordings.rows("transfers"):
        if row["direction"] == "send" and row["seq"] >= first:
            waits[row["rank"], row["channel"]] += row["wire_ns"]
    assert max(waits, key=lambda end: waits[end]) == (3, 0)
    assert waits[3, 0] > 3 * max(waited for (rank, _), waited in waits.items() if rank != 3)


def test_all_kinds_of_operations_of_a_parallel_job_are_recorded(built: Path, tmp_path: Path) -> None:
    step = (
        Compute(1),
        Hop("Recv", -1, MIB),
        Collective("tp", "AllReduce", MIB),
        Collective("tp", "AllGather", MIB // 4),
        Hop("Send", 1, MIB),
        Hop("Recv", 1, MIB),
        Collective("tp", "ReduceScatter", MIB // 4),
        Hop("Send", -1, MIB),
        Collective("dp", "AllReduce", MIB, algo="TREE"),
        Collective("world", "Broadcast", MIB),
    )
    layout = Layout(tp=2, pp=2, dp=3)
    plan = plan_job(layout.ranks, step, per_host=2, layout=layout, steps=5)
    recordings = record(plan, built, tmp_path / "job")

    assert recordings.lost == 0
    operations = recordings.rows("collectives")
    assert Counter(row["func"] for row in operations) == {
        "AllReduce": 2 * 5 * 12,
        "AllGather": 5 * 12,
        "ReduceScatter": 5 * 12,
        "Broadcast": 5 * 12,
        "Send": 5 * 12,  # each rank has one neighbour in a pipeline of two
        "Recv": 5 * 12,
    }
    assert {row["clock"] for row in operations} == {"gpu"}  # several ranks share a host, so kernels are timed
    names = {row["comm"]: row["name"] for row in recordings.rows("comms")}
    assert Counter(names.values()) == {"world": 1, "tp": 6, "dp": 4, "pp": 6}
    transfers = recordings.rows("transfers")
    assert {names[row["comm"]] for row in transfers} == {"world", "dp", "pp"}  # tp stays inside of a host
    assert sent_and_received(transfers, "send") == sent_and_received(transfers, "recv")


def test_rank_that_finds_all_its_buffers_full_catches_up(built: Path, tmp_path: Path) -> None:
    plan = plan_job(3, (Compute(5), Collective("world", "Broadcast", MIB)), chunk_bytes=8192, steps=20)
    with running(plan, built, tmp_path / "job") as job:
        job.ranks[1].tell("slow 10")
        job.wait_for("done")

        assert job.leave() == [0, 0, 0]


def sent_and_received(transfers: list[dict[str, Any]], direction: str) -> Counter[tuple[object, ...]]:
    """Return the bytes on each directed edge, as one side has counted them."""
    edges = Counter[tuple[object, ...]]()
    for row in transfers:
        if row["direction"] == direction:
            ends = (row["rank"], row["peer"]) if direction == "send" else (row["peer"], row["rank"])
            func = "p2p" if row["func"] in ("Send", "Recv") else row["func"]
            edges[row["comm"], func, row["seq"], row["channel"], *ends] += row["bytes"]
    return edges


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_tree_reaches_every_rank_whatever_their_number(built: Path, tmp_path: Path, ranks: int) -> None:
    plan = plan_job(ranks, (Collective("world", "AllReduce", MIB, algo="TREE"),), steps=3)
    recordings = record(plan, built, tmp_path / "job")

    edges = sent_and_received(recordings.rows("transfers"), "send")
    assert edges == sent_and_received(recordings.rows("transfers"), "recv")
    for channel in (0, 1):
        mine = {edge[4:] for edge in edges if edge[3] == channel}
        assert len(mine) == 2 * (ranks - 1)  # a tree has an edge less than ranks, and data goes both ways
        assert {end for edge in mine for end in edge} == set(range(ranks))
