"""Data-parallel jobs on loopback, replicas of which are killed or stopped: `python -m tests.testbed.replicas`.

Replicas are forked after torch is imported, which takes longer than the jobs. Each tells every settled step in a line
of `lines.jsonl`, and leaves its parameters at the end.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from lockstep.errors import LockstepError
from lockstep.verdict import Frozen
from planner.controllers.in_job import InJobController, InJobOptions
from planner.controllers.protocol import Shrink
from tests.planner.fake_controller import make_world
from tests.testbed.training.forking import fork_child
from tests.waiting import eventually

BEAT_S = 0.05
_LINES = "lines.jsonl"


class Fault(Frozen):
    """What happens to a replica in the middle of a step."""

    replica: int
    step: int
    kind: Literal["kill", "stop"] = "kill"
    after: int = Field(0, description="micro-batches, or buckets, that it has done in the step")
    where: Literal["micro-batches", "buckets"] = "micro-batches"
    ordered: bool = Field(False, description="the planner's controller orders it out")
    back: bool = Field(False, description="it comes back while the others wait before the second step after it")


class ReplicaJob(Frozen):
    """A job, and what is done to it."""

    folder: Path
    replicas: int = 3
    micro_batches: int = 6
    steps: int = 6
    faults: tuple[Fault, ...] = ()
    pause_s: float = Field(0.0, description="of each micro-batch, as if a device worked on it")
    ends_with_fault: bool = Field(
        False, description="all are killed then, as by a launcher that knows whole jobs only"
    )
    snapshots: bool = False
    options: Mapping[str, Any] = {}  # Any: of TrainingOptions


@dataclass(frozen=True, slots=True)
class ReplicaRun:
    """What the replicas told: (replica, step) to loss and number of replicas, and threads of each in its steps."""

    told: Mapping[tuple[int, int], tuple[float, int]]
    threads: Mapping[int, list[int]]

    def losses(self) -> list[float]:
        """Return the loss of each step, on which all that told of it agree."""
        by_step: dict[int, set[float]] = {}
        for (_, step), (loss, _) in self.told.items():
            by_step.setdefault(step, set()).add(loss)
        assert all(len(losses) == 1 for losses in by_step.values()), by_step
        return [losses.pop() for _, losses in sorted(by_step.items())]


_JOBS = TypeAdapter(list[ReplicaJob])


def run_replicas(jobs: Sequence[ReplicaJob], limit_s: float) -> list[ReplicaRun]:
    """Run the jobs one after the other in a process of their own."""
    command = [sys.executable, "-m", "tests.testbed.replicas"]
    given = _JOBS.dump_json(list(jobs)).decode()
    ended = subprocess.run(command, input=given, stderr=subprocess.PIPE, text=True, timeout=limit_s)
    if ended.returncode:
        raise LockstepError(f"a job failed with {ended.returncode}: {ended.stderr[-3000:]}")
    return [_read(job.folder) for job in jobs]


def _read(folder: Path) -> ReplicaRun:
    rows = [json.loads(line) for line in (folder / _LINES).read_text().splitlines()]
    threads: dict[int, list[int]] = {}
    for row in rows:
        threads.setdefault(row["replica"], []).append(row["threads"])
    return ReplicaRun({(row["replica"], row["step"]): (row["loss"], row["replicas"]) for row in rows}, threads)


def run_here(job: ReplicaJob) -> None:
    """Start all replicas, bring back those that are to come back, and wait for the end of all."""
    job.folder.mkdir(parents=True, exist_ok=True)
    pids = {replica: _start(job, replica, job.faults) for replica in range(job.replicas)}
    try:
        for fault in job.faults:
            if job.ends_with_fault:
                os.waitpid(pids.pop(fault.replica), 0)
                return
            _follow(job, fault, pids)
        codes = {replica: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for replica, pid in pids.items()}
        pids.clear()
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
    if any(codes.values()):
        raise LockstepError(f"replicas failed: {codes}")


def _start(job: ReplicaJob, replica: int, faults: Sequence[Fault]) -> int:
    from tests.testbed.replica_program import live

    return fork_child(lambda: live(job, replica, faults))


def _follow(job: ReplicaJob, fault: Fault, pids: dict[int, int]) -> None:
    """Wait until a replica is dead or stopped; bring it back if that is asked for."""
    _, status = os.waitpid(pids[fault.replica], os.WUNTRACED)
    assert os.WIFSIGNALED(status) if fault.kind == "kill" else os.WIFSTOPPED(status), f"{fault}: {status}"
    if fault.kind == "kill":
        del pids[fault.replica]
        if fault.back:
            pids[fault.replica] = _start(job, fault.replica, ())
        return
    if fault.ordered:
        controller = InJobController(InJobOptions(str(job.folder), "fake"), make_world(job.folder / "world.json", ()))
        report = controller.shrink(Shrink("d1", "train", "drop_replica", (f"h{fault.replica}",)))
        assert report.outcome == "done", report
    eventually(lambda: (job.folder / (f"held-{fault.step}" if fault.back else "over.json")).exists())
    if fault.back:
        os.kill(pids[fault.replica], signal.SIGCONT)
    else:
        pid = pids.pop(fault.replica)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for given in _JOBS.validate_json(sys.stdin.read()):
        run_here(given)
