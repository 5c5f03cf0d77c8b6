"""What plans of paths are measured on: fabrics of the usual shapes, what is broken in them, and who sends to whom.

A case is told by five words and a seed, and the same each time. Planner options were chosen on seeds below 10; the
benchmark draws from 2,000 on.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, Note
from importers.topology.formats import Input, import_topology
from importers.topology.joining import JoinOptions
from lockstep.fabrics import FabricOptions, dual_plane, fat_tree, leaf_spine, rail_optimised
from lockstep.topology import Link, Node, Topology, checked, split_end
from planner.paths.flows import Flow, FlowPaths, choose_by_chance, place_flows
from planner.paths.network import Network, build_network, with_rates, without
from planner.paths.planning import plan_table
from planner.paths.traffic import forecast

GBPS = 400.0
FLOW_GBPS = 50.0  # an eighth of a link, as with eight queue pairs on a NIC
FIRST_SEED = 2000
DATA = "LOCKSTEP_PUBLIC_DATA"
ONE_PATH = "Lingjun as its rows read, one path each"
NAMESAKES = "Lingjun if each ASW name is one switch"
_BROKEN_SHARE = 0.04  # of links: more than a fleet ever has at once, and enough to meet in the same pod
_FEW_SWITCHES = 3
_LINGJUN = Path("topo_fabric/alibaba_lingjun_2023_topo.csv")
_PLAIN = FabricOptions(gpus_per_host=0, gbps=GBPS)  # GPUs are no part of a plan


@dataclass(frozen=True)
class Case:
    """Flows to plan."""

    fabric: str
    damage: str
    traffic: str
    flows: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.fabric}, {self.damage}, {self.traffic}, {self.flows:,} flows"


def build_case(case: Case) -> tuple[Network, list[Flow]]:
    """Return the network of a case, as broken as it is, and its flows."""
    rng = np.random.default_rng(case.seed)
    network = DAMAGES[case.damage](build_network(FABRICS[case.fabric]()), rng)
    pairs = TRAFFIC[case.traffic](_list_ends(network), case.flows, rng)
    sizes = SIZES[case.traffic](len(pairs), rng) if case.traffic in SIZES else np.full(len(pairs), FLOW_GBPS)
    named = zip(pairs, sizes.tolist(), strict=True)
    return network, [Flow(id=f"f{at}", src=src, dst=dst, gbps=size) for at, ((src, dst), size) in enumerate(named)]


def fabric_links(topology: Topology) -> list[str]:
    """Return the ids of the links between switches."""
    hosts = {host.id for host in topology.hosts}
    return [link.id for link in topology.links if not {split_end(link.a)[0], split_end(link.b)[0]} & hosts]


def has_public_data() -> bool:
    """Return whether the Lingjun topology can be read."""
    return DATA in os.environ and (Path(os.environ[DATA]) / _LINGJUN).exists()


def _lingjun() -> Topology:
    """Return the Lingjun topology as imported: a tree, because a row has one switch of each tier."""
    file = Path(os.environ[DATA]) / _LINGJUN
    return import_topology([Input("lingjun", (file,))], JoinOptions(gbps=GBPS)).topology


def merge_namesakes(topology: Topology) -> Topology:
    """Return a tree in which leaves of one number are one switch, with the links of all: P8-S6 and P10-S6 are S6.

    The data does not say whether they are; where they are, most hosts have two or three paths.
    """
    number = {switch.id: switch.id.rpartition("-")[2] for switch in topology.switches if switch.tier == "leaf"}
    leaves = [Node(id=name, kind="switch", tier="leaf") for name in dict.fromkeys(number.values())]
    others = [node for node in topology.nodes if node.id not in number]
    links = [
        Link(id=link.id, a=_renamed(link.a, number), b=_renamed(link.b, number), gbps=GBPS) for link in topology.links
    ]
    return checked(Topology(routing=topology.routing, nodes=(*others, *leaves), links=tuple(links)))


def _renamed(end: str, number: Mapping[str, str]) -> str:
    node, slash, port = end.partition("/")
    return number.get(node, node) + slash + port


FABRICS: Mapping[str, Callable[[], Topology]] = {
    "k=16": lambda: fat_tree(16, _PLAIN),
    "k=32": lambda: fat_tree(32, _PLAIN),
    "rails 64 x 32": lambda: rail_optimised(1024, 8, 32, _PLAIN, pods=8),
    "planes 2 x 32 x 16": lambda: dual_plane(1024, 32, 16, _PLAIN, nics_per_host=2),
    ONE_PATH: _lingjun,
    NAMESAKES: lambda: merge_namesakes(_lingjun()),
    "k=6": lambda: fat_tree(6, _PLAIN),
    "k=8": lambda: fat_tree(8, _PLAIN),
    "k=10": lambda: fat_tree(10, _PLAIN),
    "leaves 12 x 7": lambda: leaf_spine(48, 1, 12, 7, _PLAIN),
    "leaves 16 x 8": lambda: leaf_spine(64, 1, 16, 8, _PLAIN),
    "rails 16 x 6": lambda: rail_optimised(32, 4, 6, _PLAIN, pods=4),
}
LARGE = ("k=16", "k=32", "rails 64 x 32", "planes 2 x 32 x 16")
SMALL = ("k=6", "k=8", "k=10", "leaves 12 x 7", "leaves 16 x 8", "rails 16 x 6")


def _draw_links(network: Network, rng: np.random.Generator) -> list[str]:
    links = fabric_links(network.topology)
    return [links[at] for at in rng.choice(len(links), max(1, round(_BROKEN_SHARE * len(links))), replace=False)]


def _draw_switches(network: Network, rng: np.random.Generator, count: int) -> list[str]:
    spines = [switch.id for switch in network.topology.switches if switch.tier == "spine"]
    return [spines[at] for at in rng.choice(len(spines), count, replace=False)]


def _slow(network: Network, rng: np.random.Generator) -> Network:
    return with_rates(network, {link: (0.5, 0.25)[at % 2] for at, link in enumerate(_draw_links(network, rng))})


DAMAGES: Mapping[str, Callable[[Network, np.random.Generator], Network]] = {
    "intact": lambda network, rng: network,
    "4 % of links missing": lambda network, rng: without(network, _draw_links(network, rng)),
    "4 % of links slow": _slow,
    "links missing and slow": lambda network, rng: _slow(without(network, _draw_links(network, rng)), rng),
    "a spine missing": lambda network, rng: without(network, _draw_switches(network, rng, 1)),
    "three spines missing": lambda network, rng: without(network, _draw_switches(network, rng, _FEW_SWITCHES)),
}

_Pairs = list[tuple[str, str]]


def _list_ends(network: Network) -> list[str]:
    """Return who may send: hosts where their NICs are of two planes, and the planner has to choose, else NICs."""
    if any(nic.plane is not None for host in network.topology.hosts for nic in host.nics):
        return [host.id for host in network.topology.hosts]
    return list(network.ports)


def _rings(ends: Sequence[str], flows: int, rng: np.random.Generator) -> _Pairs:
    """Return rings over everybody, in a new order each time: all send and receive equally much."""
    made: _Pairs = []
    while len(made) < flows:
        made += _ring([ends[at] for at in rng.permutation(len(ends))])
    return made[:flows]


def _jobs(ends: Sequence[str], flows: int, rng: np.random.Generator) -> _Pairs:
    """Return rings of eight jobs, each over neighbours with gaps, as a busy cluster places them, again and again."""
    order = np.argsort(np.arange(len(ends)) + rng.normal(0, len(ends) / 64, len(ends)))
    jobs = [[ends[at] for at in part] for part in np.array_split(order, 8)]
    once = [pair for job in jobs for pair in _ring(job)]
    return (once * math.ceil(flows / len(once)))[:flows]


def _ring(members: Sequence[str]) -> _Pairs:
    return list(zip(members, [*members[1:], members[0]], strict=True)) if len(members) > 1 else []


def _all_to_all(ends: Sequence[str], flows: int, rng: np.random.Generator) -> _Pairs:
    """Return all pairs of a few, who are on few leaves or on many as chance has it."""
    members = [ends[at] for at in rng.choice(len(ends), min(len(ends), math.isqrt(flows) + 1), replace=False)]
    return [(src, dst) for src in members for dst in members if src != dst][:flows]


def _random(ends: Sequence[str], flows: int, rng: np.random.Generator) -> _Pairs:
    """Return random pairs, the first ends more often than the last: some leaves send several times as much."""
    drawn = (rng.random((2 * flows, 2)) ** 1.5 * len(ends)).astype(np.int64)
    apart = drawn[drawn[:, 0] != drawn[:, 1]][:flows]
    return [(ends[src], ends[dst]) for src, dst in apart.tolist()]


TRAFFIC: Mapping[str, Callable[[Sequence[str], int, np.random.Generator], _Pairs]] = {
    "rings": _rings,
    "jobs": _jobs,
    "all to all": _all_to_all,
    "random": _random,
    "four sizes": _rings,
    "any sizes": _random,
}


SIZES: Mapping[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "four sizes": lambda count, rng: rng.choice([12.5, 25.0, 50.0, 100.0], count, p=[0.4, 0.3, 0.2, 0.1]),
    "any sizes": lambda count, rng: np.minimum(rng.lognormal(np.log(25.0), 1.0, count), GBPS),
}
EQUAL = tuple(name for name in TRAFFIC if name not in SIZES)


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
            varied, poorer = replace(experiment, queue_pairs=queue_pairs), without(network, experiment.dead)
            chance = [run_by_chance(poorer, varied, seed).slowest for seed in seeds]
            yield from _side_by_side(varied, ("ECMP", "planned"), chance, run_planned(poorer, varied).slowest)
        yield from _compare_cut(network, replace(CUT, queue_pairs=queue_pairs), seeds)


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
    """Return the pace of jobs whose queue pairs take ports and paths by chance."""
    table = place_flows(network, _flows(experiment, np.random.default_rng(seed)))
    spine = choose_by_chance(FlowPaths(network, table), seed)
    return _pace(experiment, forecast(network, table, spine).gbps, weighs=True)


def run_planned(network: Network, experiment: Experiment) -> Pace:
    """Return the pace of jobs with a plan for the whole fabric, as it is now."""
    plan = plan_table(network, place_flows(network, _flows(experiment, None)))
    return _pace(experiment, forecast(network, plan.flows, plan.spine).gbps, weighs=True)


def run_after_cut(network: Network, experiment: Experiment, link: str, seed: int, is_dynamic: bool) -> Pace:
    """Return the pace after a link was cut under a plan: dealt by chance where the path is gone, or planned anew."""
    before = plan_table(network, place_flows(network, _flows(experiment, None)))
    poorer = without(network, [link])
    if is_dynamic:
        after = plan_table(poorer, before.flows, before)
        return _pace(experiment, forecast(poorer, after.flows, after.spine).gbps, weighs=True)
    paths = FlowPaths(poorer, before.flows)
    spine = np.where(paths.is_valid(before.spine), before.spine, choose_by_chance(paths, seed))
    return _pace(experiment, forecast(poorer, before.flows, spine).gbps, weighs=False)


def _flows(experiment: Experiment, rng: np.random.Generator | None) -> list[Flow]:
    """Return the queue pairs of all jobs; with a generator, ports by chance, else left to left."""
    share = _HOSTS // experiment.jobs
    flows = []
    for job in range(experiment.jobs):
        half = _HOSTS // _PODS  # hosts of one pod come first, so every other place of a ring is in the other one
        hosts = [job + experiment.jobs * (index // 2) + half * (index % 2) for index in range(share)]
        for index, nic, pair in np.ndindex(share, _NICS, experiment.queue_pairs):
            src, dst = hosts[index], hosts[(index + 1) % share]
            sides = (pair % 2, pair % 2) if rng is None else rng.integers(0, 2, 2).tolist()
            ports = [f"h{host}/eth{2 * nic + side}" for host, side in zip((src, dst), sides, strict=True)]
            name = f"{job}/{index}/{nic}/{pair}"
            flows.append(Flow(id=name, src=ports[0], dst=ports[1], gbps=2 * _PORT_GBPS / experiment.queue_pairs))
    return flows


def _pace(experiment: Experiment, gbps: np.ndarray, weighs: bool) -> Pace:
    """Return the pace of jobs, that of their slowest connections; an even cut waits for its slowest part."""
    rates = gbps.reshape(experiment.jobs, -1, experiment.queue_pairs)
    connections = rates.sum(axis=2) if weighs else rates.min(axis=2) * experiment.queue_pairs
    jobs = np.minimum(connections.min(axis=1), NVLINK_GBPS)
    return Pace(float(jobs.min()), float(jobs.max()))
