"""The experiments of the C4P paper in the simulator's flow model, beside the figures that were published.

The fabric is that paper's in shape: 16 hosts in two pods, with eight NICs of two ports of 200 Gbit/s each, every port
on the leaf of its rail, side and pod, and each leaf with eight up-links of 200 Gbit/s, so that no tier is
oversubscribed. A job is a ring per NIC over its hosts, from pod to pod; each connection has queue pairs, half of them
on each port. Rates are max-min fair.

- Without a plan, port, receiving port and spine of each queue pair are drawn by chance, as bonds and ECMP do.
- With a plan, left goes to left, and planner.paths gives each queue pair its spine.
- After a cut, a static plan deals flows anew by chance where their road is gone, and messages are cut evenly, so that
  the slowest queue pair sets the pace of a connection. A dynamic one plans anew, and queue pairs carry what they can.

A collective runs at the pace of its slowest connection, up to what NVLink lets through. How many queue pairs the
paper had is not known, so all is told for two and for eight; but for the static cut they carry what they can, which
gives more to chance than an even cut of messages would.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.figures import Figure, Note
from lockstep.fabrics import FabricOptions, rail_optimised
from planner.paths.ecmp import choose_by_chance
from planner.paths.flows import Flow, place_flows
from planner.paths.network import Network, build_network, without
from planner.paths.planning import plan_table
from planner.paths.roads import Roads
from planner.paths.what_if import forecast

_HOSTS, _NICS, _SPINES = 16, 8, 8
_PODS = 2
_PORT_GBPS = 200.0
_SEED = 100  # the first of those that score
NVLINK_GBPS = 362.0  # what the paper's hosts reach at best


@dataclass(frozen=True, slots=True)
class Experiment:
    """One line of the paper's table."""

    name: str
    jobs: int = 1
    queue_pairs: int = 2  # of a connection, half of them on each port
    dead: tuple[str, ...] = ()
    published: tuple[float, float] = (0.0, 0.0)  # Gbit/s without and with C4P


EXPERIMENTS = (
    Experiment("one allreduce, two ports", published=(240.0, 360.0)),
    Experiment("8 jobs, 1:1", jobs=8, published=(171.93, 353.86)),
    Experiment("8 jobs, 2:1", jobs=8, dead=tuple(f"spine{n}" for n in range(4, 8))),
)
CUT = Experiment("8 jobs, one up-link of eight cut", jobs=8, published=(185.76, 301.46))


@dataclass(frozen=True, slots=True)
class Pace:
    """What jobs reach, in Gbit/s per NIC."""

    slowest: float
    fastest: float


def measure_c4p(quick: bool, note: Note) -> Iterator[Figure]:
    """Yield the pace of the slowest job in each experiment, by chance and planned."""
    network = build()
    seeds = range(_SEED, _SEED + (3 if quick else 20))
    for queue_pairs in (2, 8):
        for experiment in EXPERIMENTS:
            note(f"C4P's table: {experiment.name}, {queue_pairs} queue pairs")
            yield from _compare(network, replace(experiment, queue_pairs=queue_pairs), seeds)
        yield from _compare_cut(network, replace(CUT, queue_pairs=queue_pairs), seeds)


def _compare(network: Network, experiment: Experiment, seeds: range) -> Iterator[Figure]:
    poorer = without(network, experiment.dead)
    chance = [run_by_chance(poorer, experiment, seed).slowest for seed in seeds]
    yield from _side_by_side(experiment, ("ECMP", "planned"), chance, run_planned(poorer, experiment).slowest)


def _compare_cut(network: Network, experiment: Experiment, seeds: range) -> Iterator[Figure]:
    cables = np.unique(np.flatnonzero(network.fabric) // 2)
    links = [network.link_of(2 * int(cables[seed * 7 % len(cables)])) for seed in seeds]
    static, dynamic = (
        [
            run_after_cut(network, experiment, link, seed, is_dynamic).slowest
            for link, seed in zip(links, seeds, strict=True)
        ]
        for is_dynamic in (False, True)
    )
    yield from _side_by_side(experiment, ("static", "dynamic"), static, float(np.median(dynamic)))


def _side_by_side(
    experiment: Experiment, names: tuple[str, str], before: list[float], after: float
) -> Iterator[Figure]:
    what = f"{experiment.name}, {experiment.queue_pairs} QPs"
    for name, value, published in zip(names, (float(np.median(before)), after), experiment.published, strict=True):
        yield Figure(f"{what}: {name}", value, "Gbit/s", reference=f"C4P: {published:g}" if published else "")


def build() -> Network:
    """Return the fabric: port 2n and 2n+1 of a host are the left and the right port of its NIC n."""
    options = FabricOptions(gpus_per_host=_NICS, gbps=_PORT_GBPS)
    return build_network(rail_optimised(_HOSTS, 2 * _NICS, _SPINES, options, pods=_PODS))


def run_by_chance(network: Network, experiment: Experiment, seed: int) -> Pace:
    """Return the pace of jobs whose queue pairs take ports and roads by chance."""
    table = place_flows(network, _flows(experiment, np.random.default_rng(seed)))
    top = choose_by_chance(Roads(network, table), seed)
    return _pace(experiment, forecast(network, table, top).gbps, weighs=True)


def run_planned(network: Network, experiment: Experiment) -> Pace:
    """Return the pace of jobs with a plan for the whole fabric, as it is now."""
    plan = plan_table(network, place_flows(network, _flows(experiment, None)))
    return _pace(experiment, forecast(network, plan.flows, plan.top).gbps, weighs=True)


def run_after_cut(network: Network, experiment: Experiment, link: str, seed: int, is_dynamic: bool) -> Pace:
    """Return the pace after a link was cut under a plan: dealt by chance where the road is gone, or planned anew."""
    before = plan_table(network, place_flows(network, _flows(experiment, None)))
    poorer = without(network, [link])
    if is_dynamic:
        after = plan_table(poorer, before.flows, before)
        return _pace(experiment, forecast(poorer, after.flows, after.top).gbps, weighs=True)
    roads = Roads(poorer, before.flows)
    top = np.where(roads.is_valid(before.top), before.top, choose_by_chance(roads, seed))
    return _pace(experiment, forecast(poorer, before.flows, top).gbps, weighs=False)


def _flows(experiment: Experiment, rng: np.random.Generator | None) -> list[Flow]:
    """Return the queue pairs of all jobs; with a generator, ports by chance, else left to left."""
    share = _HOSTS // experiment.jobs
    flows = []
    for job in range(experiment.jobs):
        half = _HOSTS // _PODS  # hosts of one pod come first, so every other place of a ring is in the other one
        hosts = [job + experiment.jobs * (place // 2) + half * (place % 2) for place in range(share)]
        for place, nic, pair in np.ndindex(share, _NICS, experiment.queue_pairs):
            src, dst = hosts[place], hosts[(place + 1) % share]
            sides = (pair % 2, pair % 2) if rng is None else rng.integers(0, 2, 2).tolist()
            ports = [f"h{host}/eth{2 * nic + side}" for host, side in zip((src, dst), sides, strict=True)]
            name = f"{job}/{place}/{nic}/{pair}"
            flows.append(Flow(id=name, src=ports[0], dst=ports[1], gbps=2 * _PORT_GBPS / experiment.queue_pairs))
    return flows


def _pace(experiment: Experiment, gbps: np.ndarray, weighs: bool) -> Pace:
    """Return the pace of jobs, that of their slowest connections; an even cut waits for its slowest part."""
    rates = gbps.reshape(experiment.jobs, -1, experiment.queue_pairs)
    connections = rates.sum(axis=2) if weighs else rates.min(axis=2) * experiment.queue_pairs
    jobs = np.minimum(connections.min(axis=1), NVLINK_GBPS)
    return Pace(float(jobs.min()), float(jobs.max()))
