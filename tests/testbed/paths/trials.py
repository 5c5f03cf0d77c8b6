"""Trials of planned paths on real Linux ECMP: where they take place, pairs with and without a plan, and figures."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from lockstep.fabrics import FabricOptions, leaf_spine
from lockstep.host_paths import PathEntry, PathPlan, read_reports, write_plan
from lockstep.topology import Topology
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.plan import ShapeOptions
from tests.testbed.paths.flows import (
    FlowLinks,
    PathProber,
    PlannedFlow,
    Planner,
    PortFinder,
    each_at_once,
    plan_entries,
    shift_by_a_leaf,
)
from tests.testbed.paths.shim import ShimFiles, build
from tests.testbed.paths.traffic import Rates, Traffic

SPINES = 4
# Share of the ideal from which on a round counts as good: the floor of 95 %, and noise of single ones.
RECOVERED = 0.9
_LEASE_S = 60


@dataclass(frozen=True, slots=True)
class Pair:
    """One trial with the ports that the kernel gives, and one with planned ports, right after each other."""

    random: Rates
    planned: Rates
    enforced: float  # share of the planned flows of which the shim said so


@dataclass(frozen=True, slots=True)
class PairedTrials:
    """All pairs on one fabric; `single_mbps` is what one flow carries that has the fabric to itself."""

    hosts: int
    flows: int
    single_mbps: float
    pairs: tuple[Pair, ...]

    @property
    def ideal_mbps(self) -> float:
        """All flows at once as fast as one alone."""
        return self.flows * self.single_mbps

    @property
    def random_share(self) -> float:
        """Median aggregate of random ports, as a share of the ideal."""
        return median(pair.random.aggregate_mbps for pair in self.pairs) / self.ideal_mbps

    @property
    def planned_share(self) -> float:
        return median(pair.planned.aggregate_mbps for pair in self.pairs) / self.ideal_mbps

    @property
    def worst_ratio(self) -> float:
        """How much faster the slowest flow is: medians of planned over random."""
        return self._worst_planned / median(pair.random.worst_mbps for pair in self.pairs)

    @property
    def worst_share(self) -> float:
        """The slowest planned flow, as a share of one alone."""
        return self._worst_planned / self.single_mbps

    @property
    def enforced(self) -> float:
        return sum(pair.enforced for pair in self.pairs) / len(self.pairs)

    @property
    def _worst_planned(self) -> float:
        return median(pair.planned.worst_mbps for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class Round:
    """All flows have sent the same number of bytes, as in a collective operation: it ends with the slowest."""

    end_s: float  # since the cut
    took_s: float
    share: float  # of the ideal after the cut


@dataclass(frozen=True, slots=True)
class CutTrial:
    """A link is cut while all flows send, and something is done about it, or nothing."""

    link: str
    is_dynamic: bool
    before: float  # share of the ideal before the cut
    rounds: tuple[Round, ...]  # after it; the first was under way when the link was cut
    moved: int  # flows that got another port
    decided_s: float | None  # after the cut, when flows were last told new ports; None: never

    @property
    def after(self) -> float:
        """Share of the ideal after the cut in the steady state: the median of the later half of the rounds."""
        return median(each.share for each in self.rounds[len(self.rounds) // 2 :])

    @property
    def recovered_s(self) -> float | None:
        """Seconds from the cut until the last flow was told to move and a round begins that has its share again.

        None: not while we looked. A round may have its share although flows moved during it.
        """
        good = [each.end_s - each.took_s for each in self.rounds if each.share >= RECOVERED]
        return max(good[0], self.decided_s or 0.0) if good else None


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How the fabric is shaped, and how much a flow may have on its way."""

    seed: int = 1  # of the ports that are tried
    most_mbps: float = 800.0  # of all NICs together: a third of what two cores carry, so that these are no bottleneck
    queue_ms: float = 20.0  # in longer ones acknowledgements wait behind data, and links are idle meanwhile
    send_buffer: int = 1 << 18  # above what fits on every shaped link: TCP's own window decides


class PathBench:
    """Everything that a trial needs; plans get ever higher generations. The end of the block ends all of it."""

    def __init__(self, fabric: Fabric, folder: Path, flows: Sequence[PlannedFlow], options: BenchOptions) -> None:
        self.fabric, self.flows = fabric, tuple(flows)
        self.files = ShimFiles(build(folder), folder)
        self.prober = PathProber(fabric)
        self.finder = PortFinder(self.prober, options.seed)
        self._generation = 0
        self._entries: dict[PlannedFlow, PathEntry] = {}
        nics = dict.fromkeys(nic for flow in flows for nic in (flow.src, flow.dst))
        ports = sorted({flow.dport for flow in flows})
        self.traffic = Traffic(fabric, nics, ports, self.files.environment(), options.send_buffer)

    def __enter__(self) -> "PathBench":
        return self

    def __exit__(self, *_: object) -> None:
        self.traffic.__exit__()
        self.prober.close()

    def plan(self, paths: FlowLinks) -> None:
        """Find ports for these flows and tell the shim; what others were told stays."""
        self._entries |= plan_entries(self.fabric, self.finder, paths)
        self._write()

    def forget_plan(self) -> None:
        """Have no plan: connections get the kernel's ports."""
        self._entries = {}
        self.files.plan.unlink(missing_ok=True)

    def flows_off(self, paths: FlowLinks) -> list[PlannedFlow]:
        """Return the flows that are known not to be on their planned way, by a probe of each one's own ports.

        Whose probes got lost stays where it is: a full queue is no reason to move.
        """
        sports = self.sports()
        now = each_at_once(lambda flow: self.links_of(flow, sports.get(flow, 0)), list(paths))
        return [flow for flow, links in paths.items() if now[flow] and not set(links) <= set(now[flow])]

    def sports(self) -> dict[PlannedFlow, int]:
        """Return the port of each flow's last connection, as the shim reported it."""
        address = self.fabric.address_of
        flow_of = {(address(*flow.src), address(*flow.dst), flow.dport): flow for flow in self.flows}
        reported = sorted(read_reports(self.files.reports), key=lambda report: report.ts_ns)
        ends = [((report.local, report.remote, report.dport), report.sport) for report in reported]
        return {flow_of[end]: sport for end, sport in ends if end in flow_of}

    def links_of(self, flow: PlannedFlow, sport: int) -> Sequence[str]:
        """Return the links of a flow; none when it is not known."""
        ports = (sport, flow.dport)
        return self.prober.find_paths(flow.src, flow.dst, [ports]).get(ports, ()) if sport else ()

    def enforced_share(self) -> float:
        """Return the share of the connections under the last plan of which the shim says that they follow it."""
        reported = [report for report in read_reports(self.files.reports) if report.generation == self._generation]
        return sum(report.is_enforced for report in reported) / len(reported) if reported else 0.0

    def _write(self) -> None:
        self._generation += 1
        lease_end_s = int(time.time()) + _LEASE_S
        write_plan(self.files.plan, PathPlan(self._generation, lease_end_s, tuple(self._entries.values())))


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """How long and how often."""

    pairs: int = 20
    settle_s: float = 1.0  # slow start, and the first losses
    measure_s: float = 3.0
    seed: int = 1  # of the order within pairs, and of the ports that are tried


def eight_hosts() -> Topology:
    """Return 2 leaves of 4 hosts each under 4 spines."""
    return leaf_spine(8, 1, leaves=2, spines=SPINES, options=FabricOptions(gpus_per_host=1))


def sixteen_hosts() -> Topology:
    """Return 4 leaves of 4 hosts each under 4 spines."""
    return leaf_spine(16, 1, leaves=4, spines=SPINES, options=FabricOptions(gpus_per_host=1))


def run_pairs(topology: Topology, planner: Planner, options: TrialOptions) -> PairedTrials:
    """Build the fabric and return all pairs; takes about 10 s each."""
    flows = shift_by_a_leaf(topology)
    paths = planner(topology, flows, {})
    random = Random(options.seed)  # an order, no secret
    with open_bench(topology, flows, BenchOptions(options.seed)) as bench:
        single = measure_single(bench, options)
        pairs = tuple(_run_pair(bench, paths, options, random) for _ in range(options.pairs))
    return PairedTrials(len(topology.hosts), len(flows), single, pairs)


@contextmanager
def open_bench(topology: Topology, flows: Sequence[PlannedFlow], options: BenchOptions) -> Iterator[PathBench]:
    """Build a fabric with everything that trials need, and take it down again."""
    shape = ShapeOptions(most_mbps=options.most_mbps, queue_ms=options.queue_ms)
    with (
        tempfile.TemporaryDirectory() as folder,
        build_fabric(topology, shape) as fabric,
        PathBench(fabric, Path(folder), flows, options) as bench,
    ):
        yield bench


def measure_single(bench: PathBench, options: TrialOptions) -> float:
    """Return the rate of one flow that has the fabric to itself: a link's rate less headers, as the shaper counts."""
    bench.forget_plan()
    return run_once(bench, bench.flows[:1], options).worst_mbps


def run_once(bench: PathBench, flows: Sequence[PlannedFlow], options: TrialOptions) -> Rates:
    """Return the rates of new connections, under whatever plan there is."""
    bench.traffic.open(flows)
    try:
        bench.traffic.wait_until_open()
        time.sleep(options.settle_s)
        return bench.traffic.measure(options.measure_s)
    finally:
        bench.traffic.close()


def _run_pair(bench: PathBench, paths: FlowLinks, options: TrialOptions, random: Random) -> Pair:
    rates: dict[str, Rates] = {}
    enforced = 0.0
    for kind in random.sample(["random", "planned"], 2):
        if kind == "random":
            bench.forget_plan()
        else:
            bench.plan(paths)
        rates[kind] = run_once(bench, bench.flows, options)
        if kind == "planned":
            enforced = bench.enforced_share()
    return Pair(rates["random"], rates["planned"], enforced)
