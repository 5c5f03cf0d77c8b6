"""A real framework with and without planned paths: all-reduces of torch over gloo, whose ports nobody told it.

Also a training job through a degraded link: planned, slowed down, moved around the link as it runs, and fast again.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from collector.path_ports import VERSION, AnswerServer, listen, write_ports
from lockstep.errors import LockstepError
from lockstep.host_paths import PathEntry, PathPlan, read_reports, write_plan
from simulator.faults import parse_fault
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.plan import ShapeOptions
from tests.testbed.faults.breaker import Breaker
from tests.testbed.gloo_job import GlooPlan, GlooRank, read_steps, start_gloo_job
from tests.testbed.paths.flows import (
    FlowLinks,
    Nic,
    PathProber,
    PlannedFlow,
    Planner,
    PortFinder,
    scale_uplinks,
    without,
)
from tests.testbed.paths.shim import AGENT, ShimFiles, build
from tests.testbed.paths.translating import Direction, Translation
from tests.testbed.paths.trials import eight_hosts
from tests.testbed.services import wait_until
from tests.waiting import LIMIT_S

MOST_MBPS = 800.0  # of all hosts together
_LEASE_S = 600
_MEETING_PORT = 29_500
PairLinks = Mapping[tuple[Nic, Nic], Sequence[str]]  # links from one NIC to another


class PathAgent:
    """Answers for one host from a plan that says which links lead from NIC to NIC; the end of the block ends it.

    Where the plan knows the way back, too, ports are sought whose answers take that: in a ring that sends in one
    direction the heavier way may be that of the side which accepts. A real agent would have the peer's probe it.
    """

    def __init__(self, fabric: Fabric, host: str, finder: PortFinder, plan: PairLinks) -> None:
        self._fabric, self._host, self._finder, self._plan = fabric, host, finder, plan
        nics = [(node.id, nic) for node in fabric.topology.hosts for nic in node.nics]
        self._nic_at: dict[str, Nic] = {nic.address: (node, nic.id) for node, nic in nics if nic.address}
        self._server = AnswerServer(fabric.homes[host].run(lambda: listen(AGENT)), self._answer)

    def __enter__(self) -> "PathAgent":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _answer(self, question: bytes) -> bytes:
        try:
            version, source, destination, dport_text = question.decode(errors="replace").split(" ")
            src, dst, dport = self._nic_at[source], self._nic_at[destination], int(dport_text)
        except (ValueError, KeyError):
            return write_ports(())
        if version != VERSION or src[0] != self._host:
            return write_ports(())
        return write_ports(self._find(src, dst, dport))

    def _find(self, src: Nic, dst: Nic, dport: int) -> tuple[int, ...]:
        links, back = self._plan.get((src, dst)), self._plan.get((dst, src))
        if links is None and back is None:
            return ()
        with suppress(LockstepError):
            return self._finder.find(src, dst, dport, links, back)
        return ()


@dataclass(frozen=True, slots=True)
class GlooOptions:
    """What the job does."""

    steps: int = 12
    skipped: int = 3  # steps at the start that do not count
    bytes: int = 4 << 20
    runs: int = 3  # of each kind
    seed: int = 1


@dataclass(frozen=True, slots=True)
class GlooRun:
    """One job; the time of a step is the median over ranks and steps."""

    is_planned: bool
    step_ms: float
    enforced: int = 0  # connections that the shim gave a planned port
    refused: int = 0  # connections of planned pairs that it did not


def ring_across(hosts: Sequence[str]) -> list[str]:
    """Return the hosts of two leaves in an order in which every neighbour is on the other leaf.

    >>> ring_across(["h0", "h1", "h2", "h3"])
    ['h0', 'h2', 'h1', 'h3']
    """
    half = len(hosts) // 2
    return [host for pair in zip(hosts[:half], hosts[half:], strict=True) for host in pair]


def ring_flows(ring: Sequence[Nic]) -> list[PlannedFlow]:
    """Return the heavy flows of gloo's ring, in which rank r sends to rank r-1."""
    return [PlannedFlow(nic, ring[number - 1]) for number, nic in enumerate(ring)]


def run_gloo(planner: Planner, folder: Path, options: GlooOptions) -> list[GlooRun]:
    """Return the runs of both kinds in a shuffled order, each on a fabric of its own; about 20 s each."""
    kinds = [False, True] * options.runs
    Random(options.seed).shuffle(kinds)  # an order, no secret
    library = build(folder)
    runs = []
    for number, is_planned in enumerate(kinds):
        files = ShimFiles(library, folder / f"run{number}")
        with build_fabric(eight_hosts(), ShapeOptions(most_mbps=MOST_MBPS)) as fabric:
            runs.append(_run(fabric, planner if is_planned else None, files, options))
    return runs


def _run(fabric: Fabric, planner: Planner | None, files: ShimFiles, options: GlooOptions) -> GlooRun:
    nics = [(host, "eth0") for host in ring_across(fabric.plan.hosts)]
    with ExitStack() as stack:
        if planner:
            start_agents(stack, fabric, planner, nics, files, options.seed)
        times = _run_job(fabric, nics, files, options)
        reported = list(read_reports(files.reports))
    enforced = sum(report.is_enforced for report in reported)
    return GlooRun(bool(planner), median(times), enforced, len(reported) - enforced)


def start_agents(
    stack: ExitStack, fabric: Fabric, planner: Planner, nics: Sequence[Nic], files: ShimFiles, seed: int
) -> tuple[FlowLinks, PortFinder]:
    """Plan the ring, tell the shim to ask for its pairs in both directions, and have an agent on every host."""
    flows = ring_flows(nics)
    planned = planner(fabric.topology, flows, {})
    links_of = {(flow.src, flow.dst): links for flow, links in planned.items()}
    prober = PathProber(fabric)
    stack.callback(prober.close)
    finder = PortFinder(prober, seed)
    finder.find(
        flows[0].src, flows[0].dst, _MEETING_PORT, next(iter(links_of.values()))
    )  # loads what probing needs before somebody waits
    pairs = [pair for src, dst in links_of for pair in ((src, dst), (dst, src))]
    write_plan(files.plan, PathPlan(1, int(time.time()) + _LEASE_S, _ask_for(fabric, pairs)))
    for host in fabric.plan.hosts:
        stack.enter_context(PathAgent(fabric, host, finder, links_of))
    return planned, finder


def _ask_for(fabric: Fabric, pairs: Sequence[tuple[Nic, Nic]]) -> tuple[PathEntry, ...]:
    ends = dict.fromkeys((fabric.address_of(*src), fabric.address_of(*dst)) for src, dst in pairs)
    return tuple(PathEntry(destination, source=source) for source, destination in ends)


def _run_job(fabric: Fabric, nics: Sequence[Nic], files: ShimFiles, options: GlooOptions) -> list[float]:
    """Return the times of all ranks' steps that count."""
    environment: Mapping[str, str] = files.environment()
    log = files.folder / "gloo.log"
    with start_gloo_job(ring_job(fabric, nics, options), log, environment) as process:
        try:
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
    if code:
        raise LockstepError(f"the gloo job ended with {code}: {log.read_text(errors='replace')[-1000:]}")
    return [step.ms for step in read_steps(log) if step.step >= options.skipped]


def ring_job(fabric: Fabric, nics: Sequence[Nic], options: GlooOptions) -> GlooPlan:
    """Return a job with a rank on each NIC."""
    return GlooPlan(
        ranks=tuple(GlooRank(interface=nic, namespace=fabric.namespace_of(host)) for host, nic in nics),
        address=fabric.address_of(*nics[0]),
        port=_MEETING_PORT,
        steps=options.steps,
        bytes=options.bytes,
    )


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
