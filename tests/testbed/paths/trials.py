"""Paired trials on real Linux ECMP: the same flows with the kernel's ports and with planned ports."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lockstep.fabrics import FabricOptions, leaf_spine
from lockstep.topology import Topology
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.options import ShapeOptions
from tests.testbed.paths.bench import BenchOptions, PathBench
from tests.testbed.paths.flows import PlannedFlow, Planner, Ways, shift_by_a_leaf
from tests.testbed.paths.results import Pair, PairedTrials
from tests.testbed.paths.traffic import Rates

SPINES = 4


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
    ways = planner(topology, flows, {})
    random = Random(options.seed)  # an order, no secret
    with open_bench(topology, flows, BenchOptions(options.seed)) as bench:
        single = measure_single(bench, options)
        pairs = tuple(_run_pair(bench, ways, options, random) for _ in range(options.pairs))
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


def _run_pair(bench: PathBench, ways: Ways, options: TrialOptions, random: Random) -> Pair:
    rates: dict[str, Rates] = {}
    enforced = 0.0
    for kind in random.sample(["random", "planned"], 2):
        if kind == "random":
            bench.forget_plan()
        else:
            bench.plan(ways)
        rates[kind] = run_once(bench, bench.flows, options)
        if kind == "planned":
            enforced = bench.enforced_share()
    return Pair(rates["random"], rates["planned"], enforced)
