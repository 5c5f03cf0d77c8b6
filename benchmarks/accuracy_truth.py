"""What an analyzer can know of a world's faults, told from the world itself and never from an answer.

A fault has to be found when it cost the job something, for long enough, and the telemetry that shows it arrived. Of
any other, silence is as right as its name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy_faults import JOB, fused_name
from benchmarks.accuracy_worlds import OTHER, World
from lockstep.topology import nic_name, split_end
from lockstep.verdict import STOPS_JOB, Side
from simulator.faults import over_s
from simulator.network import Network
from simulator.pairs import Ints
from simulator.scenario import Expectation

Step = tuple[float, float]  # begin and length, in seconds of the scenario

_LEAST_COST = 0.05  # of a step: less is not worth waking anybody (lockstep.verdict)
_SPREADS = 2.0  # of healthy steps: a cost below is what steps differ by themselves
_FEWEST_STEPS = 2  # after the fault began
_STANDS_S = 5.0  # and two steps: a job that stands still for less may be saving a checkpoint
_MISSES_S = 10.0  # and two steps: a host that says nothing for less may have a slow gateway
_FIRST_STEPS = 2  # in which kernels are tuned
_FIRST_S = 1.0  # hosts report once a second: who ends before that was never there
# Of NICs, by the names that rows have; with fewer, none ever seen well, nobody can tell which one is slow.
_FEWEST_PAIRS = 4
_FEWEST_ROWS = 8  # operations with complete rows

_WAITS = ("transfers", "transfer_stats")
_TIMES = ("collectives", "op_stats")
_STATES = ("progress", "collectives")
_TOLD_BY = {  # tables of which one is enough
    "comm_slow": _WAITS, "noncomm_slow": _TIMES, "comm_hang": ("progress",), "noncomm_hang": _STATES,
    "crash": _STATES, "software": ("progress",),
}  # fmt: skip
_DIRECTIONS: dict[Side | None, int] = {None: 0, "tx": 1, "rx": 2}


@dataclass(frozen=True)
class Facts:
    """What became of a world's job, beside the same job in a world in which nothing breaks."""

    steps: Sequence[Step]
    healthy_steps: Sequence[Step]
    pairs: frozenset[tuple[str, str]]  # NICs between which something was sent, such as h0/eth0
    stands_still: bool
    # Of parts at fault: others that exactly the same connections cross.
    twins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    neighbour_steps: Sequence[Step] = ()  # of the job beside it


@dataclass(frozen=True)
class Known:
    """Which faults have to be found; which may be, or not, and why so."""

    expect: tuple[Expectation, ...] = ()
    allowed: tuple[Expectation, ...] = ()
    why: tuple[str, ...] = ()


def find_truth(world: World, facts: Facts) -> Known:
    """Return what is to be said of a world."""
    known = Known(allowed=(*_of_background(world), *_of_neighbour(world, facts)))
    for fault in world.scenario.expect:
        named = _with_twins(_with_names(fault, world, facts), facts)
        why = why_unseen(fault, world, facts)
        if not why:
            known = replace(known, expect=(*known.expect, named))
            continue
        hosts = [f"host:{host}" for host in _host_ids(fault, world)]
        more = {"also_right": (*named.also_right, f"job:{JOB}", *hosts)}
        known = replace(known, allowed=(*known.allowed, named.model_copy(update=more)), why=(*known.why, why))
    return known


def _of_background(world: World) -> tuple[Expectation, ...]:
    """Return that others' traffic may be called what it is."""
    if not any(fault.part == "fabric" for fault in world.scenario.timeline):
        return ()
    fields = {"class": "global_slow", "component": f"job:{JOB}", "within_s": world.scenario.duration_s}
    return (Expectation.model_validate(fields | {"also_right": ("job:neighbour",)}),)


def _of_neighbour(world: World, facts: Facts) -> Iterator[Expectation]:
    """Yield that the other job may be called slower where its steps are, since a fault of what both share."""
    for fault in world.scenario.expect:
        began_s, steps = fault.after_s or 0.0, facts.neighbour_steps[_FIRST_STEPS:]
        before = [length for begin, length in steps if begin + length <= began_s]
        since = [length for begin, length in steps if begin >= began_s]
        if before and since and median(since) >= (1 + _LEAST_COST) * median(before):
            fields = {"class": "global_slow", "component": f"job:{OTHER}", "within_s": world.scenario.duration_s}
            yield Expectation.model_validate(fields)


def why_unseen(fault: Expectation, world: World, facts: Facts) -> str:
    """Return why nobody could find a fault; nothing, where it has to be found."""
    checks = (_check_hosts, _check_cost, _check_rows, _check_peers)
    return next((why for check in checks if (why := check(fault, world, facts))), "")


def _check_hosts(fault: Expectation, world: World, _facts: Facts) -> str:
    if fault.fault_class == "telemetry_lost":
        never = world.chain.untold | {host for host, end_s in world.chain.ends_s.items() if end_s < _FIRST_S}
        return "most hosts tell nothing from the start" if 2 * len(never) > world.scenario.cluster.hosts else ""
    culprits = set(_host_ids(fault, world))
    if culprits & world.chain.untold:
        return "its host tells nothing"
    return "half of the hosts tell nothing" if 2 * len(world.chain.untold) >= world.scenario.cluster.hosts else ""


def _check_cost(fault: Expectation, world: World, facts: Facts) -> str:
    """Say whether the telemetry ends too soon after the fault, or the fault costs nothing."""
    if fault.fault_class == "telemetry_lost":
        rest_s = world.scenario.duration_s - (fault.after_s or 0.0)
        return "" if rest_s >= _MISSES_S else "the capture ends too soon after"
    return (
        _check_standstill(fault, world, facts)
        if fault.fault_class in STOPS_JOB or world.kind == "mismatch"
        else _check_slowdown(fault, world, facts)
    )


def _check_standstill(fault: Expectation, world: World, facts: Facts) -> str:
    if not facts.stands_still:
        return "the job goes on"
    usual_s = median([length for _, length in facts.healthy_steps] or [world.scenario.duration_s])
    ended_s = max((begin + length for begin, length in facts.steps), default=0.0)
    needs_s = 2 * usual_s + (_MISSES_S if world.kind == "host gone" else _STANDS_S)
    if ended_s == 0.0:
        return "no step ended before it"
    stood_s = _end_s(world) - max(fault.after_s or 0.0, ended_s)
    return "" if stood_s >= needs_s else f"it stands still for {stood_s:.1f} s only"


def _check_slowdown(fault: Expectation, world: World, facts: Facts) -> str:
    began_s, end_s = fault.after_s or 0.0, min(over_s(world.scenario.timeline), _end_s(world))
    ill = [step for step in _usual(facts.steps, world) if step[0] >= began_s and sum(step) <= end_s]
    if len(ill) < _FEWEST_STEPS:
        return "the capture ends before two steps after it"
    usual = np.array([length for _, length in _usual(facts.healthy_steps, world)] or [np.inf])
    middle = float(np.median(usual))
    spread = 1.4826 * float(np.median(np.abs(usual - middle))) / middle
    cost = fmean(length for _, length in ill) / middle - 1
    return "" if cost >= max(_LEAST_COST, _SPREADS * spread) else f"it costs {cost:.1%} of a step"


def _usual(steps: Sequence[Step], world: World) -> list[Step]:
    """Return the steps without the first ones and those in which everybody or somebody pauses."""
    pauses = [fault.at_s for fault in world.scenario.timeline if fault.effect == "pause"]
    return [
        (begin, length)
        for begin, length in steps[_FIRST_STEPS:]
        if not any(begin - length <= at_s <= begin + length for at_s in pauses)
    ]


def _check_rows(fault: Expectation, world: World, facts: Facts) -> str:
    """Say whether the rows that show such a fault are missing."""
    chain, needed = world.chain, _tables_of(fault, world)
    there = [name for name in needed if name not in chain.tables]
    if needed and not there:
        return f"no {' or '.join(needed)}"
    # A kernel that has begun and never ends shows in the waits of its own host alone.
    by_waits = needed == _WAITS or fault.fault_class == "comm_hang" or world.kind == "stuck kernel"
    if by_waits and chain.coarse & set(_host_ids(fault, world) or chain.coarse):
        return "its host records no waits"
    if by_waits and 2 * len(chain.coarse | chain.untold) >= world.scenario.cluster.hosts:
        return "half of the hosts record no waits"
    if fault.fault_class == "software" and ("progress", "open_bytes") in chain.columns:
        return "nobody knows what is asked for"
    operations = sum(doing.times for doing in world.scenario.job.steps if doing.do != "compute")
    rows = world.scenario.telemetry.sample * operations * len(facts.steps)
    sampled = {"transfers", "collectives"} >= set(there) and needed in (_WAITS, _TIMES)
    return "too few complete rows" if sampled and rows < _FEWEST_ROWS else ""


def _tables_of(fault: Expectation, world: World) -> tuple[str, ...]:
    if world.kind == "starved host":
        return _WAITS
    return () if world.kind == "host gone" else _TOLD_BY.get(fault.fault_class, ())


def _check_peers(fault: Expectation, world: World, facts: Facts) -> str:
    """Say whether a fault from the start has nothing beside it that is well."""
    _, _, dp, pp, _ = world.scenario.layout
    if fault.after_s or fault.fault_class not in ("comm_slow", "noncomm_slow"):
        return ""
    told = {(_as_told(src, world), _as_told(dst, world)) for src, dst in facts.pairs}
    if fault.fault_class == "comm_slow" and len(told) < _FEWEST_PAIRS:
        return "too few pairs to compare"
    return "its stage has no other replica" if pp > 1 and dp == 1 else ""


def _end_s(world: World) -> float:
    """Return up to when all hosts have told everything."""
    silent = world.chain.untold
    ends = [end_s for host, end_s in world.chain.ends_s.items() if host not in silent]
    return min([world.scenario.duration_s, *ends])


# What else a fault may be called.
def _with_twins(fault: Expectation, facts: Facts) -> Expectation:
    names = dict.fromkeys((*fault.also_right, *facts.twins.get(fault.component, ())))
    return fault.model_copy(update={"also_right": tuple(names)})


def _with_names(fault: Expectation, world: World, facts: Facts) -> Expectation:
    """Return the fault with all names that are right given what is known of NICs, and of who sends to whom."""
    component = fault.component
    nic = next(
        (part.removeprefix("nic:") for part in (component, *fault.also_right) if part.startswith("nic:")), None
    )
    if nic is None:
        knows_gpus = ("comms", "gpu") not in world.chain.columns
        ranks = () if knows_gpus else tuple(_ranks_of((component, *fault.also_right), world))
        return fault.model_copy(update={"also_right": (*fault.also_right, *ranks)})
    knows_nics = world.scenario.telemetry.nics and ("transfers", "nic") not in world.chain.columns
    names = [] if knows_nics else [f"host:{nic.partition('/')[0]}"]
    seen = _as_told(nic, world)
    names += [f"nic:{seen}"] if seen != nic else []
    pairs = {(_as_told(src, world), _as_told(dst, world)) for src, dst in facts.pairs}
    partners = {
        "tx": {dst for src, dst in pairs if src == seen},
        "rx": {src for src, dst in pairs if dst == seen},
    }
    only = [partners[fault.side]] if fault.side else list(partners.values())
    if all(others == only[0] and len(others) == 1 for others in only):  # nobody can tell one end from the other
        far = next(iter(only[0]))
        names += [f"link:{seen}--{far}", f"link:{far}--{seen}"]
    return fault.model_copy(update={"also_right": (*fault.also_right, *names)})


def _ranks_of(parts: Iterable[str], world: World) -> Iterator[str]:
    """Yield what stands for GPUs where nobody knows them: their ranks and hosts."""
    for host, _, gpu in (part.removeprefix("gpu:").partition("/") for part in parts if part.startswith("gpu:")):
        yield from (
            f"rank:{int(host.removeprefix('h')) * world.scenario.cluster.gpus_per_host + int(gpu)}",
            f"host:{host}",
        )


def _as_told(nic: str, world: World) -> str:
    """Return what rows call a NIC, such as h0/eth1: its device, or its host only."""
    host, name = nic.split("/")
    if not world.scenario.telemetry.nics:
        return host
    return f"{host}/{fused_name(name)}" if world.chain.fuses else nic


def _host_ids(fault: Expectation, world: World) -> list[str]:
    """Return the hosts that a fault is on; none for a part between switches or the whole job."""
    hosts = {f"h{number}" for number in range(world.scenario.cluster.all_hosts)}
    found = set()
    for part in (fault.component, *fault.also_right):
        kind, _, name = part.partition(":")
        if kind == "rank":
            found.add(f"h{int(name) // world.scenario.cluster.gpus_per_host}")
        found |= {split_end(end)[0] for end in name.split("--")} & hosts
    return sorted(found)


def find_twins(part: str, side: Side | None, network: Network, paths: Ints) -> tuple[str, ...]:
    """Return the other parts that exactly the same connections cross; `paths` has a row of links per connection."""
    groups = [(name, _crossing(links, paths)) for name, links in _links_by_part(network)]
    mine = [crossing for name, crossing in groups if name == part]
    if not mine:
        return ()
    crossing = mine[_DIRECTIONS[side] if len(mine) > 1 else 0]
    if not crossing.any():
        return ()
    same = [name for name, others in groups if name != part and np.array_equal(others, crossing)]
    return tuple(dict.fromkeys([*same, *_name_pair(network, paths, crossing)]))


def _crossing(links: list[int], paths: Ints) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.logical_or.reduce(np.isin(paths, links), axis=1)
    return found


def _name_pair(network: Network, paths: Ints, crossing: NDArray[np.bool_]) -> list[str]:
    """Return both names of a pair of NICs, if all that cross go between these two and all between them cross."""
    ends = np.sort(paths[:, [0, -1]] // 2, axis=1)
    chosen = np.unique(ends[crossing], axis=0)
    if len(chosen) != 1 or (ends[~crossing] == chosen).all(axis=1).any():
        return []
    one, other = (network.links[link].a for link in chosen[0])
    return [f"link:{one}--{other}", f"link:{other}--{one}"]


def _links_by_part(network: Network) -> Iterator[tuple[str, list[int]]]:
    """Yield each part with its links of both directions, then out and in; a switch with all of them only."""
    hosts: dict[str, list[int]] = {}
    switches: dict[str, list[int]] = {}
    for number, link in enumerate(network.links):
        (a, port), (b, _) = split_end(link.a), split_end(link.b)
        names = [f"link:{link.a}--{link.b}", *([nic_name(a, port)] if port else [])]  # fabrics name the host first
        yield from ((name, links) for name in names for links in _directions([number]))
        (hosts if port else switches).setdefault(a, []).append(number)
        switches.setdefault(b, []).append(number)
    yield from ((f"host:{name}", links) for name, numbers in hosts.items() for links in _directions(numbers))
    yield from ((f"switch:{name}", _directions(numbers)[0]) for name, numbers in switches.items())


def _directions(links: list[int]) -> tuple[list[int], list[int], list[int]]:
    out, back = [2 * link for link in links], [2 * link + 1 for link in links]
    return [*out, *back], out, back
