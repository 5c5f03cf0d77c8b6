"""Which hosts and switches there are, when several sources tell of them, and where those disagree."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from reprlib import repr as shorten
from typing import TypeVar

from importers.topology.survey import End, SeenCable, SeenNic, SeenNode, Survey, in_words
from lockstep.topology import Gpu, Kind, Tier

Value = TypeVar("Value", bound=Hashable)


@dataclass
class KnownNode:
    """A node as all sources together know it."""

    id: str
    kind: Kind | None = None
    tier: Tier | None = None
    rack: str | None = None
    gpus: tuple[Gpu, ...] = ()
    nics: dict[str, SeenNic] = field(default_factory=dict)
    addresses: tuple[str, ...] | None = None


@dataclass
class Merged:
    """Nodes by id, the NICs that got another name, and the sentences about them."""

    nodes: dict[str, KnownNode] = field(default_factory=dict)
    renamed: dict[End, str] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def merge_nodes(seen: Iterable[SeenNode]) -> Merged:
    """Return each node once, with complaints where sources disagree about it."""
    by_id: dict[str, list[SeenNode]] = defaultdict(list)
    for node in seen:
        by_id[node.id].append(node)
    merged = Merged()
    for name, given in by_id.items():
        given = _share_nic_names(merged, given)
        merged.nodes[name] = KnownNode(
            id=name,
            kind=_kind(merged, given),
            tier=_agree(merged, given, "tier", lambda node: node.tier),
            rack=_agree(merged, given, "rack", lambda node: node.rack),
            gpus=_agree(merged, given, "GPUs", lambda node: node.gpus) or (),
            nics=_nics(merged, given),
            addresses=_agree(merged, given, "addresses", lambda node: node.addresses),
        )
    if merged.renamed:
        words = [f"{end} is {name}" for end, name in merged.renamed.items()]
        merged.assumed.append(f"NICs with the same GUID are one: {in_words(words)}")
    return merged


def settle_kinds(merged: Merged, cables: Iterable[SeenCable]) -> None:
    """Decide what nobody told: who looks out itself is a host, unless at hosts; who is only looked at is a switch."""
    neighbours: dict[str, set[Kind | None]] = defaultdict(set)
    for cable in cables:
        neighbours[cable.near.node].add(merged.nodes[cable.far.node].kind)
    unknown = [node for node in merged.nodes.values() if node.kind is None]
    for node in unknown:
        node.kind = "host" if node.id in neighbours and "host" not in neighbours[node.id] else "switch"
    for kind in ("host", "switch"):
        if names := [node.id for node in unknown if node.kind == kind]:
            merged.assumed.append(f"what kind of node they are is unknown, taken for a {kind}: {in_words(names)}")


def rename_ports(merged: Merged, cables: Iterable[SeenCable]) -> list[SeenCable]:
    """Return the cables with the names that NICs have got."""

    def named(end: End) -> End:
        return End(end.node, merged.renamed.get(end, end.port))

    return [replace(cable, near=named(cable.near), far=named(cable.far)) for cable in cables]


def _kind(merged: Merged, given: Sequence[SeenNode]) -> Kind | None:
    sure = {node.kind: node.source for node in given if node.kind and node.is_sure}
    guessed = {node.kind: node.source for node in given if node.kind and not node.is_sure}
    if len(sure or guessed) > 1:
        words = " and ".join(f"a {kind} as {source} says" for kind, source in (sure or guessed).items())
        merged.complaints.append(f"node {given[0].id} is {words}")
    elif sure and guessed and sure.keys() != guessed.keys():
        kind, source = next(iter(sure.items()))
        merged.assumed.append(f"{given[0].id} forwards like a switch, but is a {kind} as {source} says: kept as that")
    return next(iter(sure or guessed), None)


def _agree(
    merged: Merged, given: Sequence[SeenNode], what: str, value_of: Callable[[SeenNode], Value | None]
) -> Value | None:
    """Return the one value that is told, or the first with a complaint."""
    values: dict[Value, str] = {}
    for node in given:
        if value := value_of(node):
            values.setdefault(value, node.source)
    if len(values) > 1:
        words = " and ".join(f"{shorten(value)} as {source} says" for value, source in values.items())
        merged.complaints.append(f"sources disagree on the {what} of {given[0].id}: {words}")
    return next(iter(values), None)


_FACTS = {"rate in Gbit/s": "gbps", "plane": "plane", "rail": "rail", "address": "address"}  # of a NIC


def _nics(merged: Merged, given: Sequence[SeenNode]) -> dict[str, SeenNic]:
    nics: dict[str, SeenNic] = {}
    sources: dict[str, str] = {}
    for node in given:
        for nic in node.nics:
            other, source = nics.setdefault(nic.id, nic), sources.setdefault(nic.id, node.source)
            for what, name in _FACTS.items():
                one, two = getattr(other, name), getattr(nic, name)
                if one is not None and two is not None and one != two:
                    one, two = (f"{value:g}" if name == "gbps" else value for value in (one, two))
                    words = f"is {one} as {source} says and {two} as {node.source} says"
                    merged.complaints.append(f"the {what} of NIC {node.id}/{nic.id} {words}")
            untold = {name: getattr(nic, name) for name in (*_FACTS.values(), "guid") if getattr(other, name) is None}
            nics[nic.id] = replace(other, **untold)
    return nics


def _share_nic_names(merged: Merged, given: Sequence[SeenNode]) -> list[SeenNode]:
    """Give NICs that are the same card by its GUID the name that the host's own GPUs know them by."""
    inside = next((node for node in given if node.gpus), None)
    if inside is None:
        return list(given)
    names = _unique_guids(inside)
    shared = []
    for node in given:
        new = (
            {} if node is inside else {old: names[guid] for guid, old in _unique_guids(node).items() if guid in names}
        )
        merged.renamed |= {End(node.id, old): name for old, name in new.items() if old != name}
        nics = tuple(replace(nic, id=new.get(nic.id, nic.id)) for nic in node.nics)
        shared.append(replace(node, nics=nics))
    return shared


def _unique_guids(node: SeenNode) -> dict[str, str]:
    """Return names of NICs by GUID; the ports of one card share theirs and are left out."""
    times = Counter(nic.guid for nic in node.nics)
    return {nic.guid: nic.id for nic in node.nics if nic.guid and times[nic.guid] == 1}


@dataclass
class Cable:
    """A cable and everybody who tells of it."""

    a: End
    b: End
    seen: list[SeenCable] = field(default_factory=list)

    @property
    def up(self) -> bool:
        return all(claim.up for claim in self.seen)


@dataclass
class Matched:
    """Cables, and the sentences about them."""

    cables: list[Cable] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def match_cables(claims: Sequence[SeenCable], hosts: Set[str]) -> Matched:
    """Return each cable once, or complaints where two tell different things of one port.

    Those who know both ports are heard first; who knows one port must agree with them. Who knows none, such as a
    tree, adds a cable only where the others left room: not to a host, nor between two nodes, that they have cabled.
    """
    matched = Matched()
    by_ends: dict[frozenset[End], Cable] = {}
    for claim in claims:
        if claim.near.port is not None and claim.far.port is not None:
            cable = by_ends.setdefault(frozenset((claim.near, claim.far)), Cable(claim.near, claim.far))
            cable.seen.append(claim)
    matched.complaints += _find_double_ports(by_ends.values())
    at_port = {end: cable for cable in by_ends.values() for end in (cable.a, cable.b)}
    matched.cables += by_ends.values()
    half = [
        replace(claim, near=claim.far, far=claim.near) if claim.near.port is None else claim
        for claim in claims
        if (claim.near.port is None) != (claim.far.port is None)
    ]
    _add_half(matched, at_port, half)
    _add_bare(matched, [claim for claim in claims if claim.near.port is None and claim.far.port is None], hosts)
    return matched


def _find_double_ports(cables: Iterable[Cable]) -> Iterator[str]:
    partners: dict[End, list[tuple[End, str]]] = defaultdict(list)
    for cable in cables:
        partners[cable.a].append((cable.b, cable.seen[0].witness))
        partners[cable.b].append((cable.a, cable.seen[0].witness))
    for end, others in partners.items():
        if len(others) > 1:
            given = " and ".join(f"to {other} {witness}" for other, witness in others)
            yield f"{end} is cabled {given}, but takes one cable"


def _add_half(matched: Matched, at_port: dict[End, Cable], claims: Iterable[SeenCable]) -> None:
    loose: dict[End, list[SeenCable]] = defaultdict(list)
    for claim in claims:
        cable = at_port.get(claim.near)
        if cable is None:
            loose[claim.near].append(claim)
            continue
        cable.seen.append(claim)
        far = cable.b if cable.a == claim.near else cable.a
        if far.node != claim.far.node:
            matched.complaints.append(
                f"{claim.near} is cabled to {claim.far} {claim.witness} and to {far} {cable.seen[0].witness}, "
                "but takes one cable"
            )
    sides: dict[tuple[str, str], list[tuple[End, list[SeenCable]]]] = defaultdict(list)
    for end, given in loose.items():
        if len({claim.far.node for claim in given}) > 1:
            claimed = " and ".join(f"to {claim.far} {claim.witness}" for claim in given)
            matched.complaints.append(f"{end} is cabled {claimed}, but takes one cable")
        sides[end.node, given[0].far.node].append((end, given))
    _pair_sides(matched, sides)


def _pair_sides(matched: Matched, sides: dict[tuple[str, str], list[tuple[End, list[SeenCable]]]]) -> None:
    """Make cables of ports whose far port is unknown: ports of two nodes that name each other belong together."""
    for (near, far), mine in sides.items():
        theirs = sides.get((far, near), [])
        if theirs and far < near:
            continue  # done from the other side
        pairs = min(len(mine), len(theirs))
        if pairs > 1:
            matched.assumed.append(f"which of {pairs} ports of {near} and {far} belong together is unknown: in order")
        for (end, given), (other, back) in zip(mine, theirs, strict=False):
            matched.cables.append(Cable(end, other, given + back))
        for rest, peer in ((mine[pairs:], far), (theirs[pairs:], near)):
            matched.cables += [Cable(end, End(peer), given) for end, given in rest]


def _add_bare(matched: Matched, claims: Iterable[SeenCable], hosts: Set[str]) -> None:
    given: dict[frozenset[str], list[SeenCable]] = defaultdict(list)
    for claim in claims:
        given[frozenset((claim.near.node, claim.far.node))].append(claim)
    known = {frozenset((cable.a.node, cable.b.node)): cable for cable in matched.cables}
    cabled = {node: cable for cable in matched.cables for node in (cable.a.node, cable.b.node)}
    for pair, seen in given.items():
        first = seen[0]
        if pair in known:
            known[pair].seen += seen
        elif pair <= cabled.keys() or pair & cabled.keys() & hosts:
            other = next(cabled[node] for node in (first.near.node, first.far.node) if node in cabled)
            matched.complaints.append(
                f"{first.near} and {first.far} are joined as {first.source} says, but no cable goes from one to the "
                f"other as {other.seen[0].source} says"
            )
        else:
            # Several lines of one source are parallel cables; several sources tell of the same.
            most = max(Counter(claim.source for claim in seen).values())
            matched.cables += [Cable(first.near, first.far, seen) for _ in range(most)]


_GAPS = re.compile(r"\s+")
_DASHES = re.compile(r"-{2,}")  # link:a--b would no longer come apart


def clean_names(surveys: Iterable[Survey]) -> tuple[list[Survey], list[str], list[str]]:
    """Return the surveys with names that can be used, what was changed, and complaints where two become one."""
    surveys = list(surveys)
    nodes = [node.id for survey in surveys for node in survey.nodes]
    ends = [end.node for survey in surveys for cable in survey.cables for end in (cable.near, cable.far)]
    raw = dict.fromkeys(nodes + ends)
    taken: dict[str, str] = {}
    complaints = [
        f"nodes {taken[clean]!r} and {name!r} would both be called {clean}"
        for name in raw
        if taken.setdefault(clean := clean_node(name), name) != name
    ]
    changed = [f"{name!r} is called {clean_node(name)}" for name in raw if clean_node(name) != name]
    assumed = [f"names that topology.json cannot hold were changed: {in_words(changed)}"] if changed else []
    return [_cleaned(survey) for survey in surveys], assumed, complaints


def clean_node(name: str) -> str:
    """Return the name of a node without what it may not contain.

    >>> clean_node("rack 1/leaf--2")
    'rack_1.leaf-2'
    """
    return clean_port(name).replace("/", ".")


def clean_port(name: str) -> str:
    """Return the name of a port or a NIC, which may contain a slash."""
    if name.isprintable() and " " not in name and "--" not in name:
        return name  # nearly all are
    visible = "".join(letter if letter.isprintable() else " " for letter in name)
    return _DASHES.sub("-", _GAPS.sub("_", visible.strip()))


def _cleaned(survey: Survey) -> Survey:
    cables = [replace(cable, near=_end(cable.near), far=_end(cable.far)) for cable in survey.cables]
    return replace(survey, nodes=[_node(node) for node in survey.nodes], cables=cables)


def _end(end: End) -> End:
    return End(clean_node(end.node), None if end.port is None else clean_port(end.port))


def _node(node: SeenNode) -> SeenNode:
    return replace(
        node,
        id=clean_node(node.id),
        rack=clean_port(node.rack) if node.rack else None,
        gpus=tuple(gpu.model_copy(update={"nics": tuple(map(clean_port, gpu.nics))}) for gpu in node.gpus),
        nics=tuple(replace(nic, id=clean_port(nic.id)) for nic in node.nics),
    )
