"""A pipeline that loses workers has the losses and parameters of plain torch in one process."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch

from lockstep.in_job import Effect, Generation, JobFolder, Place
from lockstep.pipeline.checking import place_failures
from lockstep.pipeline.dispatch import ScheduleOptions, plan_schedule
from lockstep.pipeline.schedule import Shape, StepSchedule, pack_schedule, unit_times
from lockstep.training.plans import plan_name
from tests.testbed.training.jobs import Fault, TrainingJob, TrainingRun, run_jobs
from tests.testbed_checks.training.plain_loop import PlainRun, train_plainly
from tests.tiers import long_except
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slow

STEPS, FREE = 6, 1e6  # two steps are settled before the first fault, so that the speed before is known
KILLED = Fault(replica=1, stage=1, step=2, after=6)
STOPPED = Fault(replica=1, stage=0, step=3, after=2, kind="stop")
HUNG = Fault(replica=0, stage=0, step=2, kind="hang")
POISONED = Fault(replica=0, stage=1, step=1, kind="poison")
DEEP = {"replicas": 2, "stages": 3, "micro_batches": 6}  # has a stage with neighbours on both sides


def back(fault: Fault) -> Fault:
    return fault.model_copy(update={"back": True})


CASES: dict[str, dict[str, Any]] = {  # Any: fields of a job
    "whole": {},
    "killed": {"faults": (KILLED,)},
    "killed before a step is validated": {"faults": (Fault(replica=1, stage=1, step=3, after=0),)},
    # The first one finds that it was given up, and leads again when it is back.
    "killed and back, while another one hangs, nothing to clip": {
        "faults": (back(KILLED), back(HUNG)),
        "largest_norm": FREE,
        "options": {"answer_s": 2.0},
    },
    "first one killed and back": {"faults": (back(Fault(replica=0, stage=0, step=2, after=6)),)},
    "stopped": {"faults": (STOPPED,)},
    # Nobody would give it up by himself.
    "stopped, ordered out": {
        "faults": (STOPPED.model_copy(update={"ordered": True}),),
        "options": {"silence_s": LIMIT_S},
    },
    "stopped and back": {"faults": (back(STOPPED),)},
    "two killed": {"faults": (KILLED, Fault(replica=0, stage=0, step=3, after=3))},
    "two of one stage killed": {"replicas": 3, "faults": (KILLED, Fault(replica=0, stage=1, step=3, after=1))},
    "poisoned": {"faults": (POISONED,)},
    "poisoned and killed": {"faults": (POISONED, Fault(replica=1, stage=1, step=3, after=4))},
    "deep, killed and back": {**DEEP, "faults": (back(KILLED),)},
    "killed, by plans of the folder": {"faults": (KILLED,)},
}
KEPT = {
    "killed and back, while another one hangs, nothing to clip",
    "stopped and back",
    "stopped, ordered out",
    "poisoned",
}
# Sums of float32 in another order differ in the last places, 1.2e-7 of values around 1.
TOLERANCE = 1e-6
Runs = Mapping[str, tuple[TrainingJob, TrainingRun]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Runs:
    mine = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    chosen = {item.callspec.params.get("name") for item in mine}
    folder = tmp_path_factory.mktemp("pipelines")
    shape = {"replicas": 2, "stages": 2, "micro_batches": 6, "steps": STEPS}
    jobs = {
        name: TrainingJob.model_validate({"folder": folder / str(number), **shape, **case})
        for number, (name, case) in enumerate(CASES.items())
        if name in chosen
    }
    for name in jobs.keys() & {"killed, by plans of the folder"}:
        lay_coupled_plans(jobs[name])
    done = run_jobs(list(jobs.values()), LIMIT_S)
    return {name: (jobs[name], run) for name, run in zip(jobs, done, strict=True)}


def lay_coupled_plans(job: TrainingJob) -> None:
    """Write plans with backwards in one piece, as a controller may."""
    shape = Shape(job.stages, job.replicas, job.micro_batches // job.replicas)
    for split in ((0, 0), (0, 1)):
        made = plan_schedule(shape, unit_times(2), place_failures(split), ScheduleOptions(is_decoupled=False))
        JobFolder(job.folder).write(plan_name(split), pack_schedule(made))


def plain(job: TrainingJob) -> PlainRun:
    skipped = frozenset(fault.step for fault in job.faults if fault.kind == "poison")
    return train_once(job.stages, job.micro_batches, job.largest_norm, skipped)


@cache
def train_once(stages: int, micro_batches: int, largest_norm: float, skipped: frozenset[int]) -> PlainRun:
    return train_plainly(stages, micro_batches, STEPS, largest_norm, skipped)


def gone(job: TrainingJob) -> set[Place]:
    return {(fault.replica, fault.stage) for fault in job.faults if not fault.back and fault.kind != "poison"}


@pytest.mark.parametrize("name", long_except(KEPT, CASES))
def test_losses_and_parameters_are_those_of_plain_torch(runs: Runs, name: str) -> None:
    job, run = runs[name]
    expected = plain(job)
    assert run.losses() == pytest.approx(expected.losses, rel=TOLERANCE)
    for replica, stage in set(job.places) - gone(job):
        end = torch.load(job.folder / f"end-{replica}-{stage}.pt", weights_only=True)
        differences = {key: float((end[key] - expected.parameters[stage][key]).abs().max()) for key in end}
        assert max(differences.values()) < TOLERANCE, (replica, stage, differences)


@pytest.mark.parametrize("name", long_except(KEPT, CASES))
def test_each_step_is_validated_by_the_norm_of_all_stages_and_amended_where_it_bites(runs: Runs, name: str) -> None:
    job, run = runs[name]
    expected = plain(job)
    poisoned = {fault.step for fault in job.faults if fault.kind == "poison"}
    for (place, step), line in run.told.items():
        if step in poisoned:
            assert (math.isnan(line["norm"]), line["factor"]) == (True, 0.0), place
            continue
        assert line["norm"] == pytest.approx(expected.norms[step], rel=1e-5)
        clips = expected.norms[step] > job.largest_norm
        assert line["factor"] == pytest.approx(job.largest_norm / line["norm"] if clips else 1.0, rel=1e-5)
        assert not line["redone"] or clips
    if job.largest_norm < FREE:
        assert max(line["redone"] for line in run.told.values()) > 0, "nobody did anything ahead of a validation"


@pytest.mark.parametrize("name", long_except(KEPT, CASES))
def test_lost_workers_are_gone_from_the_next_generation_or_come_back(runs: Runs, name: str) -> None:
    job, run = runs[name]
    folder = JobFolder(job.folder)
    generations = list(folder.generations())
    lost = [fault for fault in job.faults if fault.kind != "poison"]
    for fault in lost:
        place = (fault.replica, fault.stage)
        starts = [{each.start for each in now.members if each.place == place} for now in generations]
        assert starts[0] != starts[-1] if not fault.back or fault.kind == "kill" else set() in starts
        assert (place, fault.step) not in run.told or fault.back
    last = {line["members"] for (_, step), line in run.told.items() if step == STEPS - 1}
    assert last == {len(job.places) - len(gone(job))}
    assert all(counts[-1] <= max(counts[:2]) for counts in run.threads.values()), "a group that is over has a thread"
    check_plans(folder, generations)
    if lost and (0, 0) not in [
        (fault.replica, fault.stage) for fault in lost
    ]:  # who comes anew knows no speed before
        effects = [folder.read(f"effects/{now.number}.json", Effect) for now in generations]
        assert any(effect is not None for effect in effects)


def check_plans(folder: JobFolder, generations: list[Generation]) -> None:
    for now in generations:
        plan = folder.read(f"schedules/{now.number}.json", StepSchedule)
        if plan is not None:  # a generation may be given up before it works
            assert len({op.worker for op in plan.ops}) == len(now.members)
