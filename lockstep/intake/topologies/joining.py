"""One topology out of what several sources tell: disagreement is reported, and what nobody told is assumed aloud."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lockstep.errors import BadTopology
from lockstep.intake.topologies.cables import Cable, match_cables
from lockstep.intake.topologies.naming import clean_names
from lockstep.intake.topologies.nodes import KnownNode, Merged, merge_nodes, rename_ports, settle_kinds
from lockstep.intake.topologies.plugging import Draft, plug_hosts
from lockstep.intake.topologies.structure import infer_planes, infer_rails, infer_tiers
from lockstep.intake.topologies.survey import End, Survey, in_words
from lockstep.topology import Link, Nic, Node, Routing, Topology, check_topology

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
    _add_unseen(merged, (end for claim in claims for end in (claim.near, claim.far)))
    settle_kinds(merged, claims)
    hosts = {node.id for node in merged.nodes.values() if node.kind == "host"}
    matched = match_cables(claims, hosts)
    draft = Draft(merged.nodes, matched.cables)
    draft.assumed += [*(said for survey in surveys for said in survey.assumed), *renamed]
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


def _add_unseen(merged: Merged, ends: Iterable[End]) -> None:
    for end in ends:
        merged.nodes.setdefault(end.node, KnownNode(end.node))


def _neighbours(draft: Draft) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {node.id: set() for node in draft.nodes.values() if node.kind == "switch"}
    for cable in draft.cables:
        if not draft.is_host(cable.a) and not draft.is_host(cable.b):
            found[cable.a.node].add(cable.b.node)
            found[cable.b.node].add(cable.a.node)
    return found


def _plugs(draft: Draft) -> dict[tuple[str, str], str]:
    ways = [way for cable in draft.cables for way in ((cable.a, cable.b), (cable.b, cable.a))]
    return {
        (near.node, str(near.port)): far.node for near, far in ways if draft.is_host(near) and not draft.is_host(far)
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
        draft.assumed.append(f"the rate of {unknown} links is not told: {options.gbps:g} Gbit/s is assumed for each")
    return tuple(links)


def _height(draft: Draft, end: End) -> tuple[int, int, str]:
    node = draft.nodes[end.node]
    return 0 if node.kind == "host" else _RANKS.get(node.tier or "", 4), len(node.id), node.id


def _rate(draft: Draft, cable: Cable) -> float | None:
    told: dict[float, str] = {}
    for claim in cable.seen:
        if claim.gbps is not None:
            told.setdefault(claim.gbps, claim.witness)
    for end in (cable.a, cable.b):
        nic = draft.nodes[end.node].nics.get(end.port or "")
        if nic and nic.gbps is not None:
            told.setdefault(nic.gbps, f"by the rate of NIC {end}")
    if len(told) > 1:
        words = " and ".join(f"{gbps:g} Gbit/s {who}" for gbps, who in told.items())
        draft.complaints.append(f"the cable from {cable.a} to {cable.b} runs at {words}")
    return next(iter(told), None)


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
    told = dict.fromkeys(survey.routing for survey in surveys if survey.routing)
    if len(told) > 1:
        _refuse([f"routing is {' and '.join(told)}: --routing says which"])
    if not told and any(node.kind == "switch" for node in draft.nodes.values()):
        draft.assumed.append("how switches choose among equal ways is not told: ecmp is assumed")
    return next(iter(told), "ecmp")
