"""The flows to plan: who sends how much to whom, as rows of a file and as arrays on a network, and their paths.

A path is told by its height (how far up it goes) and its spine. Flows inside one leaf have none to choose.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from lockstep.errors import BadFlows
from lockstep.verdict import Frozen
from planner.paths.colouring import colour_evenly
from planner.paths.network import NONE, Network


class Flow(Frozen):
    """One queue pair or socket that carries much."""

    id: str = Field(description="unique, such as job1/c0/r3-r4/q0")
    src: str = Field(description="host/nic, or a host, whose NICs are then used by turns")
    dst: str = Field(description="host/nic, or a host")
    gbps: float = Field(gt=0, allow_inf_nan=False, description="that it sends while it sends")
    duty: float = Field(1.0, gt=0, le=1, description="share of the time in which it sends")
    job: str = ""


_ROWS = TypeAdapter(list[Flow])


def parse_flows(rows: Any) -> list[Flow]:  # Any: JSON of any shape
    """Return the flows of rows {id, src, dst, gbps}, or raise BadFlows with all complaints at once."""
    try:
        flows = _ROWS.validate_python(rows)
    except ValidationError as error:
        raise BadFlows([_describe(problem) for problem in error.errors(include_url=False)]) from None
    seen: set[str] = set()
    twice = [flow.id for flow in flows if flow.id in seen or seen.add(flow.id)]  # type: ignore[func-returns-value]
    if twice:
        raise BadFlows([f"flow {name} is there more than once" for name in dict.fromkeys(twice)])
    return flows


def _describe(problem: Any) -> str:  # Any: what pydantic reports
    where = [str(step) for step in problem["loc"]]
    row = f"row {where[0]}" + (f", {where[1]}" if len(where) > 1 else "") if where else "the rows"
    return f"{row}: {problem['msg']}"


@dataclass(frozen=True)
class FlowTable:
    """Flows on a network, in parallel arrays."""

    ids: tuple[str, ...]
    size: np.ndarray  # Gbit/s on average
    near: np.ndarray  # number of the leaf where each enters
    far: np.ndarray  # and where it leaves
    ends: np.ndarray  # [flow, 2] directed links of its hosts: into the fabric and out of it

    def __len__(self) -> int:
        return len(self.ids)


def place_flows(network: Network, flows: Sequence[Flow]) -> FlowTable:
    """Return the flows with their ports, left to left and right to right where hosts have several planes."""
    if complaints := find_unfit(network, flows):
        raise BadFlows(list(complaints.values()))
    ports = _choose_ports(network, flows)
    found = np.array([[network.ports[src], network.ports[dst]] for src, dst in ports], np.int64).reshape(-1, 2, 2)
    size = np.array([flow.gbps * flow.duty for flow in flows], np.float64)
    ends = np.stack([found[:, 0, 0], found[:, 1, 0] ^ 1], axis=1)
    return FlowTable(tuple(flow.id for flow in flows), size, found[:, 0, 1], found[:, 1, 1], ends)


def find_unfit(network: Network, flows: Sequence[Flow]) -> dict[str, str]:
    """Return why flows cannot be planned, by id: ends without a port, flows to themselves and between planes."""
    planes = _planes(network)
    known = {port.partition("/")[0] for port in network.ports} | network.ports.keys()
    return {flow.id: why for flow in flows if (why := _explain_unfit(flow, known, planes))}


def _explain_unfit(flow: Flow, known: Set[str], planes: Mapping[str, int | None]) -> str:
    strange = [end for end in (flow.src, flow.dst) if end not in known]
    if strange:
        return f"flow {flow.id}: {' and '.join(strange)} is no host or NIC with a cable to a leaf"
    if flow.src == flow.dst:
        return f"flow {flow.id} goes from {flow.src} to itself"
    near, far = planes.get(flow.src), planes.get(flow.dst)
    if near is not None and far is not None and near != far:
        return f"flow {flow.id} goes from plane {near} to plane {far}, which never meet"
    return ""


def _planes(network: Network) -> dict[str, int | None]:
    return {f"{host.id}/{nic.id}": nic.plane for host in network.topology.hosts for nic in host.nics}


def _choose_ports(network: Network, flows: Sequence[Flow]) -> list[tuple[str, str]]:
    """Return the NICs of each flow; where only hosts are named, their NICs of the same place are used evenly.

    A slot at which a cable is dead at either end is left to the others, as long as there is another.
    """
    nics, dead = _nics_by_host(network), _find_dead_ends(network)
    chosen = [(flow.src, flow.dst) for flow in flows]
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, flow in enumerate(flows):
        if flow.src in nics and flow.dst in nics:
            groups.setdefault(_find_slots(nics[flow.src], nics[flow.dst], dead), []).append(index)
        else:
            chosen[index] = _choose_like(flow, nics, network)
    for slots, indices in groups.items():
        near, far = (_number([getattr(flows[index], side) for index in indices]) for side in ("src", "dst"))
        for index, colour in zip(indices, colour_evenly([near], [far], len(slots)).tolist(), strict=True):
            chosen[index] = (nics[flows[index].src][slots[colour]], nics[flows[index].dst][slots[colour]])
    return chosen


def _find_dead_ends(network: Network) -> set[str]:
    links = np.array([link for link, _ in network.ports.values()], np.int64)
    is_dead = (network.gbps[links] <= 0) | (network.gbps[links ^ 1] <= 0)
    return {name for name, dead in zip(network.ports, is_dead.tolist(), strict=True) if dead}


def _find_slots(near: Sequence[str], far: Sequence[str], dead: Set[str]) -> tuple[int, ...]:
    """Return the slots among the NICs of two hosts at which both have a cable that carries something; else all."""
    slots = range(min(len(near), len(far)))
    alive = [slot for slot in slots if near[slot] not in dead and far[slot] not in dead] if dead else ()
    return tuple(alive or slots)


def _choose_like(flow: Flow, nics: dict[str, list[str]], network: Network) -> tuple[str, str]:
    """Return the NICs of a flow of which one end is given: the other one is on the same plane, at the same place."""
    if flow.src not in nics and flow.dst not in nics:
        return flow.src, flow.dst
    given, host = (flow.dst, flow.src) if flow.src in nics else (flow.src, flow.dst)
    planes = _planes(network)
    beside, same = (
        [nic for nic in nics[name] if planes[nic] == planes[given]] for name in (given.partition("/")[0], host)
    )
    same = same or nics[host]
    mine = same[beside.index(given) % len(same)]
    return (mine, given) if flow.src in nics else (given, mine)


def _nics_by_host(network: Network) -> dict[str, list[str]]:
    """Return the NICs of each host that have a cable, in the order of the topology."""
    found = {
        host.id: [name for nic in host.nics if (name := f"{host.id}/{nic.id}") in network.ports]
        for host in network.topology.hosts
    }
    return {host: nics for host, nics in found.items() if nics}


def _number(names: Sequence[str]) -> np.ndarray:
    numbers: np.ndarray = np.unique(np.array(names, dtype=str), return_inverse=True)[1].reshape(-1)
    return numbers


UNPLACED = -1  # instead of a spine: no path was chosen, or there is none


@dataclass(frozen=True)
class FlowPaths:
    """The paths that each flow may take on a network, and the loads of those that were chosen."""

    network: Network
    flows: FlowTable
    _known: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)

    @cached_property
    def usable(self) -> list[np.ndarray]:
        """Return by height which leaf can reach which spine, and come back, over links that carry something."""
        return [up_paths.usable(self.network.gbps > 0) for up_paths in self.network.up_paths]

    @cached_property
    def height(self) -> np.ndarray:
        """Return how high each flow has to go up: 0 inside a leaf, NONE where there is no path at all."""
        near, far = self.flows.near, self.flows.far
        height = np.where(near == far, 0, NONE)
        ports_alive = (self.network.gbps[self.flows.ends] > 0).all(axis=1)
        for level, usable in enumerate(self.usable, start=1):
            joined = (usable.astype(np.float32) @ usable.T.astype(np.float32)) > 0
            height = np.where((height == NONE) & joined[near, far], level, height)
        reached: np.ndarray = np.where(ports_alive, height, NONE)
        return reached

    def spines(self, flow: int) -> np.ndarray:
        """Return the spines that a flow may go over."""
        key = int(self.height[flow]), int(self.flows.near[flow]), int(self.flows.far[flow])
        if key not in self._known:
            level, near, far = key
            usable = self.usable[level - 1][[near, far]] if level > 0 else np.zeros((2, 0), bool)
            self._known[key] = np.flatnonzero(usable.all(axis=0))
        return self._known[key]

    def links(self, flow: int, spines: np.ndarray) -> np.ndarray:
        """Return the directed links [spine, step] of a flow over each of some spines."""
        up_paths = self.network.up_paths[int(self.height[flow]) - 1].links
        up, down = up_paths[self.flows.near[flow], spines], up_paths[self.flows.far[flow], spines]
        return np.concatenate([up, down[:, ::-1] ^ 1], axis=1)

    def links_of(self, flows: np.ndarray, spines: np.ndarray) -> np.ndarray:
        """Return the directed links [flow, step] of flows of one height over one spine each."""
        up_paths = self.network.up_paths[int(self.height[flows[0]]) - 1].links
        up, down = up_paths[self.flows.near[flows], spines], up_paths[self.flows.far[flows], spines]
        return np.concatenate([up, down[:, ::-1] ^ 1], axis=1)

    def placed(self, spine: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the flows of each height that have a spine, and their directed links [flow, step] in between."""
        for level in range(1, len(self.network.up_paths) + 1):
            at = np.flatnonzero((self.height == level) & (spine != UNPLACED))
            if len(at):
                yield at, self.links_of(at, spine[at])

    def find_loads(self, spine: np.ndarray) -> np.ndarray:
        """Return the load of each link in Gbit/s when flows go over these spines; hosts' own ports included."""
        size, going = self.flows.size, (self.height == 0) | (spine != UNPLACED)
        load = np.zeros(self.network.directed_links)
        for at, links in ((going, self.flows.ends[going]), *self.placed(spine)):
            load += np.bincount(links.ravel(), np.repeat(size[at], links.shape[1]), minlength=len(load))
        return load

    def is_valid(self, spine: np.ndarray) -> np.ndarray:
        """Return which flows go over a spine that they may use."""
        good: np.ndarray = self.height == 0
        for level, usable in enumerate(self.usable, start=1):
            at = np.flatnonzero((self.height == level) & (spine != UNPLACED) & (spine < usable.shape[1]))
            good[at] = usable[self.flows.near[at], spine[at]] & usable[self.flows.far[at], spine[at]]
        return good


def find_use(network: Network, load: np.ndarray) -> np.ndarray:
    """Return the load of each directed link over its rate; infinite where something goes over a dead one."""
    use = np.zeros(len(load))
    np.divide(load, network.gbps, out=use, where=network.gbps > 0)
    use[(network.gbps <= 0) & (load > 0)] = np.inf
    return use


def find_bound(paths: FlowPaths) -> float:
    """Return the least that the highest use of a directed link between switches can be."""
    pairs = max((_bound_pairs(paths, level) for level in range(1, len(paths.network.up_paths) + 1)), default=0.0)
    return max(pairs, *(_bound_cuts(paths, level) for level in range(len(paths.network.up_paths) + 1)))


def _bound_cuts(paths: FlowPaths, level: int) -> float:
    """Return the bound from what crosses the border of each part that is joined below a height."""
    if level >= len(paths.network.up_paths):
        return 0.0
    part = paths.network.joined_below(level)
    crossing = paths.height > level
    rates = paths.network.gbps
    part_of = np.full(len(rates), NONE)  # that a directed link leads out of
    leaf, index = np.nonzero(paths.network.up_paths[level].exists)
    part_of[paths.network.up_paths[level].links[leaf, index, level]] = part[leaf]
    border = np.flatnonzero(part_of != NONE)
    parts = int(part.max()) + 1
    highest = 0.0
    for ends, direction in ((paths.flows.near, 0), (paths.flows.far, 1)):
        demand = np.bincount(part[ends[crossing]], paths.flows.size[crossing], minlength=parts)
        room = np.bincount(part_of[border], rates[border ^ direction], minlength=parts)
        needed = demand > 0
        highest = max(highest, float((demand[needed] / np.maximum(room[needed], 1e-12)).max(initial=0.0)))
    return highest


def _bound_pairs(paths: FlowPaths, level: int) -> float:
    """Return the bound from the two leaves that have the least in common for what they send each other."""
    up_paths, rates, usable = paths.network.up_paths[level - 1], paths.network.gbps, paths.usable[level - 1]
    up, down = (np.where(usable, rates[up_paths.links ^ direction].min(axis=2), 0.0) for direction in (0, 1))
    # Two leaves that lack nothing share all that each of them has, which its own border tells already.
    lacks = np.any([(room < room.max(axis=1, keepdims=True)) & up_paths.exists for room in (up, down)], axis=0).any(
        axis=1
    )
    near, far = paths.flows.near, paths.flows.far
    at = np.flatnonzero((paths.height == level) & (lacks[near] | lacks[far]))
    if not len(at):
        return 0.0
    leaves = len(paths.network.leaves)
    pair, index = np.unique(near[at] * leaves + far[at], return_inverse=True)
    demand = np.bincount(index, paths.flows.size[at])
    highest = 0.0
    for begin in range(0, len(pair), 4096):  # in blocks: all pairs of a large fabric at once take gigabytes
        src, dst = np.divmod(pair[begin : begin + 4096], leaves)
        room = np.minimum(up[src], down[dst]).sum(axis=1)
        highest = max(highest, float((demand[begin : begin + 4096] / room).max()))
    return highest


def choose_by_chance(paths: FlowPaths, seed: int) -> np.ndarray:
    """Return a spine for each flow, all that it may use equally likely."""
    rng = np.random.default_rng(seed)
    spine = np.full(len(paths.flows), UNPLACED, np.int64)
    for level, usable in enumerate(paths.usable, start=1):
        at = np.flatnonzero(paths.height == level)
        for begin in range(0, len(at), 4096):  # in blocks: all flows times all spines at once take gigabytes
            block = at[begin : begin + 4096]
            open_to = usable[paths.flows.near[block]] & usable[paths.flows.far[block]]
            spine[block] = np.where(open_to, rng.random(open_to.shape), -1.0).argmax(axis=1)
    return spine
