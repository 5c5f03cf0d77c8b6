"""Which source port takes each flow over the links that its plan names, and what to probe where none is known.

A port is given to one flow only among those between the same two NICs: two connections cannot share all five fields.
A flow that has a port which leads over the planned links keeps it. Which port leads where is different for each pair
of NICs, so pairs with flows to place are swept themselves, with as many ports as it takes to meet every path.

Cost: a loop over flows and one over entries.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from lockstep.records import Path
from planner.paths.catalogue import Catalogue, LeftOut
from planner.paths.network import Network
from planner.paths.planning import PathPlan

ROCE_PORTS = range(0xC000, 0x10000)  # the source ports that RoCEv2 is given: some NICs refuse others
ROCE_PORT = 4791  # assigned to RoCEv2 by IANA
_ROCE = ("roce", "udp")  # the protocol is part of the hash, and to a switch RoCEv2 is UDP
_LEAST_CONFIDENCE = 0.5  # below, a packet more likely goes elsewhere: a random port would do as well

Why = Literal["", "any", "no path", "unprobed", "unmet", "taken", "doubtful", "dead", "lossy", "changed", "old"]
_NEEDS_NONE = ("any", "no path")
_PROBE_AGAIN = ("doubtful", "changed", "old")
_MESSAGES: Mapping[str, str] = {
    "any": "every port leads over the same path, inside one leaf",
    "no path": "there is no path",
    "unprobed": "their NICs have not been probed yet",
    "unmet": "no port that was probed leads over their path",
    "taken": "all ports that lead over their path have flows already",
    "doubtful": "what is known of their path is too uncertain",
    "dead": "the ports of their path are dead",
    "lossy": "the ports of their path lose probes",
    "changed": "a link between their leaves changed since it was probed",
    "old": "their path was not probed for too long",
}

_Pair = tuple[str, str]  # source and destination, host/nic each
_PathKey = tuple[_Pair, int, tuple[str, ...]]  # ends, destination port, links


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How much to probe."""

    most_probes: int = 10_000  # in one round; a collector takes no more for all its detail requests together
    coverage: float = 0.99  # probability that a sweep meets every path


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Some consecutive source ports to be probed from one NIC to another, once each."""

    src: str
    src_nic: str
    dst: str
    dst_nic: str
    sport: int
    ports: int
    proto: str = "roce"
    dport: int = ROCE_PORT

    @property
    def details(self) -> dict[str, Any]:
        """Return what a detail request of kind `probe` says to the collector of `src`."""
        names = ("src_nic", "dst", "dst_nic", "proto", "sport", "dport", "ports")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class PortChoice:
    """The port of one flow, or why it has none."""

    flow: str
    src: str  # host/nic
    dst: str
    links: tuple[str, ...]  # that the plan names
    port: int | None
    confidence: float  # that it leads over these links
    why: Why
    reason: str

    @property
    def is_needed(self) -> bool:
        """Return whether the port of this flow makes a difference."""
        return self.why not in _NEEDS_NONE


def choose_ports(plan: PathPlan, catalogue: Catalogue, held: Mapping[str, int] | None = None) -> list[PortChoice]:
    """Return a port for each flow of a plan, in its order; `held`: the port that a flow has now."""
    demands = list(_find_demands(plan))
    pool = _PortPool(catalogue, held or {}, demands)
    choices = []
    for demand in demands:
        named, path = (demand.flow, *demand.ends, demand.links), pool.take(demand)
        if path is None:
            choices.append(PortChoice(*named, None, 0.0, *pool.explain(demand)))
        else:
            seen = f"port {path.sport} was seen to take this path"
            choices.append(PortChoice(*named, path.sport, path.confidence, "", seen))
    return choices


def explain_ports(choices: Sequence[PortChoice]) -> list[str]:
    """Return how many flows have a port, and a sentence for each reason why others have none."""
    needed = [choice.port is not None for choice in choices if choice.is_needed]
    reasons = Counter(choice.why for choice in choices if choice.why)
    first = f"{sum(needed)} of {len(needed)} flows have a port for their planned path"
    return [first, *(f"{count} flows have none: {_MESSAGES[why]}" for why, count in sorted(reasons.items()))]


def request_probes(
    plan: PathPlan, choices: Sequence[PortChoice], catalogue: Catalogue, options: SweepOptions | None = None
) -> list[ProbeRequest]:
    """Return the probes that would find ports for the flows that have none, those first that were never probed.

    What one round may not have comes in the next one.
    """
    options = options or SweepOptions()
    waiting: dict[_Pair, list[PortChoice]] = defaultdict(list)
    for choice in sorted(choices, key=lambda choice: choice.why != "unprobed"):
        if choice.is_needed and choice.port is None:
            waiting[choice.src, choice.dst].append(choice)
    chosen, left = list[ProbeRequest](), options.most_probes
    for request in _sweep(plan, waiting, catalogue, options.coverage):
        chosen.append(replace(request, ports=min(request.ports, left)))
        left -= chosen[-1].ports
        if not left:
            break
    return chosen


def count_ports(paths: int, coverage: float = 0.99) -> int:
    """Return how many ports to probe so that each of some equally likely paths is met (the coupon collector).

    By the union bound: each of n paths is missed by p ports with (1 - 1/n)^p, any of them with at most n times that.

    >>> [count_ports(paths) for paths in (1, 2, 4, 16, 64)]
    [1, 8, 21, 115, 557]
    """
    if paths < 2:
        return 1
    return math.ceil(math.log((1 - coverage) / paths) / math.log1p(-1 / paths))


def count_paths(network: Network) -> np.ndarray:
    """Return how many shortest paths there are from each leaf to each other, counting only links that carry.

    A switch takes any of its cables, up and down, so paths multiply; a plan uses only some of them.
    """
    paths = np.zeros((len(network.leaves), len(network.leaves)), np.int64)
    for up_paths in network.up_paths:
        usable = up_paths.usable(network.gbps > 0)
        seats: dict[str, list[int]] = defaultdict(list)  # several for a switch that is reached over several paths
        for seat, spine in enumerate(up_paths.spines):
            seats[spine.partition("#")[0]].append(seat)
        up = np.stack([_count_distinct(up_paths.links[:, mine], usable[:, mine]) for mine in seats.values()], axis=1)
        paths = np.where(paths > 0, paths, up @ up.T)
    return paths


def _count_distinct(links: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Return for each leaf how many of its up paths to one switch are different; links [leaf, seat, step]."""
    fresh = usable.copy()
    for seat in range(1, usable.shape[1]):
        is_same = (links[:, :seat] == links[:, seat : seat + 1]).all(axis=2) & usable[:, :seat]
        fresh[:, seat] &= ~is_same.any(axis=1)
    count: np.ndarray = fresh.sum(axis=1)
    return count


def _sweep(
    plan: PathPlan, waiting: Mapping[_Pair, Sequence[PortChoice]], catalogue: Catalogue, coverage: float
) -> Iterator[ProbeRequest]:
    """Yield, by NICs, the known ports that are in doubt, and new ones for paths not met yet."""
    known: dict[_PathKey, list[int]] = defaultdict(list)
    used: dict[_Pair, int] = defaultdict(lambda: ROCE_PORTS.start)  # the port behind the last one that was probed
    for path in (*catalogue.paths, *(each.path for each in catalogue.left_out)):
        if path.proto == "roce":
            known[_key_of(path)].append(path.sport)
            used[_ends_of(path)] = max(used[_ends_of(path)], path.sport + 1)
    path_counts = count_paths(plan.network)
    for pair, some in waiting.items():
        again = dict.fromkeys((pair, ROCE_PORT, each.links) for each in some if each.why in _PROBE_AGAIN)
        for run in _find_runs(sport for key in again for sport in known[key]):
            yield _request(pair, run[0], len(run))
        unmet = Counter(each.links for each in some if each.why not in _PROBE_AGAIN)
        if unmet:
            leaves = tuple(plan.network.ports[end][1] for end in pair)
            count = max(unmet.values()) * count_ports(int(path_counts[leaves]), coverage)
            count = min(count, len(ROCE_PORTS))
            yield _request(pair, used[pair] if used[pair] + count <= ROCE_PORTS.stop else ROCE_PORTS.start, count)


def _request(pair: _Pair, sport: int, ports: int) -> ProbeRequest:
    (host, nic), (far, far_nic) = (end.split("/", 1) for end in pair)
    return ProbeRequest(host, nic, far, far_nic, sport, ports)


def _find_runs(ports: Iterable[int]) -> list[list[int]]:
    """Return consecutive ports together.

    >>> _find_runs([7, 3, 4, 8, 9])
    [[3, 4], [7, 8, 9]]
    """
    ordered = np.unique(list(ports))
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return [run.tolist() for run in runs if len(run)]


@dataclass(frozen=True, slots=True)
class _Demand:
    """A flow that wants a port."""

    flow: str
    ends: _Pair
    links: tuple[str, ...]
    height: int

    @property
    def key(self) -> _PathKey:
        return self.ends, ROCE_PORT, self.links


def _find_demands(plan: PathPlan) -> Iterator[_Demand]:
    """Yield each flow with its NICs, links and height, in the order of the plan."""
    network = plan.network
    nic_of = {link: nic for nic, (link, _) in network.ports.items()}
    rows = zip(plan.flows.ids, plan.flows.ends.tolist(), plan.all_directed_links(), plan.height.tolist(), strict=True)
    for flow, (out, into), links, height in rows:
        names = tuple(network.link_of(link) for link in links)
        yield _Demand(flow, (nic_of[out], nic_of[into ^ 1]), names, height)


class _PortPool:
    """The ports that are known, by path, and which of them are given away."""

    def __init__(self, catalogue: Catalogue, held: Mapping[str, int], demands: Sequence[_Demand]) -> None:
        self._held = held
        self._good: dict[_PathKey, list[Path]] = defaultdict(list)
        self._bad: dict[_PathKey, LeftOut] = {_key_of(each.path): each for each in catalogue.left_out}
        self._seen = {_key_of(path) for path in catalogue.paths}
        self._pairs = {_ends_of(path) for path in (*catalogue.paths, *(each.path for each in catalogue.left_out))}
        for path in sorted(catalogue.paths, key=lambda path: (path.confidence, path.seen_ns, -path.sport)):
            if path.proto in _ROCE and path.confidence >= _LEAST_CONFIDENCE and path.sport in ROCE_PORTS:
                self._good[_key_of(path)].append(path)  # the best one last
        self._fit = {(key, path.sport): path for key, paths in self._good.items() for path in paths}
        self._taken = {(each.ends, held[each.flow]) for each in demands if each.flow in held}

    def take(self, demand: _Demand) -> Path | None:
        """Return the best port that is left for a path, the one that the flow has before all others."""
        if demand.height <= 0:
            return None
        if own := self._fit.get((demand.key, self._held.get(demand.flow, 0))):
            return own
        here = self._good.get(demand.key, [])
        while here:
            path = here.pop()
            if (port := (demand.ends, path.sport)) not in self._taken:
                self._taken.add(port)
                return path
        return None

    def explain(self, demand: _Demand) -> tuple[Why, str]:
        """Return why a flow has no port."""
        bad = self._bad.get(demand.key)
        if demand.height <= 0:
            why: Why = "any" if demand.height == 0 else "no path"
        elif demand.key in self._good:
            why = "taken"
        elif demand.key in self._seen:
            why = "doubtful"
        elif bad and bad.why in _MESSAGES:
            return bad.why, bad.reason  # type: ignore[return-value]  # those that have a path are in both sets
        else:
            why = "unmet" if demand.ends in self._pairs else "unprobed"
        return why, _MESSAGES[why]


def _key_of(path: Path) -> _PathKey:
    return _ends_of(path), path.dport, tuple(path.links)


def _ends_of(path: Path) -> _Pair:
    return f"{path.host}/{path.src_nic}", f"{path.dst}/{path.dst_nic}"
