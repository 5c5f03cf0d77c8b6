"""Which source port takes each flow over the links that its plan names, and what to probe where none is known.

A port is given to one flow only among those between the same two NICs and to the same destination port: two
connections cannot share all five fields. A flow that has a port which leads over the planned links keeps it.

Cost: a loop over flows and one over entries.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lockstep.records import Path
from planner.paths.catalogue import Catalogue, LeftOut
from planner.paths.planning import PathPlan
from planner.paths.sweeps import (
    ROCE_PORT,
    ProbeWish,
    SweepOptions,
    count_ways,
    cut_to_round,
    find_used_ports,
    join_ports,
    ports_of,
    sweep_pair,
)

Why = Literal["", "any", "no way", "unprobed", "unmet", "taken", "doubtful", "dead", "lossy", "changed", "old"]
_NEEDS_NONE = ("any", "no way")
_PROBE_AGAIN = ("doubtful", "changed", "old")

_Road = tuple[str, str, int, tuple[str, ...]]  # source, destination, destination port, links


@dataclass(frozen=True, slots=True)
class PortOptions:
    """Which ports there are to choose from."""

    proto: str = "roce"
    dport: int = ROCE_PORT
    least_confidence: float = 0.5  # below, a packet more likely goes elsewhere: a random port would do as well
    most_ports: int = 1  # of one flow: the first is to be used, the others stand in where it is taken on the host


@dataclass(frozen=True, slots=True)
class PortChoice:
    """The ports of one flow, or why it has none."""

    flow: str
    src: str  # host/nic
    dst: str
    dport: int
    links: tuple[str, ...]  # that the plan names
    ports: tuple[int, ...]
    confidence: float  # that the first of them leads over these links
    why: Why
    reason: str

    @property
    def is_needed(self) -> bool:
        """Return whether the port of this flow makes a difference."""
        return self.why not in _NEEDS_NONE


def choose_ports(
    plan: PathPlan,
    catalogue: Catalogue,
    options: PortOptions | None = None,
    held: Mapping[str, int] | None = None,
    dports: Mapping[str, int] | None = None,
) -> list[PortChoice]:
    """Return ports for each flow of a plan, in its order.

    `held`: the port that a flow has now; `dports`: the port that it goes to, where that is not the usual one.
    """
    options = options or PortOptions()
    demands = [_Demand(*each, (dports or {}).get(each[0], options.dport)) for each in _find_links(plan)]
    shelf = _Shelf(catalogue, options, held or {}, demands)
    first = [shelf.take(demand) for demand in demands]  # one for each before anybody gets a second
    return [_choose(each, path, shelf, options) for each, path in zip(demands, first, strict=True)]


def _choose(demand: "_Demand", path: Path | None, shelf: "_Shelf", options: PortOptions) -> PortChoice:
    named = (demand.flow, demand.src, demand.dst, demand.dport, demand.links)
    if path is None:
        return PortChoice(*named, (), 0.0, *shelf.explain(demand))
    spares = [more for _ in range(options.most_ports - 1) if (more := shelf.take(demand))]
    ports = (path.sport, *(more.sport for more in spares))
    return PortChoice(*named, ports, path.confidence, "", f"port {path.sport} was seen to take this road")


def share_with_port(choices: Sequence[PortChoice]) -> float:
    """Return the share of the flows whose port matters that have one; 1 where there is none."""
    needed = [choice for choice in choices if choice.is_needed]
    return sum(bool(choice.ports) for choice in needed) / len(needed) if needed else 1.0


def explain_ports(choices: Sequence[PortChoice]) -> list[str]:
    """Return how many flows have a port, and a sentence for each reason why others have none."""
    needed = [choice for choice in choices if choice.is_needed]
    reasons = Counter(choice.why for choice in choices if choice.why)
    first = (
        f"{sum(bool(choice.ports) for choice in needed)} of {len(needed)} flows have a port for their planned road"
    )
    return [first, *(f"{count} flows have none: {_SAID[why]}" for why, count in sorted(reasons.items()))]


_SAID: Mapping[str, str] = {
    "any": "every port leads the same way, inside one leaf",
    "no way": "there is no way",
    "unprobed": "their NICs have not been probed yet",
    "unmet": "no port that was probed leads over their road",
    "taken": "all ports that lead over their road have flows already",
    "doubtful": "what is known of their road is too uncertain",
    "dead": "the ports of their road are dead",
    "lossy": "the ports of their road lose probes",
    "changed": "a link between their leaves changed since it was probed",
    "old": "their road was not probed for too long",
}


def wish_probes(
    plan: PathPlan, choices: Sequence[PortChoice], catalogue: Catalogue, options: SweepOptions | None = None
) -> list[ProbeWish]:
    """Return the probes that would find ports for the flows that have none, those first that were never probed."""
    options = options or SweepOptions()
    waiting: dict[tuple[str, str, int], list[PortChoice]] = defaultdict(list)
    for choice in sorted(choices, key=lambda choice: choice.why != "unprobed"):
        if choice.is_needed and not choice.ports:
            waiting[choice.src, choice.dst, choice.dport].append(choice)
    known: dict[_Road, list[Path]] = defaultdict(list)
    for path in (*catalogue.paths, *(each.path for each in catalogue.left_out)):
        known[_road(path)].append(path)
    ways, used = count_ways(plan.network), find_used_ports(catalogue, options)
    return cut_to_round(_sweep(plan, waiting, known, ways, used, options), options)


def _sweep(
    plan: PathPlan,
    waiting: Mapping[tuple[str, str, int], Sequence[PortChoice]],
    known: Mapping[_Road, Sequence[Path]],
    ways: np.ndarray,
    used: Mapping[tuple[str, str], int],
    options: SweepOptions,
) -> Iterator[ProbeWish]:
    """Yield, by NICs and destination port, the known ports that are in doubt, and new ones for roads not met yet."""
    for (src, dst, dport), some in waiting.items():
        here = replace(options, dport=dport)
        again = dict.fromkeys((src, dst, dport, each.links) for each in some if each.why in _PROBE_AGAIN)
        yield from join_ports((path for road in again for path in known.get(road, ())), here)
        unmet = Counter(each.links for each in some if each.why not in _PROBE_AGAIN)
        if unmet:
            leaves = plan.network.ports[src][1], plan.network.ports[dst][1]
            yield sweep_pair(src, dst, int(ways[leaves]), used, here, times=max(unmet.values()))


@dataclass(frozen=True, slots=True)
class _Demand:
    """A flow that wants a port."""

    flow: str
    src: str
    dst: str
    links: tuple[str, ...]
    height: int
    dport: int

    @property
    def road(self) -> _Road:
        return self.src, self.dst, self.dport, self.links


def _find_links(plan: PathPlan) -> Iterator[tuple[str, str, str, tuple[str, ...], int]]:
    """Yield each flow with its NICs, links and height, in the order of the plan."""
    names = [link.id for link in plan.network.topology.links]
    nic_of = {lane: nic for nic, (lane, _) in plan.network.ports.items()}
    rows = zip(plan.flows.ids, plan.flows.ends.tolist(), plan.all_lanes(), plan.height.tolist(), strict=True)
    for flow, (out, into), lanes, height in rows:
        yield flow, nic_of[out], nic_of[into ^ 1], tuple(names[lane // 2] for lane in lanes), height


class _Shelf:
    """The ports that are known, by road, and which of them are given away."""

    def __init__(
        self, catalogue: Catalogue, options: PortOptions, held: Mapping[str, int], demands: Sequence[_Demand]
    ) -> None:
        self._held, self._options = dict(held), options
        self._good: dict[_Road, list[Path]] = defaultdict(list)
        self._bad: dict[_Road, LeftOut] = {_road(each.path): each for each in catalogue.left_out}
        self._seen = {_road(path) for path in catalogue.paths}
        self._pairs = {_ends(path) for path in catalogue.paths} | {_ends(each.path) for each in catalogue.left_out}
        for path in sorted(catalogue.paths, key=lambda path: (path.confidence, path.seen_ns, -path.sport)):
            if self._is_fit(path):
                self._good[_road(path)].append(path)  # the best one last
        self._fit = {(road, path.sport): path for road, paths in self._good.items() for path in paths}
        self._taken = {(*each.road[:3], held[each.flow]) for each in demands if each.flow in held}

    def _is_fit(self, path: Path) -> bool:
        is_alike = _hashed_as(path.proto) == _hashed_as(self._options.proto)  # the protocol is part of the hash
        is_sure = path.confidence >= self._options.least_confidence
        return is_alike and is_sure and path.sport in ports_of(self._options.proto)

    def take(self, demand: _Demand) -> Path | None:
        """Return the best port that is left for a road, the one that the flow has before all others."""
        if demand.height <= 0:
            return None
        if own := self._fit.get((demand.road, self._held.pop(demand.flow, 0))):
            return own
        here = self._good.get(demand.road, [])
        while here:
            path = here.pop()
            if (port := (*demand.road[:3], path.sport)) not in self._taken:
                self._taken.add(port)
                return path
        return None

    def explain(self, demand: _Demand) -> tuple[Why, str]:
        """Return why a flow has no port."""
        if demand.height <= 0:
            why: Why = "any" if demand.height == 0 else "no way"
            return why, _SAID[why]
        bad = self._bad.get(demand.road)
        if demand.road in self._good:
            return "taken", _SAID["taken"]
        if demand.road in self._seen:
            return "doubtful", _SAID["doubtful"]
        if bad and bad.why in _SAID:
            return bad.why, bad.reason  # type: ignore[return-value]  # those that have a road are in both sets
        why = "unmet" if (demand.src, demand.dst) in self._pairs else "unprobed"
        return why, _SAID[why]


def _hashed_as(proto: str) -> str:
    return "udp" if proto == "roce" else proto


def _road(path: Path) -> _Road:
    return *_ends(path), path.dport, tuple(path.links)


def _ends(path: Path) -> tuple[str, str]:
    return f"{path.host}/{path.src_nic}", f"{path.dst}/{path.dst_nic}"
