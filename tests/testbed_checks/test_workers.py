"""Ranks that really send are recorded by the real plugin and read by the real collector, whatever they are told."""

import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import pytest

from collector.connections.flows import Kernel
from collector.nccl.budget import Budget
from collector.sources.connections import ConnectionsSource
from collector.sources.nccl_rings import NcclRingsSource
from lockstep.clock import SystemClock
from lockstep.errors import LockstepError
from tests.collector.sources.imitated_rings import Follower
from tests.testbed.services import free_port
from tests.testbed.workers.job import Job, Loopback, rings_of, start_job
from tests.testbed.workers.plan import Collective, Compute, Hop, Item, JobPlan, Layout
from tests.tiers import long_except
from tests.waiting import eventually

MIB = 1 << 20
NICS = ("eth0", "eth1")
STEP = (Compute(5, noise=0.1), Collective("world", "AllReduce", MIB))
ODD = 2  # the rank that is told something
STEPS = 12  # watched after that
STILL_S = 0.5  # without a step, of which there are 50 in a second, a job stands still
_EVERYTHING = Budget(1 << 30, 1 << 40)


def plan_job(ranks: int, step: tuple[Item, ...] = STEP, per_host: int = 1, **facts: Any) -> JobPlan:
    """A data-parallel job with two NICs a host, unless told otherwise."""
    hosts = tuple(f"h{rank // per_host}" for rank in range(ranks))
    usual: dict[str, Any] = {"job": f"job-{uuid4().hex[:8]}", "layout": Layout(dp=ranks), "nics": NICS}
    return JobPlan(hosts=hosts, step=step, **usual | facts)


class Recordings:
    """A collector's source for each host of a job, and the rows that they gave."""

    def __init__(self, followers: dict[str, Follower]) -> None:
        self.followers = followers

    def read(self, times: int = 1) -> None:
        for _ in range(times):
            for follower in self.followers.values():
                follower.skip(1)
                follower.read()

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row for follower in self.followers.values() for row in follower.rows.get(table, [])]


@contextmanager
def running(plan: JobPlan, built: Path, folder: Path, limit_s: int = 60) -> Iterator[tuple[Job, Recordings]]:
    with ExitStack() as stack:
        followers = {}
        for host in dict.fromkeys(plan.hosts):
            source = NcclRingsSource(host, directories=(rings_of(folder, host),), budget=_EVERYTHING)
            followers[host] = Follower(stack.enter_context(closing(source)))
        job = stack.enter_context(start_job(Loopback(), plan, built, folder, limit_s))
        yield job, Recordings(followers)


def record(plan: JobPlan, built: Path, folder: Path) -> Recordings:
    with running(plan, built, folder) as (job, recordings):
        job.wait_for("done")
        recordings.read(2)
        assert job.leave() == [0] * len(plan.hosts)
        recordings.read(6)
        lost = [follower.dropped + len(follower.refusals()) for follower in recordings.followers.values()]
        assert sum(lost) == 0
        return recordings


def sent_and_received(transfers: list[dict[str, Any]], direction: str) -> Counter[tuple[object, ...]]:
    edges = Counter[tuple[object, ...]]()
    for row in transfers:
        if row["direction"] == direction:
            ends = (row["rank"], row["peer"]) if direction == "send" else (row["peer"], row["rank"])
            func = "p2p" if row["func"] in ("Send", "Recv") else row["func"]
            edges[row["comm"], func, row["seq"], row["channel"], *ends] += row["bytes"]
    return edges


def test_eight_ranks_are_recorded_whole_with_transfers_and_waits(built: Path, tmp_path: Path) -> None:
    ranks = 8
    recordings = record(plan_job(ranks, steps=20), built, tmp_path / "job")

    operations = recordings.rows("collectives")
    wanted = {(rank, seq) for rank in range(ranks) for seq in range(20)}
    assert sorted((row["rank"], row["seq"]) for row in operations) == sorted(wanted)
    assert {(row["func"], row["bytes"], row["algo"], row["channels"]) for row in operations} == {
        ("AllReduce", MIB, "RING", 2)
    }
    assert all(row["enqueue_ns"] <= row["start_ns"] <= row["end_ns"] for row in operations)
    transfers = recordings.rows("transfers")
    counts = Counter((row["rank"], row["seq"], row["channel"], row["direction"]) for row in transfers)
    assert counts == {(*each, channel, way): 1 for each in wanted for channel in (0, 1) for way in ("send", "recv")}
    assert {row["bytes"] for row in transfers} == {2 * (ranks - 1) * MIB // 2 // ranks}  # half, on each of 2 channels
    assert all(row["gpu_wait_ns"] > 0 and row["peer_wait_ns"] > 0 for row in transfers)
    assert all((row["wire_ns"] is not None) == (row["direction"] == "send") for row in transfers)
    steps = {"send": 1, "recv": -1}
    assert all((row["rank"] + steps[row["direction"]]) % ranks == row["peer"] for row in transfers)
    assert len(recordings.rows("step_samples")) == sum(row["steps"] for row in transfers)


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
    recordings = record(plan_job(layout.ranks, step, per_host=2, layout=layout, steps=5), built, tmp_path / "job")

    operations = recordings.rows("collectives")
    each = dict.fromkeys(("AllGather", "ReduceScatter", "Broadcast", "Send", "Recv"), 5 * 12)
    assert Counter(row["func"] for row in operations) == each | {"AllReduce": 2 * 5 * 12}
    assert {row["clock"] for row in operations} == {"gpu"}  # several ranks share a host, so kernels are timed
    names = {row["comm"]: row["name"] for row in recordings.rows("comms")}
    assert Counter(names.values()) == {"world": 1, "tp": 6, "dp": 4, "pp": 6}
    transfers = recordings.rows("transfers")
    assert {names[row["comm"]] for row in transfers} == {"world", "dp", "pp"}  # tp stays inside of a host
    assert sent_and_received(transfers, "send") == sent_and_received(transfers, "recv")


@pytest.mark.parametrize("ranks", long_except([5], [2, 5, 8]))
def test_tree_reaches_every_rank_whatever_their_number(built: Path, tmp_path: Path, ranks: int) -> None:
    plan = plan_job(ranks, (Collective("world", "AllReduce", MIB, algo="TREE"),), steps=3)
    transfers = record(plan, built, tmp_path / "job").rows("transfers")

    edges = sent_and_received(transfers, "send")
    assert edges == sent_and_received(transfers, "recv")
    for channel in (0, 1):
        mine = {edge[4:] for edge in edges if edge[3] == channel}
        assert len(mine) == 2 * (ranks - 1)  # a tree has an edge less than ranks, and data goes both ways
        assert {end for edge in mine for end in edge} == set(range(ranks))


def tell_odd(job: Job, recordings: Recordings, line: str, rank: int = ODD) -> int:
    """Tell a rank something; return the first step of which it is surely true."""
    job.wait_for_step(2)
    job.ranks[rank].command(line)
    job.ranks[rank].wait_for(f"obeyed {line}")
    recordings.read()
    return job.ranks[rank].steps[-1].step + 2


def find_usually_last(operations: list[dict[str, Any]], column: str) -> int | None:
    """Return the rank that was the last in most operations: not all, since a busy machine may hold up anybody."""
    last: dict[int, dict[str, Any]] = {}
    for row in operations:
        if row["seq"] not in last or row[column] > last[row["seq"]][column]:
            last[row["seq"]] = row
    rank, times = Counter(row["rank"] for row in last.values()).most_common(1)[0]
    return rank if times > STEPS / 2 else None


def record_with(plan: JobPlan, line: str, built: Path, folder: Path) -> list[dict[str, Any]]:
    with running(plan, built, folder) as (job, recordings):
        first = tell_odd(job, recordings, line)
        job.wait_for_step(first + STEPS)
        recordings.read(6)
    return [row for row in recordings.rows("collectives") if first <= row["seq"] < first + STEPS]


def test_slow_rank_enqueues_in_time_and_its_kernels_begin_last_and_are_short(built: Path, tmp_path: Path) -> None:
    plan = plan_job(4, (Compute(10), Collective("world", "AllReduce", MIB)), per_host=2)
    operations = record_with(plan, "slow 10", built, tmp_path / "job")

    def median_ns(rank: int, begin: str, end: str) -> float:
        return float(median(row[end] - row[begin] for row in operations if row["rank"] == rank))

    assert {row["clock"] for row in operations} == {"gpu"}
    assert find_usually_last(operations, "start_ns") == ODD
    assert min(range(4), key=lambda rank: median_ns(rank, "start_ns", "end_ns")) == ODD
    assert median_ns(ODD, "enqueue_ns", "start_ns") > 9 * 10_000_000  # it computes for so long in between


@pytest.mark.slow
@pytest.mark.long
def test_paced_connection_makes_its_sender_wait_for_the_wire_and_nobody_else(built: Path, tmp_path: Path) -> None:
    plan = plan_job(8, (Compute(5), Collective("world", "AllReduce", 2 * MIB)))
    with running(plan, built, tmp_path / "job") as (job, recordings):
        first = tell_odd(job, recordings, "pace 0 10000000", rank=3)
        job.wait_for_step(first + 10)
        recordings.read(6)
    waits = Counter[tuple[int, int]]()  # on the other channel rank 4 may keep it waiting, who begins each step late
    for row in recordings.rows("transfers"):
        if row["direction"] == "send" and row["seq"] >= first:
            waits[row["rank"], row["channel"]] += row["wire_ns"]
    assert max(waits, key=lambda end: waits[end]) == (3, 0)
    assert waits[3, 0] > 3 * max(waited for (rank, _), waited in waits.items() if rank != 3)


@pytest.mark.parametrize("line", long_except(["absent"], ["absent", "stuck", "mismatch 20"]))
def test_rank_in_which_a_job_hangs_is_seen_in_what_is_open(built: Path, tmp_path: Path, line: str) -> None:
    with running(plan_job(4), built, tmp_path / "job") as (job, recordings):
        tell_odd(job, recordings, line)
        heads: dict[int, tuple[int, str]] = {}  # of each rank: operations begun, and what the oldest open one awaits

        def stands_still() -> bool:
            nonlocal heads
            threading.Event().wait(STILL_S)
            recordings.read()
            newest = {row["rank"]: row for row in recordings.rows("progress")[-16:]}
            before, heads = heads, {rank: (row["enqueued"], row["head_state"]) for rank, row in newest.items()}
            return len(heads) == 4 and heads == before and {state for _, state in heads.values()} != {"idle"}

        eventually(stands_still)
    begun = {rank: enqueued for rank, (enqueued, _) in heads.items()}
    if line == "absent":  # one operation behind, and all others wait to receive
        assert {rank: begun[0] - count for rank, count in begun.items()} == {0: 0, 1: 0, ODD: 1, 3: 0}
        assert (heads[ODD][1], heads[3][1]) == ("idle", "recv_wait")
    elif line == "stuck":  # data has come and nobody takes it; others may have just ended that operation
        assert begun[ODD] == min(begun.values())
        assert heads[ODD][1] in ("recv_gpu_wait", "gpu_wait")
        assert heads[3][1] == "recv_wait"
    else:
        large = [row["rank"] for row in recordings.rows("progress") if row["open_bytes"] == 20 * MIB]
        assert set(large) == {ODD}


@pytest.mark.parametrize("line", long_except(["absent"], ["absent", "reversed"]))
def test_job_that_stands_still_ends_at_its_limit(built: Path, tmp_path: Path, line: str) -> None:
    step = (Compute(2), Collective("world", "AllReduce", MIB), Collective("dp", "AllReduce", MIB))
    with running(plan_job(3, step), built, tmp_path / "job", limit_s=3) as (job, _):
        job.wait_for_step(2)
        job.ranks[ODD].command(line)
        assert job.wait_until_over() == [3, 3, 3]
        if line == "absent":
            assert "is not done within 3 s" in job.ranks[0].complaints
            assert job.ranks[ODD].complaints == "rank 2: absent for 3 s"
        with pytest.raises(LockstepError, match="rank 0 ended with 3: rank 0: step"):
            job.wait_for_step(10_000)


def test_neighbours_of_a_killed_rank_say_so_and_fail(built: Path, tmp_path: Path) -> None:
    with running(plan_job(5), built, tmp_path / "job") as (job, _):
        job.wait_for_step(2)
        job.ranks[ODD].process.kill()
        assert job.wait_until_over() == [1, 1, -signal.SIGKILL, 1, 1]
        assert "rank 2 is gone" in job.ranks[ODD + 1].complaints
        log = (tmp_path / "job" / f"nccl.{job.ranks[ODD + 1].process.pid}.log").read_text()
        assert "NCCL WARN socketProgress: Connection closed by remote peer h2" in log


class Deserted(Loopback):
    def run_in(self, host: str, command: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        return super().run_in(host, ["true"] if host == "h1" else command, env)


def test_rank_that_never_comes_is_not_waited_for_for_ever(built: Path, tmp_path: Path) -> None:
    with start_job(Deserted(), plan_job(2), built, tmp_path / "job", limit_s=1) as job:
        assert job.wait_until_over() == [3, 0]
        assert job.ranks[0].complaints == "rank 0: rank 1 has not come"


def test_healed_rank_goes_on_and_all_leave_in_mid_work_without_complaint(built: Path, tmp_path: Path) -> None:
    with running(plan_job(3), built, tmp_path / "job") as (job, recordings):
        odd = job.ranks[ODD]
        tell_odd(job, recordings, "stuck")
        odd.command("dance")
        odd.command("heal")
        odd.wait_for("obeyed heal")
        job.wait_for_step(odd.steps[-1].step + 5)
        assert job.leave() == [0, 0, 0]
        unknown = "rank 2: what this means, or for whom, is not known: dance"
        assert [rank.complaints for rank in job.ranks] == ["", "", unknown]
        assert not any("WARN" in log.read_text() for log in (tmp_path / "job").glob("nccl.*.log"))


@pytest.mark.slow
@pytest.mark.long
def test_second_mix_begins_at_the_step_that_all_are_told(built: Path, tmp_path: Path) -> None:
    plan = plan_job(3, second_step=(Compute(1), Collective("dp", "AllGather", MIB)), steps=20, chunk_bytes=8192)
    with running(plan, built, tmp_path / "job") as (job, recordings):
        job.wait_for("ready")
        job.command("second 12")
        job.wait_for("done")
        recordings.read(4)
    counted = Counter((row["rank"], row["func"]) for row in recordings.rows("collectives"))
    assert counted == {(rank, func): n for rank in range(3) for func, n in (("AllReduce", 12), ("AllGather", 8))}


@contextmanager
def connected(plan: JobPlan, built: Path, folder: Path) -> Iterator[tuple[Job, ConnectionsSource]]:
    """A job, and a source that is told which NIC has which address: on loopback the kernel lists only one."""
    place = Loopback()
    with start_job(place, plan, built, folder) as job:
        job.wait_for("ready")
        addresses = {place.address_of(host, nic): nic for host in plan.hosts for nic in plan.nics}
        with closing(ConnectionsSource("h0", kernel=Kernel(addresses=lambda _: addresses))) as source:
            yield job, source


def connections_of(plan: JobPlan, source: ConnectionsSource) -> list[dict[str, Any]]:
    rows = source.read(SystemClock().now_ns(), ()).tables["connections"].to_pylist()
    return [row for row in rows if row["job"] == plan.job]


def test_connections_are_found_with_nics_by_nccl_log_and_ports_by_sockets(built: Path, tmp_path: Path) -> None:
    ranks = 3
    plan = plan_job(ranks)
    seen: dict[tuple[int, int], int] = {}
    with connected(plan, built, tmp_path / "job") as (job, source):
        found = connections_of(plan, source)
        own = {(each.rank, each.channel): each.sport for rank in job.ranks for each in rank.sockets}

        def has_all_ports() -> bool:
            rows = connections_of(plan, source)
            seen.update({(row["rank"], row["channel"]): row["sport"] for row in rows if row["sport"]})
            return len(seen) == len(own)

        eventually(has_all_ports)
    comm = plan.comm_id("world", tuple(range(ranks)))
    assert {(row["comm"], row["transport"], row["source"]) for row in found} == {(comm, "socket", "nccl_log")}
    ends = {(row["rank"], row["peer"], row["channel"], row["direction"], row["nic"]) for row in found}
    assert ends == {
        (rank, (rank + (1 if way == "send" else -1)) % ranks, channel, way, NICS[channel])
        for rank in range(ranks)
        for channel in (0, 1)
        for way in ("send", "recv")
    }
    assert seen == own
    assert len(own) == ranks * 2


def test_told_source_port_is_used(built: Path, tmp_path: Path) -> None:
    port = free_port()
    plan = plan_job(3, source_ports={("world", 1, 2, 0): port})
    with start_job(Loopback(), plan, built, tmp_path / "job") as job:
        job.wait_for_step(1)
        ends = [(each.rank, each.peer, each.channel, each.nic) for each in job.ranks[2].sockets if each.sport == port]
    assert ends == [(2, 0, 1, "eth1")]


def test_inside_of_a_host_nothing_goes_over_the_network(built: Path, tmp_path: Path) -> None:
    plan = plan_job(4, per_host=2)
    with connected(plan, built, tmp_path / "job") as (job, source):
        found = connections_of(plan, source)
        sending = {(each.rank, each.peer) for rank in job.ranks for each in rank.sockets}
    assert sending == {(1, 2), (3, 0)}
    assert {(row["rank"], row["peer"]) for row in found if row["transport"] == "shm"} == {(0, 1), (2, 3)}
