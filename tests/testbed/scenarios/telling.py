"""A scenario from beginning to end on a real fabric: build it, run the job, break it on time, hear what is said."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from lockstep.clock import NS_PER_S, SystemClock
from simulator.faults import Fault
from simulator.scenario import BENIGN, Scenario, build_topology
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.options import ShapeOptions, scale_of
from tests.testbed.faults.breaker import Breaker
from tests.testbed.ranks import build_ranks
from tests.testbed.scenarios.casting import cast_truth, check_playable, lines_for, plan_job, ranks_of
from tests.testbed.scenarios.head_node import HeadNode
from tests.testbed.scenarios.outcome import Listener, Outcome, Pace
from tests.testbed.workers.job import Job, rings_of, start_job

Note = Callable[[str], None]
_LOOK_S = 0.25
_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Stage:
    """Everything that runs while a scenario is told."""

    fabric: Fabric
    head: HeadNode
    job: Job


def tell(scenario: Scenario, seed: int, note: Note, keep: Path | None = None) -> Outcome:
    """Tell a scenario in real time and return what was said of it; needs root, and leaves nothing behind."""
    check_playable(scenario)
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-testbed-")))
        stage = stack.enter_context(_set(scenario, seed, folder, note))
        began_ns, listener = SystemClock().now_ns(), Listener()
        broke_ns = _play(scenario, stage, note, listener)
        pace = Pace(broke_ns or began_ns, _step_ends(stage.job))
        return Outcome(cast_truth(scenario), began_ns, tuple(stage.head.incidents()), pace, tuple(listener.said))


@contextmanager
def _set(scenario: Scenario, seed: int, folder: Path, note: Note) -> Iterator[Stage]:
    """Build fabric, head node, collectors and ranks, and wait until the job is under way."""
    topology, options = build_topology(scenario.cluster), ShapeOptions()
    note("building plugin and ranks")
    built = folder / "built"
    build_ranks(built)
    with ExitStack() as stack:
        note(f"building {len(topology.hosts)} hosts and {len(topology.switches)} switches")
        fabric = stack.enter_context(build_fabric(topology, options))
        head = stack.enter_context(HeadNode(folder / "state", fabric))
        plan = plan_job(scenario, scale_of(topology, options) / 1000, seed)
        note(f"starting {plan.layout.ranks} ranks and their collectors; {head.url} answers")
        job = stack.enter_context(
            start_job(fabric, plan, built, folder / "job", limit_s=int(scenario.duration_s) + 120)
        )
        for host in dict.fromkeys(plan.hosts):
            if host not in scenario.telemetry.without:
                head.start_collector(host, rings_of(folder / "job", host))
        job.wait_for_step(_WARM_UP_STEPS)
        yield Stage(fabric, head, job)


def _play(scenario: Scenario, stage: Stage, note: Note, listener: Listener) -> int | None:
    """Follow the timeline to the scenario's end, and listen; return when the first fault was there."""
    clock = SystemClock()
    begin_ns, told, broke_ns = clock.monotonic_ns(), set[Fault](), None
    with Breaker(stage.fabric, lambda part: _processes_of(scenario, stage.job, part)) as breaker:
        now_s = 0.0
        while now_s < scenario.duration_s:
            breaker.follow(scenario.timeline, now_s)
            for fault in (t for t in scenario.timeline if t.at_s <= now_s and t not in told):
                told.add(fault)
                note(f"{now_s:.0f} s: {fault.part or 'the job'} {fault.effect}")
                _tell_ranks(scenario, stage.job, fault)
                broke_ns = broke_ns or (clock.now_ns() if fault.effect not in BENIGN else None)
            with suppress(httpx.TransportError):  # busy: it is asked again
                listener.hear(stage.head.incidents(), clock.now_ns())
            clock.wait(threading.Event(), _LOOK_S)
            now_s = (clock.monotonic_ns() - begin_ns) / NS_PER_S
    return broke_ns


def _step_ends(job: Job) -> tuple[int, ...]:
    """Return when each step was done by all ranks that are there."""
    ends = [[step.end_ns for step in rank.steps] for rank in job.ranks]
    return tuple(max(step) for step in zip(*ends, strict=False))


def _tell_ranks(scenario: Scenario, job: Job, fault: Fault) -> None:
    step = max((len(rank.steps) for rank in job.ranks), default=0)
    for line in lines_for(fault, step):
        ranks = range(len(job.ranks)) if fault.effect == "heal" else ranks_of(scenario, fault)
        for rank in ranks:
            job.ranks[rank].tell(line)


def _processes_of(scenario: Scenario, job: Job, part: str) -> list[int]:
    fault = next(t for t in scenario.timeline if t.part == part)
    return [job.ranks[rank].process.pid for rank in ranks_of(scenario, fault)]
