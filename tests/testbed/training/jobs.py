"""Jobs of `lockstep.training` on loopback, processes of which are killed: `python -m tests.testbed.training.jobs`.

They are forked after torch is imported, which takes longer than the jobs. Each tells every settled step in a line
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
from lockstep.in_job import InJobAct, Place
from lockstep.verdict import Frozen
from planner.controllers.in_job import InJobController, InJobOptions
from planner.controllers.protocol import Shrink
from tests.planner.fake_controller import make_world
from tests.testbed.training.meeting import fork_child
from tests.waiting import eventually

BEAT_S = 0.05
LINES = "lines.jsonl"


class Fault(Frozen):
    """What happens to a process in the middle of a step."""

    replica: int
    stage: int = 0
    step: int
    kind: Literal["kill", "stop", "hang", "poison"] = Field(
        "kill",
        description="hang: it beats, and does nothing else when it should leave its group; "
        "poison: its gradient is not a number",
    )
    after: int = Field(0, description="micro-batches, or buckets, or pieces of work, that it has done in the step")
    where: Literal["micro-batches", "buckets"] = "micro-batches"
    ordered: bool = Field(False, description="the planner's controller orders it out")
    back: bool = Field(False, description="it comes back while the others wait before a step after it")


class TrainingJob(Frozen):
    folder: Path
    replicas: int = 3
    stages: int = 1
    micro_batches: int = 6
    steps: int = 6
    faults: tuple[Fault, ...] = ()
    pause_s: float = Field(0.0, description="of each micro-batch, or piece of work, as if a device did it")
    ends_with_fault: bool = Field(
        False, description="all are killed then, as by a launcher that knows whole jobs only"
    )
    snapshots: bool = False
    largest_norm: float = Field(1.0, description="of the gradients of a pipeline")
    options: Mapping[str, Any] = {}  # Any: of TrainingOptions

    @property
    def places(self) -> list[Place]:
        return [(replica, stage) for replica in range(self.replicas) for stage in range(self.stages)]

    def node(self, place: Place) -> str:
        return f"h{self.places.index(place)}"


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What the processes told, by place and step, and the threads of each in its steps."""

    told: Mapping[tuple[Place, int], Mapping[str, float]]
    threads: Mapping[Place, list[int]]

    def losses(self) -> list[float]:
        """Return the loss of each step, on which all that told of it agree."""
        by_step: dict[int, set[float]] = {}
        for (_, step), line in self.told.items():
            by_step.setdefault(step, set()).add(line["loss"])
        assert all(len(losses) == 1 for losses in by_step.values()), by_step
        return [losses.pop() for _, losses in sorted(by_step.items())]


_JOBS = TypeAdapter(list[TrainingJob])


def run_jobs(jobs: Sequence[TrainingJob], limit_s: float) -> list[TrainingRun]:
    """Run the jobs one after the other in a process of their own."""
    command = [sys.executable, "-m", "tests.testbed.training.jobs"]
    given = _JOBS.dump_json(list(jobs)).decode()
    ended = subprocess.run(command, input=given, stderr=subprocess.PIPE, text=True, timeout=limit_s)
    if ended.returncode:
        raise LockstepError(f"a job failed with {ended.returncode}: {ended.stderr[-3000:]}")
    return [_read(job.folder) for job in jobs]


def _read(folder: Path) -> TrainingRun:
    rows = [json.loads(line) for line in (folder / LINES).read_text().splitlines()]
    threads: dict[Place, list[int]] = {}
    for row in rows:
        threads.setdefault((row["replica"], row["stage"]), []).append(row["threads"])
    return TrainingRun({((row["replica"], row["stage"]), row["step"]): row for row in rows}, threads)


def run_here(job: TrainingJob) -> None:
    """Start all processes, bring back those that are to come back, and wait for the end of all."""
    job.folder.mkdir(parents=True, exist_ok=True)
    pids = {place: _start(job, place, job.faults) for place in job.places}
    try:
        for fault in (fault for fault in job.faults if fault.kind in {"kill", "stop"}):
            if job.ends_with_fault:
                os.waitpid(pids.pop((fault.replica, fault.stage)), 0)
                return
            _follow(job, fault, pids)
        codes = {place: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for place, pid in pids.items()}
        pids.clear()
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
    if any(codes.values()):
        raise LockstepError(f"processes failed: {codes}")


def _start(job: TrainingJob, place: Place, faults: Sequence[Fault]) -> int:
    from tests.testbed.training.programs import live_as_replica, live_in_pipeline

    live = live_in_pipeline if job.stages > 1 else live_as_replica
    return fork_child(lambda: live(job, place, faults))


def _follow(job: TrainingJob, fault: Fault, pids: dict[Place, int]) -> None:
    """Wait until a process is dead or stopped; bring it back if that is asked for."""
    place = fault.replica, fault.stage
    _, status = os.waitpid(pids[place], os.WUNTRACED)
    assert os.WIFSIGNALED(status) if fault.kind == "kill" else os.WIFSTOPPED(status), f"{fault}: {status}"
    if fault.kind == "kill":
        del pids[place]
        if fault.back:
            pids[place] = _start(job, place, [each for each in job.faults if each.kind == "poison"])
        return
    if fault.ordered:
        controller = InJobController(InJobOptions(str(job.folder), "fake"), make_world(job.folder / "world.json", ()))
        act: InJobAct = "recycle" if job.stages > 1 else "drop_replica"
        report = controller.shrink(Shrink("d1", "train", act, (job.node(place),)))
        assert report.outcome == "done", report
    eventually(lambda: (job.folder / (f"held-{fault.step}" if fault.back else "over.json")).exists())
    if fault.back:
        os.kill(pids[place], signal.SIGCONT)
    else:
        pid = pids.pop(place)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for given in _JOBS.validate_json(sys.stdin.read()):
        run_here(given)
