"""One topology out of what several sources tell: disagreement is reported, and what nobody told is assumed aloud."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from importers.topology.merging import (
    Cable,
    KnownNode,
    clean_names,
    match_cables,
    merge_nodes,
    rename_ports,
    settle_kinds,
)
from importers.topology.survey import End, SeenNic, Survey, in_words
from lockstep.errors import BadTopology
from lockstep.topology import (
    Link,
    Nic,
    Node,
    Routing,
    Tier,
    Topology,
    check_topology,
    count_hops,
    find_parts,
    join_nodes,
)


@dataclass
class Draft:
    """A fabric while it is put together."""

    nodes: dict[str, KnownNode]
    cables: list[Cable]
    assumed: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def is_host(self, end: End) -> bool:
        return self.nodes[end.node].kind == "host"


def plug_hosts(draft: Draft) -> None:
    """Give every cable of a host its NIC: the one that is told, else the one that is left, else a new one."""
    open_cables: dict[str, list[Cable]] = defaultdict(list)
    for cable in draft.cables:
        for end in (cable.a, cable.b):
            if draft.is_host(end) and end.port is None:
                open_cables[end.node].append(cable)
            elif draft.is_host(end):
                draft.nodes[end.node].nics.setdefault(str(end.port), SeenNic(str(end.port)))
    used = {end for cable in draft.cables for end in (cable.a, cable.b)}
    invented = []
    for host, cables in open_cables.items():
        free = [nic for nic in draft.nodes[host].nics if End(host, nic) not in used]
        if free:
            _plug_known(draft, host, cables, free)
        else:
            invented.append(host)
            nics = draft.nodes[host].nics
            for cable in cables:
                nic = next(name for name in (f"nic{number}" for number in count()) if name not in nics)
                nics[nic] = SeenNic(nic)
                _set_port(cable, host, nic)
    if invented:
        draft.assumed.append(
            f"NICs are unknown: one per cable is assumed, called nic0 and so on: {in_words(invented)}"
        )
    _say_uncabled(draft)


def _plug_known(draft: Draft, host: str, cables: list[Cable], free: list[str]) -> None:
    if len(free) == len(cables):
        for cable, nic in zip(cables, free, strict=True):
            _set_port(cable, host, nic)
        if len(free) > 1:
            draft.assumed.append(f"which NIC of {host} has which cable is unknown: taken in order")
    elif len(cables) == 1:
        # One leaf is told for the whole host, so all its NICs go there.
        whole = cables[0]
        copies = [Cable(whole.a, whole.b, whole.seen) for _ in free[1:]]
        draft.cables += copies
        for cable, nic in zip((whole, *copies), free, strict=True):
            _set_port(cable, host, nic)
        leaf = whole.b.node if whole.a.node == host else whole.a.node
        draft.assumed.append(f"which NICs of {host} go to {leaf} is unknown: all {len(free)} are taken to")
    else:
        draft.complaints.append(
            f"host {host} has {len(free)} NICs without a cable and {len(cables)} cables without a NIC: "
            "which belong together is unknown"
        )


def _set_port(cable: Cable, host: str, nic: str) -> None:
    if cable.a == End(host):
        cable.a = End(host, nic)
    else:
        cable.b = End(host, nic)


def _say_uncabled(draft: Draft) -> None:
    used = {end for cable in draft.cables for end in (cable.a, cable.b)}
    hosts = [node for node in draft.nodes.values() if node.kind == "host"]
    bare = [str(End(host.id, nic)) for host in hosts for nic in host.nics if End(host.id, nic) not in used]
    if bare:
        draft.assumed.append(f"no cable is known for {len(bare)} NICs: {in_words(bare)}")


_TIERS: Mapping[int, Tier] = {1: "leaf", 2: "spine", 3: "core"}

Plugs = Mapping[tuple[str, str], str]  # host and NIC to the switch at the other end
Neighbours = Mapping[str, set[str]]  # switches that are cabled to each other


def infer_tiers(leaves: Iterable[str], neighbours: Neighbours) -> dict[str, Tier]:
    """Return the tier of each switch that reaches a host: leaves have some, and the further away, the higher.

    An empty leaf looks like a core switch: no cable tells the two apart. Cost: O(switches + links).

    >>> infer_tiers(["l"], {"l": {"s"}, "s": {"l", "c"}, "c": {"s"}})
    {'l': 'leaf', 's': 'spine', 'c': 'core'}
    """
    starts = sorted(set(leaves))
    hops = count_hops(_graph_of(neighbours, starts), *starts)
    return {switch: _TIERS[min(distance + 1, len(_TIERS))] for switch, distance in hops.items()}


def infer_planes(plugs: Plugs, neighbours: Neighbours) -> dict[tuple[str, str], int]:
    """Return the plane of each NIC where switches fall into parts that never meet and share hosts; else nothing."""
    parts = find_parts(_graph_of(neighbours, sorted(neighbours)))
    part_of = {switch: number for number, part in enumerate(parts) for switch in part}
    used: dict[str, set[int]] = defaultdict(set)
    for (host, _), switch in plugs.items():
        used[host].add(part_of[switch])
    if not any(len(mine) > 1 for mine in used.values()):
        return {}
    numbers = {part: number for number, part in enumerate(sorted(set[int]().union(*used.values())))}
    return {nic: numbers[part_of[switch]] for nic, switch in plugs.items()}


def infer_rails(plugs: Plugs) -> dict[tuple[str, str], int]:
    """Return the rail of each NIC where every leaf has NICs of one name and there are several; else nothing."""
    names: dict[str, set[str]] = defaultdict(set)
    hosts: dict[str, set[str]] = defaultdict(set)
    for (host, nic), switch in plugs.items():
        names[switch].add(nic)
        hosts[switch].add(host)
    kinds = {
        nic: number for number, nic in enumerate(sorted({nic for _, nic in plugs}, key=lambda nic: (len(nic), nic)))
    }
    is_railed = len(kinds) > 1 and all(len(here) == 1 for here in names.values())
    if not is_railed or max(map(len, hosts.values())) < 2:  # one host on a leaf of its own proves nothing
        return {}
    return {(host, nic): kinds[nic] for host, nic in plugs}


def _graph_of(neighbours: Neighbours, switches: Iterable[str]) -> Any:  # Any: an untyped networkx.Graph
    return join_nodes(((near, far) for near in neighbours for far in sorted(neighbours[near])), switches)


_MOST_COMPLAINTS = 100  # nobody reads more, and a wrong file has one per line
_RANKS = {"leaf": 1, "spine": 2, "core": 3}


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """What to take for what no source tells."""

    gbps: float = 400.0  # of links; as generated fabrics have it
    routing: Routing | None = None  # None: as told, else ecmp


@dataclass(frozen=True, slots=True)
class Imported:
    """A topology and what had to be assumed for it, a sentence each."""

    topology: Topology
    assumed: tuple[str, ...]


def join_surveys(surveys: Sequence[Survey], options: JoinOptions) -> Imported:
    """Return the topology that all these tell of together, or raise BadTopology with all complaints at once."""
    surveys, renamed, clashes = clean_names(surveys)
    _refuse([complaint for survey in surveys for complaint in survey.complaints] + clashes)
    merged = merge_nodes(node for survey in surveys for node in survey.nodes)
    claims = rename_ports(merged, (cable for survey in surveys for cable in survey.cables))
    for claim in claims:
        for end in (claim.near, claim.far):
            merged.nodes.setdefault(end.node, KnownNode(end.node))
    settle_kinds(merged, claims)
    hosts = {node.id for node in merged.nodes.values() if node.kind == "host"}
    matched = match_cables(claims, hosts)
    draft = Draft(merged.nodes, matched.cables)
    draft.assumed += [*(note for survey in surveys for note in survey.assumed), *renamed]
    draft.assumed += merged.assumed + matched.assumed
    draft.complaints += merged.complaints + matched.complaints
    plug_hosts(draft)
    _set_tiers(draft)
    _set_planes_and_rails(draft)
    links = _make_links(draft, options)
    _refuse(draft.complaints)
    topology = Topology(routing=_choose_routing(draft, surveys, options), nodes=_make_nodes(draft), links=links)
    _refuse(check_topology(topology))
    return Imported(topology, tuple(dict.fromkeys(draft.assumed)))


def _refuse(complaints: Sequence[str]) -> None:
    listed = list(dict.fromkeys(complaints))
    if len(listed) > _MOST_COMPLAINTS:
        listed = [*listed[:_MOST_COMPLAINTS], f"and {len(listed) - _MOST_COMPLAINTS} more"]
    if listed:
        raise BadTopology(listed)


def _neighbours(draft: Draft) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {node.id: set() for node in draft.nodes.values() if node.kind == "switch"}
    for cable in draft.cables:
        if not draft.is_host(cable.a) and not draft.is_host(cable.b):
            found[cable.a.node].add(cable.b.node)
            found[cable.b.node].add(cable.a.node)
    return found


def _plugs(draft: Draft) -> dict[tuple[str, str], str]:
    ends = [pair for cable in draft.cables for pair in ((cable.a, cable.b), (cable.b, cable.a))]
    return {
        (near.node, str(near.port)): far.node for near, far in ends if draft.is_host(near) and not draft.is_host(far)
    }


def _set_tiers(draft: Draft) -> None:
    unknown = [node for node in draft.nodes.values() if node.kind == "switch" and node.tier is None]
    if not unknown:
        return
    tiers = infer_tiers(_plugs(draft).values(), _neighbours(draft))
    for node in unknown:
        node.tier = tiers.get(node.id)
    counts = [f"{sum(node.tier == tier for node in unknown)} {tier}" for tier in _RANKS]
    draft.assumed.append(
        f"tiers of switches are inferred from the distance to the nearest host ({', '.join(counts)}); "
        "a leaf without hosts looks like a core switch"
    )
    if lost := [node.id for node in unknown if node.tier is None]:
        draft.assumed.append(f"no host can be reached from {in_words(lost)}: the tier is unknown")


def _set_planes_and_rails(draft: Draft) -> None:
    hosts = [node for node in draft.nodes.values() if node.kind == "host"]
    if any(nic.plane is not None or nic.rail is not None for host in hosts for nic in host.nics.values()):
        return
    plugs = _plugs(draft)
    planes = infer_planes(plugs, _neighbours(draft))
    rails = {} if planes else infer_rails(plugs)
    for (host, nic), number in {**planes, **rails}.items():
        seen = draft.nodes[host].nics[nic]
        draft.nodes[host].nics[nic] = replace(seen, plane=number) if planes else replace(seen, rail=number)
    if planes:
        draft.assumed.append(f"{len(set(planes.values()))} planes: the switches fall into parts that never meet")
    if rails:
        draft.assumed.append(f"{len(set(rails.values()))} rails: every leaf has NICs of one name only")


def _make_links(draft: Draft, options: JoinOptions) -> tuple[Link, ...]:
    links, ids, unknown = [], set[str](), 0
    for cable in draft.cables:
        low, high = sorted((cable.a, cable.b), key=lambda end: _height(draft, end))
        gbps = _rate(draft, cable)
        unknown += gbps is None
        name = unique = f"{low}--{high}"
        for number in range(2, 2 + len(draft.cables)):
            if unique not in ids:
                break
            unique = f"{name}#{number}"
        ids.add(unique)
        links.append(Link(id=unique, a=str(low), b=str(high), gbps=gbps or options.gbps, up=cable.up))
    if unknown:
        draft.assumed.append(f"the rate of {unknown} links is unknown: {options.gbps:g} Gbit/s is assumed for each")
    return tuple(links)


def _height(draft: Draft, end: End) -> tuple[int, int, str]:
    node = draft.nodes[end.node]
    return 0 if node.kind == "host" else _RANKS.get(node.tier or "", 4), len(node.id), node.id


def _rate(draft: Draft, cable: Cable) -> float | None:
    given: dict[float, str] = {}
    for claim in cable.seen:
        if claim.gbps is not None:
            given.setdefault(claim.gbps, claim.witness)
    for end in (cable.a, cable.b):
        nic = draft.nodes[end.node].nics.get(end.port or "")
        if nic and nic.gbps is not None:
            given.setdefault(nic.gbps, f"by the rate of NIC {end}")
    if len(given) > 1:
        words = " and ".join(f"{gbps:g} Gbit/s {who}" for gbps, who in given.items())
        draft.complaints.append(f"the cable from {cable.a} to {cable.b} runs at {words}")
    return next(iter(given), None)


def _make_nodes(draft: Draft) -> tuple[Node, ...]:
    by_rank = sorted(draft.nodes.values(), key=lambda node: _height(draft, End(node.id))[0])  # stable: else as told
    return tuple(
        Node(
            id=node.id,
            kind=node.kind or "switch",
            tier=node.tier,
            rack=node.rack,
            gpus=node.gpus,
            nics=tuple(
                Nic(id=nic.id, plane=nic.plane, rail=nic.rail, address=nic.address) for nic in node.nics.values()
            ),
            addresses=node.addresses,
        )
        for node in by_rank
    )


def _choose_routing(draft: Draft, surveys: Sequence[Survey], options: JoinOptions) -> Routing:
    if options.routing:
        return options.routing
    given = dict.fromkeys(survey.routing for survey in surveys if survey.routing)
    if len(given) > 1:
        _refuse([f"routing is {' and '.join(given)}: --routing says which"])
    if not given and any(node.kind == "switch" for node in draft.nodes.values()):
        draft.assumed.append("how switches choose among equal paths is unknown: ecmp is assumed")
    return next(iter(given), "ecmp")
