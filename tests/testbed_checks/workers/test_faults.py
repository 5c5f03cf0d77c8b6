"""What a rank is told makes it the one that real faults would make it, and a job always ends."""

import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from lockstep.errors import LockstepError
from tests.testbed.workers.job import start_job
from tests.testbed.workers.loopback import Loopback
from tests.testbed.workers.plan import Collective, Compute, JobPlan
from tests.testbed_checks.workers.jobs import MIB, Recordings, following, plan_job, running
from tests.waiting import eventually

ODD = 2  # the rank that is told something
STEPS = 12  # watched after that
STILL_S = 0.5  # without a step, of which there are 50 in a second, a job stands still


def record_with(plan: JobPlan, line: str, built: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the operations of the steps in which the odd rank does what the line says."""
    with following(plan.hosts, folder) as recordings, running(plan, built, folder) as job:
        job.wait_for_step(2)
        job.ranks[ODD].tell(line)
        job.ranks[ODD].wait_for(f"obeyed {line}")
        first = job.ranks[ODD].steps[-1].step + 2
        recordings.read()
        job.wait_for_step(first + STEPS)
        recordings.read(6)
    return [row for row in recordings.rows("collectives") if first <= row["seq"] < first + STEPS]


def find_usually_last(operations: list[dict[str, Any]], column: str) -> int | None:
    """Return the rank that was the last in most operations: not all, since a busy machine may hold up anybody."""
    last: dict[int, dict[str, Any]] = {}
    for row in operations:
        if row["seq"] not in last or row[column] > last[row["seq"]][column]:
            last[row["seq"]] = row
    rank, times = Counter(row["rank"] for row in last.values()).most_common(1)[0]
    return rank if times > STEPS / 2 else None


def median_ns(operations: list[dict[str, Any]], rank: int, begin: str, end: str) -> float:
    return float(median(row[end] - row[begin] for row in operations if row["rank"] == rank))


def test_late_rank_enqueues_last(built: Path, tmp_path: Path) -> None:
    operations = record_with(plan_job(4), "late 100", built, tmp_path / "job")

    assert find_usually_last(operations, "enqueue_ns") == ODD


def test_slow_rank_enqueues_in_time_and_its_kernels_begin_last_and_are_short(built: Path, tmp_path: Path) -> None:
    plan = plan_job(4, (Compute(10), Collective("world", "AllReduce", MIB)), per_host=2)
    operations = record_with(plan, "slow 10", built, tmp_path / "job")

    assert {row["clock"] for row in operations} == {"gpu"}
    assert find_usually_last(operations, "start_ns") == ODD
    durations = {rank: median_ns(operations, rank, "start_ns", "end_ns") for rank in range(4)}
    assert min(durations, key=lambda rank: durations[rank]) == ODD
    assert median_ns(operations, ODD, "enqueue_ns", "start_ns") > 9 * 10_000_000  # it computes for so long in between


def heads_of(recordings: Recordings, ranks: int) -> dict[int, tuple[int, str]]:
    """Return of each rank how many operations it has begun, and what the oldest open one waits for, as of now."""
    recordings.read()
    newest = {row["rank"]: row for row in recordings.rows("progress")[-4 * ranks :]}
    return {rank: (row["enqueued"], row["head_state"]) for rank, row in newest.items()}


def watch_hang(plan: JobPlan, line: str, built: Path, folder: Path) -> tuple[Recordings, dict[int, tuple[int, str]]]:
    with following(plan.hosts, folder) as recordings, running(plan, built, folder) as job:
        job.wait_for_step(2)
        job.ranks[ODD].tell(line)
        job.ranks[ODD].wait_for(f"obeyed {line}")
        before: dict[int, tuple[int, str]] = {}

        def stands_still() -> bool:
            nonlocal before
            threading.Event().wait(STILL_S)
            heads, again = heads_of(recordings, len(plan.hosts)), before
            before = heads
            return (
                len(heads) == len(plan.hosts)
                and heads == again
                and {state for _, state in heads.values()} != {"idle"}
            )

        eventually(stands_still)
        return recordings, before


def test_absent_rank_is_one_operation_behind_and_all_others_wait_to_receive(built: Path, tmp_path: Path) -> None:
    _, heads = watch_hang(plan_job(4), "absent", built, tmp_path / "job")

    begun = {rank: enqueued for rank, (enqueued, _) in heads.items()}
    assert {rank: begun[0] - count for rank, count in begun.items()} == {0: 0, 1: 0, ODD: 1, 3: 0}
    assert heads[ODD][1] == "idle"
    assert heads[3][1] == "recv_wait"


def test_stuck_kernel_is_where_data_has_come_and_nobody_takes_it(built: Path, tmp_path: Path) -> None:
    _, heads = watch_hang(plan_job(4), "stuck", built, tmp_path / "job")

    assert heads[ODD][0] == min(
        enqueued for enqueued, _ in heads.values()
    )  # others may have just ended that operation
    assert heads[ODD][1] in ("recv_gpu_wait", "gpu_wait")
    assert heads[3][1] == "recv_wait"


def test_rank_of_another_size_is_seen_in_what_is_open(built: Path, tmp_path: Path) -> None:
    recordings, _ = watch_hang(plan_job(4), "mismatch 20", built, tmp_path / "job")

    open_bytes = {(row["rank"], row["open_bytes"]) for row in recordings.rows("progress") if row["open_bytes"]}
    assert (ODD, 20 * MIB) in open_bytes
    assert {rank for rank, size in open_bytes if size == 20 * MIB} == {ODD}


def test_reversed_order_of_two_communicators_is_a_deadlock(built: Path, tmp_path: Path) -> None:
    step = (Compute(2), Collective("world", "AllReduce", MIB), Collective("dp", "AllReduce", MIB))
    folder = tmp_path / "job"
    with running(plan_job(3, step), built, folder, limit_s=3) as job:
        job.wait_for_step(2)
        job.ranks[ODD].tell("reversed")

        assert job.wait_until_over() == [3, 3, 3]


def test_neighbours_of_a_killed_rank_say_so_and_fail(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with running(plan_job(5), built, folder) as job:
        job.wait_for_step(2)
        job.ranks[ODD].process.kill()

        assert job.wait_until_over() == [1, 1, -signal.SIGKILL, 1, 1]
        assert "rank 2 is gone" in job.ranks[ODD + 1].complaints
        log = (folder / f"nccl.{job.ranks[ODD + 1].process.pid}.log").read_text()
        assert "NCCL WARN socketProgress: Connection closed by remote peer h2" in log


def test_ranks_that_are_told_to_leave_in_mid_work_leave_without_complaint(built: Path, tmp_path: Path) -> None:
    with running(plan_job(5), built, tmp_path / "job") as job:
        job.wait_for_step(2)

        assert job.leave() == [0] * 5
        assert [rank.complaints for rank in job.ranks] == [""] * 5
        assert not any("WARN" in log.read_text() for log in (tmp_path / "job").glob("nccl.*.log"))


def test_job_that_stands_still_ends_at_its_limit(built: Path, tmp_path: Path) -> None:
    with running(plan_job(3), built, tmp_path / "job", limit_s=3) as job:
        job.wait_for_step(2)
        job.ranks[ODD].tell("absent")

        assert job.wait_until_over() == [3, 3, 3]
        assert "is not done within 3 s" in job.ranks[0].complaints
        assert job.ranks[ODD].complaints == "rank 2: absent for 3 s"
        with pytest.raises(LockstepError, match="rank 0 ended with 3: rank 0: step"):
            job.wait_for_step(10_000)


class Deserted(Loopback):
    """A place on which one host starts nothing."""

    def run_in(self, host: str, command: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        return super().run_in(host, ["true"] if host == "h1" else command, env)


def test_rank_that_never_comes_is_not_waited_for_for_ever(built: Path, tmp_path: Path) -> None:
    with start_job(Deserted(), plan_job(2), built, tmp_path / "job", limit_s=1) as job:
        assert job.wait_until_over() == [3, 0]
        assert job.ranks[0].complaints == "rank 0: rank 1 has not come"


def test_healed_rank_goes_on_as_before_and_a_line_that_means_nothing_is_said(built: Path, tmp_path: Path) -> None:
    with running(plan_job(3), built, tmp_path / "job") as job:
        job.wait_for_step(2)
        odd = job.ranks[ODD]
        odd.tell("stuck")
        odd.wait_for("obeyed stuck")
        odd.tell("dance")
        odd.tell("heal")
        odd.wait_for("obeyed heal")
        job.wait_for_step(odd.steps[-1].step + 5)

        assert job.leave() == [0, 0, 0]
        assert odd.complaints == "rank 2: what this means, or for whom, is not known: dance"


def test_second_mix_begins_at_the_step_that_all_are_told(built: Path, tmp_path: Path) -> None:
    plan = plan_job(3, second_step=(Compute(1), Collective("dp", "AllGather", MIB)), steps=60)
    folder = tmp_path / "job"
    with following(plan.hosts, folder) as recordings, running(plan, built, folder) as job:
        job.wait_for("ready")
        job.tell("second 40")
        job.wait_for("done")
        recordings.read(4)
        counted = Counter((row["rank"], row["func"]) for row in recordings.rows("collectives"))
    assert counted == {
        (rank, func): count for rank in range(3) for func, count in (("AllReduce", 40), ("AllGather", 20))
    }
