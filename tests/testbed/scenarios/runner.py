"""A scenario for real parts: whether it can be played, built, run, broken on time, and heard what is said of it."""

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from lockstep.clock import NS_PER_S, SystemClock
from lockstep.errors import NotPresent
from lockstep.topology import nic_name, split_end
from simulator.faults import Fault
from simulator.job import place_ranks
from simulator.scenario import BENIGN, Doing, Expectation, Scenario, build_topology
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.plan import ShapeOptions, scale_of
from tests.testbed.faults.breaker import Breaker, why_not
from tests.testbed.ranks import build_ranks
from tests.testbed.scenarios.head_node import HeadNode
from tests.testbed.workers.job import Job, rings_of, start_job
from tests.testbed.workers.plan import Collective, Compute, Item, JobPlan, Layout


@dataclass(frozen=True)
class ReportedVerdict:
    """What an incident says from a moment on, as one who asks the API all the time hears it."""

    at_ns: int
    evaluated_ns: int  # end of the telemetry that it was said of; what is later was spent on its way and on judging
    incident: str
    fault_class: str
    component: str
    confidence: float

    def is_right(self, wanted: Expectation) -> bool:
        return _names(self.fault_class, self.component, wanted)


@dataclass
class Listener:
    """Remembers what incidents said, each time that it was something new."""

    reported: list[ReportedVerdict] = field(default_factory=list)

    def receive(self, incidents: Iterable[dict[str, Any]], now_ns: int) -> None:
        """Note what is new in the incidents as the API gives them."""
        last = {each.incident: (each.fault_class, each.component) for each in self.reported}
        for incident in incidents:
            verdict = incident["verdict"]
            if last.get(incident["id"]) != (verdict["class"], verdict["component"]):
                words = verdict["class"], verdict["component"], verdict["confidence"]
                self.reported.append(ReportedVerdict(now_ns, incident["updated_ns"], incident["id"], *words))


@dataclass(frozen=True)
class Pace:
    """When the job's steps were done by all its ranks, in order, and when it was broken."""

    broke_ns: int
    step_ends_ns: tuple[int, ...]

    @property
    def usual_s(self) -> float:
        """The usual time from one step to the next before the fault; not a number while there were no two."""
        ends = [end_ns for end_ns in self.step_ends_ns if end_ns <= self.broke_ns]
        gaps = [later - sooner for sooner, later in pairwise(ends)]
        return median(gaps) / NS_PER_S if gaps else float("nan")

    def seconds_until(self, timestamp_ns: int) -> float:
        return (timestamp_ns - self.broke_ns) / NS_PER_S

    def steps_until(self, timestamp_ns: int) -> int:
        """Return how many steps the broken job did before a moment; one that hangs does none."""
        return sum(self.broke_ns < end_ns <= timestamp_ns for end_ns in self.step_ends_ns)

    def is_within(self, timestamp_ns: int, steps: int, seconds: float) -> bool:
        """Return whether a moment is at most some seconds after some steps; of a job that hangs, usual steps."""
        ends = [end_ns for end_ns in self.step_ends_ns if end_ns > self.broke_ns]
        done_ns = ends[steps - 1] if len(ends) >= steps else self.broke_ns + steps * self.usual_s * NS_PER_S
        return timestamp_ns <= done_ns + seconds * NS_PER_S


@dataclass(frozen=True)
class Outcome:
    """What the head node said of a scenario, and what it should have."""

    scenario: Scenario
    began_ns: int
    incidents: tuple[dict[str, Any], ...]
    pace: Pace
    reported: tuple[ReportedVerdict, ...] = ()

    @property
    def steps(self) -> int:
        return len(self.pace.step_ends_ns)

    @property
    def missed(self) -> list[Expectation]:
        return [
            wanted for wanted in self.scenario.expect if not any(self._is_right(i, wanted) for i in self.incidents)
        ]

    @property
    def wrong(self) -> list[dict[str, Any]]:
        return [i for i in self.incidents if not any(self._is_right(i, wanted) for wanted in self.scenario.expect)]

    @property
    def is_right(self) -> bool:
        return not self.missed and not self.wrong

    def first_right(self) -> ReportedVerdict | None:
        """Return the first right thing that was said after the fault; None when nothing was."""
        after = (each for each in self.reported if each.at_ns >= self.pace.broke_ns)
        return next((each for each in after if any(each.is_right(wanted) for wanted in self.scenario.expect)), None)

    def _is_right(self, incident: dict[str, Any], wanted: Expectation) -> bool:
        verdict = incident["verdict"]
        broke_s = wanted.after_s if wanted.after_s is not None else self.scenario.breaks_at_s or 0.0
        latest_ns = self.began_ns + (broke_s + wanted.within_s) * NS_PER_S
        return _names(verdict["class"], verdict["component"], wanted) and incident["opened_ns"] <= latest_ns


def _names(fault_class: str, component: str, wanted: Expectation) -> bool:
    is_class = fault_class in (wanted.fault_class, *wanted.also_class)
    return is_class and component in (wanted.component, *wanted.also_right)


Note = Callable[[str], None]
_POLL_S = 0.25
_WARM_UP_STEPS = 3
MOST_RANKS = 32  # on two cores
_RANK_EFFECTS = ("late", "absent", "mismatched", "deadlocked", "pause", "second mix", "stuck")
_LEAST_BYTES = 4096


def find_obstacles(scenario: Scenario) -> list[str]:
    """Return why the testbed cannot tell a scenario, a sentence each; nothing when it can."""
    _, cp, _, _, ep = scenario.layout
    cluster, clocks = scenario.cluster, scenario.clocks
    doings = (*scenario.job.steps, *scenario.job.second_step)
    obstacles = {
        f"it has {scenario.ranks} ranks, and two cores carry {MOST_RANKS}": scenario.ranks > MOST_RANKS,
        "there is no RDMA here, only sockets": cluster.transport != "socket",
        "ranks of the testbed know no context or expert parallelism": cp > 1 or ep > 1,
        "ranks of the testbed play no pipelines and no all-to-all": any(
            doing.do in ("pipeline", "AllToAll") for doing in doings
        ),
        "a path plan is not enforced here": cluster.fabric == "dual_plane",
        "hosts of the testbed share one clock": clocks.skew_ms or clocks.drift_ppm,
        "batches come as they come": scenario.telemetry.late_s,
    }
    reasons = [reason for fault in scenario.timeline if (reason := _why_not_fault(fault))]
    return [obstacle for obstacle, is_there in obstacles.items() if is_there] + reasons


def check_playable(scenario: Scenario) -> None:
    """Raise NotPresent with all that keeps the testbed from telling a scenario."""
    if obstacles := find_obstacles(scenario):
        raise NotPresent(f"the testbed cannot tell {scenario.name}: {'; '.join(dict.fromkeys(obstacles))}")


def _why_not_fault(fault: Fault) -> str | None:
    if fault.effect in (*_RANK_EFFECTS, "heal") or (fault.effect == "rate" and fault.kind == "gpu"):
        return None
    if fault.effect == "over":
        return "sockets fail over to no other port"
    return "the testbed restarts no jobs" if fault.effect == "restart" else why_not(fault)


def plan_job(scenario: Scenario, scale: float, seed: int) -> JobPlan:
    """Return the job of a scenario; `scale` is what the fabric's links carry of what the scenario says."""
    tp, _, dp, pp, _ = scenario.layout
    placement = place_ranks(scenario)
    nics = tuple(f"eth{number}" for number in range(scenario.cluster.nics_per_host))
    return JobPlan(
        job=scenario.name,
        hosts=tuple(f"h{host}" for host in placement.host_of.tolist()),
        layout=Layout(tp=tp, pp=pp, dp=dp),
        step=tuple(_items(scenario, scenario.job.steps, scale)),
        second_step=tuple(_items(scenario, scenario.job.second_step, scale)),
        nics=nics,
        seed=seed,
    )


def _items(scenario: Scenario, doings: Sequence[Doing], scale: float) -> Iterator[Item]:
    for doing in chain.from_iterable(repeat(each, each.times) for each in doings):
        if doing.do == "compute":
            yield Compute(doing.ms, scenario.noise.compute)
        else:
            size = max(int(doing.mb * 1e6 * scale), _LEAST_BYTES)
            kind, channels = doing.group, scenario.cluster.nics_per_host
            yield Collective(kind, doing.do, size, doing.algo, channels)  # type: ignore[arg-type]  # checked before


def cast_truth(scenario: Scenario) -> Scenario:
    """Return the scenario with its wires between two NICs named as ranks of the testbed use them.

    Here a channel has the NIC of the same number at both ends; simulated ranks use the NIC next to their GPU. So the
    wire through the NIC that a verdict should name leads to another NIC of the same host.
    """
    expect = [
        wanted.model_copy(update={"also_right": tuple(_wire_here(name, wanted) for name in wanted.also_right)})
        for wanted in scenario.expect
    ]
    return scenario.model_copy(update={"expect": tuple(expect)})


def _wire_here(name: str, wanted: Expectation) -> str:
    kind, _, ends = name.partition(":")
    pair = [split_end(end) for end in ends.split("--")]
    broken = next((nic for host, nic in pair if nic and wanted.component == nic_name(host, nic)), None)
    is_wire = kind == "link" and all(nic for _, nic in pair)
    return f"link:{'--'.join(f'{host}/{broken}' for host, _ in pair)}" if is_wire and broken else name


def ranks_of(scenario: Scenario, fault: Fault) -> list[int]:
    """Return the ranks that a fault is about: one, those of a host or GPU, or all; wires have none."""
    if fault.kind == "rank":
        return [int(fault.name)]
    placement = place_ranks(scenario)
    if fault.part is None:
        return list(range(placement.ranks))
    if fault.kind not in ("host", "gpu"):
        return []
    host, _, gpu = fault.name.partition("/")
    on_host = [rank for rank, number in enumerate(placement.host_of.tolist()) if f"h{number}" == host]
    return [rank for rank in on_host if not gpu or placement.gpu_of[rank] == int(gpu)]


def lines_for(fault: Fault, step: int) -> list[str]:
    """Return what ranks are told when a fault comes; `step` is the one they are about to begin at the earliest."""
    match fault.effect:
        case "late":
            return [f"late {1e3 * (fault.amount or 0.0):g}"]
        case "rate" if fault.kind == "gpu":
            return [f"slow {1 / (fault.amount or 1.0):g} {fault.share:g}"]
        case "pause":
            return [f"pause {1e3 * (fault.lasting_s or 0.0):g}"]
        case "mismatched":
            return ["mismatch 2"]
        case "deadlocked":
            return ["reversed"]
        case "second mix":
            return [f"second {step + 2}"]
        case "absent" | "stuck":
            return [fault.effect]
        case "heal":
            return ["heal"]
    return []


@dataclass(frozen=True)
class Stage:
    fabric: Fabric
    head: HeadNode
    job: Job


def run_scenario(scenario: Scenario, seed: int, note: Note, keep: Path | None = None) -> Outcome:
    """Tell a scenario in real time and return what was said of it; needs root, and leaves nothing behind."""
    check_playable(scenario)
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-testbed-")))
        stage = stack.enter_context(_set(scenario, seed, folder, note))
        began_ns, listener = SystemClock().now_ns(), Listener()
        broke_ns = _play(scenario, stage, note, listener)
        pace = Pace(broke_ns or began_ns, _step_ends(stage.job))
        return Outcome(cast_truth(scenario), began_ns, tuple(stage.head.incidents()), pace, tuple(listener.reported))


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
    begin_ns, begun, broke_ns = clock.monotonic_ns(), set[Fault](), None
    with Breaker(stage.fabric, lambda part: _processes_of(scenario, stage.job, part)) as breaker:
        now_s = 0.0
        while now_s < scenario.duration_s:
            breaker.follow(scenario.timeline, now_s)
            for fault in (t for t in scenario.timeline if t.at_s <= now_s and t not in begun):
                begun.add(fault)
                note(f"{now_s:.0f} s: {fault.part or 'the job'} {fault.effect}")
                _command_ranks(scenario, stage.job, fault)
                broke_ns = broke_ns or (clock.now_ns() if fault.effect not in BENIGN else None)
            with suppress(httpx.TransportError):  # busy: it is asked again
                listener.receive(stage.head.incidents(), clock.now_ns())
            clock.wait(threading.Event(), _POLL_S)
            now_s = (clock.monotonic_ns() - begin_ns) / NS_PER_S
    return broke_ns


def _step_ends(job: Job) -> tuple[int, ...]:
    """Return when each step was done by all ranks that are there."""
    ends = [[step.end_ns for step in rank.steps] for rank in job.ranks]
    return tuple(max(step) for step in zip(*ends, strict=False))


def _command_ranks(scenario: Scenario, job: Job, fault: Fault) -> None:
    step = max((len(rank.steps) for rank in job.ranks), default=0)
    for line in lines_for(fault, step):
        ranks = range(len(job.ranks)) if fault.effect == "heal" else ranks_of(scenario, fault)
        for rank in ranks:
            job.ranks[rank].command(line)


def _processes_of(scenario: Scenario, job: Job, part: str) -> list[int]:
    fault = next(t for t in scenario.timeline if t.part == part)
    return [job.ranks[rank].process.pid for rank in ranks_of(scenario, fault)]
