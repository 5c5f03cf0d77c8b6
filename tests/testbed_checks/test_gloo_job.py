"""A real torch.distributed job runs with its ranks forked from one process, and ends when one of them does."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from lockstep.fabrics import FabricOptions, leaf_spine
from simulator.faults import parse_fault
from tests.testbed.fabric.building import build_fabric
from tests.testbed.faults.breaker import Breaker
from tests.testbed.gloo_job import GlooPlan, GlooRank, read_steps, start_gloo_job
from tests.testbed.services import free_port
from tests.waiting import LIMIT_S, eventually


@contextmanager
def running(log: Path, ranks: int, steps: int) -> Iterator["tuple[int, list[int | None]]"]:
    """Run a job on loopback; give the parent's number, and after the block its exit code."""
    plan = GlooPlan(
        ranks=(GlooRank(interface="lo"),) * ranks, address="127.0.0.1", port=free_port(), steps=steps, bytes=1 << 16
    )
    codes: list[int | None] = []
    with start_gloo_job(plan, log) as process:
        try:
            yield process.pid, codes
            codes.append(process.wait(LIMIT_S))
        finally:
            for child in children_of(process.pid):
                os.kill(child, signal.SIGKILL)
            process.kill()


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


@pytest.mark.slow
def test_every_rank_tells_the_time_of_every_step_and_the_sums_are_right(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(log, ranks=4, steps=5) as (_, codes):
        pass

    assert codes == [0], log.read_text()
    steps = read_steps(log)
    assert Counter((step.rank, step.step) for step in steps) == {
        (rank, step): 1 for rank in range(4) for step in range(5)
    }
    assert {step.sum for step in steps} == {1.0 + 2 + 3 + 4}
    assert all(step.ms > 0 for step in steps)


@pytest.mark.slow
def test_killed_rank_ends_the_job_with_a_sentence(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(log, ranks=3, steps=1_000_000) as (pid, codes):
        eventually(lambda: len(read_steps(log)) > 30)
        os.kill(children_of(pid)[1], signal.SIGKILL)

    assert codes == [1]
    assert "ranks of the gloo job have failed: 0 with 1, 1 with -9, 2 with 1" in log.read_text()


@pytest.mark.slow
def test_ranks_end_with_the_process_that_forked_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(log, ranks=2, steps=1_000_000) as (pid, _):
        eventually(lambda: len(read_steps(log)) > 10)
        children = children_of(pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(is_alive(child) for child in children))

    assert len(children) == 2


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_plan_travels_as_json_and_a_job_without_ranks_is_none() -> None:
    plan = GlooPlan(
        ranks=(GlooRank(interface="eth0", namespace="x-h0"),), address="10.1.0.2", port=1, steps=1, bytes=4
    )

    assert GlooPlan.model_validate(json.loads(plan.model_dump_json())) == plan
    with pytest.raises(ValueError, match="ranks"):
        GlooPlan.model_validate(json.loads(plan.model_dump_json()) | {"ranks": []})


def test_complaints_between_the_steps_are_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('[W] connection\n{"rank":1,"step":0,"ms":2.5,"sum":3.0}\n{"rank":1,"ste')

    assert [(step.rank, step.ms) for step in read_steps(log)] == [(1, 2.5)]


@pytest.mark.slow
@pytest.mark.needs_root
def test_real_framework_on_the_fabric_waits_for_one_slow_cable(tmp_path: Path) -> None:
    """Unmodified torch ranks, one a host: with a cable at a tenth of its rate all of them are slower together."""
    topology = leaf_spine(4, 1, leaves=2, spines=2, options=FabricOptions(gpus_per_host=1, gbps=0.2))
    log = tmp_path / "log"
    with build_fabric(topology) as fabric, Breaker(fabric) as breaker:
        ranks = tuple(GlooRank(interface="eth0", namespace=fabric.namespace_of(f"h{rank}")) for rank in range(4))
        plan = GlooPlan(ranks=ranks, address=fabric.address_of("h0", "eth0"), port=29500, steps=12, bytes=1 << 20)
        with start_gloo_job(plan, log) as process:
            try:
                eventually(lambda: all(times_of(log, rank)[5:] for rank in range(4)))
                breaker.apply(parse_fault("at 0 s fail link:h2/eth0--leaf1 to 10 %"))
                assert process.wait(LIMIT_S) == 0, log.read_text()
            finally:
                process.kill()
    for rank in range(4):
        healthy, slow = times_of(log, rank)[1:6], times_of(log, rank)[8:]
        assert median(slow) > 2 * median(healthy), (healthy, slow)


def times_of(log: Path, rank: int) -> list[float]:
    return [step.ms for step in read_steps(log) if step.rank == rank]
