"""The flows to plan: who sends how much to whom, as rows of a file and as arrays on a network."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from lockstep.errors import BadFlows
from lockstep.verdict import Frozen
from planner.paths.colouring import colour_evenly
from planner.paths.network import Network


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
