"""A training job through a degraded link: planned, slowed down, moved around the link as it runs, and fast again."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from lockstep.path_file import read_reports
from simulator.faults import parse_fault
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.plan import ShapeOptions
from tests.testbed.faults.breaker import Breaker
from tests.testbed.gloo_job import read_steps, start_gloo_job
from tests.testbed.paths.flows import FlowLinks, Nic, Planner, scale_uplinks, without
from tests.testbed.paths.gloo_trials import MOST_MBPS, GlooOptions, ring_across, ring_job, start_agents
from tests.testbed.paths.ports import PortFinder
from tests.testbed.paths.shim import ShimFiles, build
from tests.testbed.paths.translating import Direction, Translation
from tests.testbed.paths.trials import eight_hosts
from tests.testbed.services import wait_until
from tests.waiting import LIMIT_S

_STEPS = (8, 4, 8)  # healthy, degraded, and moved
_SPARE = 1000  # further steps, so that the job does not end by itself


@dataclass(frozen=True, slots=True)
class Reroute:
    """What became of the job; the time of a step is that of its slowest rank."""

    link: str
    step_ms: tuple[float, ...]
    degraded_from: int  # the first step that began when the link was slow
    moved_from: int  # the first step that began when all flows had been moved
    moved: int  # directions of connections
    took_s: float  # for the plan, the ports and the moves

    @property
    def healthy_ms(self) -> float:
        return median(self.step_ms[1 : self.degraded_from])

    @property
    def degraded_ms(self) -> float:
        return median(self.step_ms[self.degraded_from + 1 : self.moved_from])

    @property
    def moved_ms(self) -> float:
        return median(self.step_ms[self.moved_from + 1 :])


def reroute_gloo(planner: Planner, folder: Path, link: str, share: float = 0.1) -> Reroute:
    """Run a job, let a link of its plan have only a share of its rate, and move what crosses it while the job runs.

    Up-links have twice the rate of NICs: what is left can carry everything. Takes about a minute.
    """
    files = ShimFiles(build(folder), folder)
    topology = scale_uplinks(eight_hosts(), 2.0)
    with build_fabric(topology, ShapeOptions(most_mbps=MOST_MBPS)) as fabric, Breaker(fabric) as breaker:
        return _Scenario(fabric, planner, files).run(
            link, lambda: breaker.apply(parse_fault(f"at 0 s fail link:{link} to {share:.0%}".replace("%", " %")))
        )


class _Scenario:
    def __init__(self, fabric: Fabric, planner: Planner, files: ShimFiles) -> None:
        self._fabric, self._planner, self._files = fabric, planner, files
        self._nics: list[Nic] = [(host, "eth0") for host in ring_across(fabric.plan.hosts)]
        self._log = files.folder / "gloo.log"

    def run(self, link: str, degrade: Callable[[], None]) -> Reroute:
        options = GlooOptions(steps=_SPARE)
        with ExitStack() as stack:
            paths, finder = start_agents(stack, self._fabric, self._planner, self._nics, self._files, options.seed)
            job = ring_job(self._fabric, self._nics, options)
            process = stack.enter_context(start_gloo_job(job, self._log, self._files.environment()))
            stack.callback(process.kill)
            self._wait_for(_STEPS[0])
            degrade()
            degraded_from = self._done() + 1
            self._wait_for(degraded_from + _STEPS[1])
            began = time.monotonic()
            moves = self._move(stack, link, paths, finder)
            took_s, moved_from = time.monotonic() - began, self._done() + 1
            self._wait_for(moved_from + _STEPS[2])
            return Reroute(link, self._slowest(), degraded_from, moved_from, moves, took_s)

    def _move(self, stack: ExitStack, link: str, paths: FlowLinks, finder: PortFinder) -> int:
        """Plan around the link and translate all connections of the flows whose way is another now."""
        after = self._planner(without(self._fabric.topology, [link]), list(paths), paths)
        connections = self._connections()
        moves = [
            (direction, after[flow])
            for flow, links in paths.items()
            if set(after[flow]) != set(links)
            for direction in connections.get((flow.src, flow.dst), ())
        ]
        for direction, links in moves:
            (port, *_) = finder.find(direction.src, direction.dst, direction.dport, links)
            stack.enter_context(Translation(self._fabric, direction, port))
        return len(moves)

    def _connections(self) -> Mapping[tuple[Nic, Nic], Sequence[Direction]]:
        """Return the directions of all connections that the shim reported, by their ends."""
        nic_at = {self._fabric.address_of(*nic): nic for nic in self._nics}
        found: dict[tuple[Nic, Nic], list[Direction]] = defaultdict(list)
        for report in read_reports(self._files.reports):
            if report.local in nic_at and report.remote in nic_at:
                near, far = nic_at[report.local], nic_at[report.remote]
                found[near, far].append(Direction(near, far, report.sport, report.dport))
                found[far, near].append(Direction(far, near, report.dport, report.sport))
        return found

    def _slowest(self) -> tuple[float, ...]:
        """Return the time of the slowest rank in each step that all ranks have done."""
        times: dict[int, list[float]] = defaultdict(list)
        for step in read_steps(self._log):
            times[step.step].append(step.ms)
        return tuple(max(times[step]) for step in range(self._done()))

    def _done(self) -> int:
        """Return how many steps all ranks have done."""
        done = dict.fromkeys(range(len(self._nics)), -1)
        for step in read_steps(self._log):
            done[step.rank] = max(done[step.rank], step.step)
        return min(done.values()) + 1

    def _wait_for(self, steps: int) -> None:
        wait_until(lambda: self._done() >= steps, f"all ranks have done {steps} steps", LIMIT_S)
