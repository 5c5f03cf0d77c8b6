"""A story from beginning to end on a real fabric: build it, run the job, break it on time, hear what is said."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from lockstep.clock import NS_PER_S, SystemClock
from lockstep.sim.story import BENIGN, Story, build_topology
from lockstep.sim.timeline import Turn
from testbed.fabric.building import build_fabric
from testbed.fabric.fabric import Fabric
from testbed.fabric.options import ShapeOptions, scale_of
from testbed.faults.breaker import Breaker
from testbed.ranks import build_ranks
from testbed.stories.casting import cast_truth, check_playable, lines_for, plan_job, ranks_of
from testbed.stories.head_node import HeadNode
from testbed.stories.outcome import Listener, Outcome, Pace
from testbed.workers.job import Job, rings_of, start_job

Note = Callable[[str], None]
_LOOK_S = 0.25
_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Stage:
    """Everything that runs while a story is told."""

    fabric: Fabric
    head: HeadNode
    job: Job


def tell(story: Story, seed: int, note: Note, keep: Path | None = None) -> Outcome:
    """Tell a story in real time and return what was said of it; needs root, and leaves nothing behind."""
    check_playable(story)
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-testbed-")))
        stage = stack.enter_context(_set(story, seed, folder, note))
        began_ns, listener = SystemClock().now_ns(), Listener()
        broke_ns = _play(story, stage, note, listener)
        pace = Pace(broke_ns or began_ns, _step_ends(stage.job))
        return Outcome(cast_truth(story), began_ns, tuple(stage.head.incidents()), pace, tuple(listener.said))


@contextmanager
def _set(story: Story, seed: int, folder: Path, note: Note) -> Iterator[Stage]:
    """Build fabric, head node, collectors and ranks, and wait until the job is under way."""
    topology, options = build_topology(story.cluster), ShapeOptions()
    note("building plugin and ranks")
    built = folder / "built"
    build_ranks(built)
    with ExitStack() as stack:
        note(f"building {len(topology.hosts)} hosts and {len(topology.switches)} switches")
        fabric = stack.enter_context(build_fabric(topology, options))
        head = stack.enter_context(HeadNode(folder / "state", fabric))
        plan = plan_job(story, scale_of(topology, options) / 1000, seed)
        note(f"starting {plan.layout.ranks} ranks and their collectors; {head.url} answers")
        job = stack.enter_context(start_job(fabric, plan, built, folder / "job", limit_s=int(story.duration_s) + 120))
        for host in dict.fromkeys(plan.hosts):
            if host not in story.telling.without:
                head.start_collector(host, rings_of(folder / "job", host))
        job.wait_for_step(_WARM_UP_STEPS)
        yield Stage(fabric, head, job)


def _play(story: Story, stage: Stage, note: Note, listener: Listener) -> int | None:
    """Follow the timeline to the story's end, and listen; return when the first fault was there."""
    clock = SystemClock()
    begin_ns, told, broke_ns = clock.monotonic_ns(), set[Turn](), None
    with Breaker(stage.fabric, lambda part: _processes_of(story, stage.job, part)) as breaker:
        now_s = 0.0
        while now_s < story.duration_s:
            breaker.follow(story.timeline, now_s)
            for turn in (t for t in story.timeline if t.at_s <= now_s and t not in told):
                told.add(turn)
                note(f"{now_s:.0f} s: {turn.part or 'the job'} {turn.effect}")
                _tell_ranks(story, stage.job, turn)
                broke_ns = broke_ns or (clock.now_ns() if turn.effect not in BENIGN else None)
            with suppress(httpx.TransportError):  # busy: it is asked again
                listener.hear(stage.head.incidents(), clock.now_ns())
            clock.wait(threading.Event(), _LOOK_S)
            now_s = (clock.monotonic_ns() - begin_ns) / NS_PER_S
    return broke_ns


def _step_ends(job: Job) -> tuple[int, ...]:
    """Return when each step was done by all ranks that are there."""
    ends = [[step.end_ns for step in rank.steps] for rank in job.ranks]
    return tuple(max(step) for step in zip(*ends, strict=False))


def _tell_ranks(story: Story, job: Job, turn: Turn) -> None:
    step = max((len(rank.steps) for rank in job.ranks), default=0)
    for line in lines_for(turn, step):
        ranks = range(len(job.ranks)) if turn.effect == "heal" else ranks_of(story, turn)
        for rank in ranks:
            job.ranks[rank].tell(line)


def _processes_of(story: Story, job: Job, part: str) -> list[int]:
    turn = next(t for t in story.timeline if t.part == part)
    return [job.ranks[rank].process.pid for rank in ranks_of(story, turn)]
