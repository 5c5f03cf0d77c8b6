"""Which cables there are, when each is told by one end, by both, or by somebody who sees no ports."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from lockstep.intake.topologies.survey import End, SeenCable


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
    half = [_known_port_first(claim) for claim in claims if (claim.near.port is None) != (claim.far.port is None)]
    _add_half(matched, at_port, half)
    _add_bare(matched, [claim for claim in claims if claim.near.port is None and claim.far.port is None], hosts)
    return matched


def _known_port_first(claim: SeenCable) -> SeenCable:
    if claim.near.port is not None:
        return claim
    return SeenCable(claim.far, claim.near, claim.source, claim.gbps, claim.up)


def _find_double_ports(cables: Iterable[Cable]) -> Iterator[str]:
    partners: dict[End, list[tuple[End, str]]] = defaultdict(list)
    for cable in cables:
        partners[cable.a].append((cable.b, cable.seen[0].witness))
        partners[cable.b].append((cable.a, cable.seen[0].witness))
    for end, others in partners.items():
        if len(others) > 1:
            told = " and ".join(f"to {other} {witness}" for other, witness in others)
            yield f"{end} is cabled {told}, but takes one cable"


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
    for end, told in loose.items():
        if len({claim.far.node for claim in told}) > 1:
            says = " and ".join(f"to {claim.far} {claim.witness}" for claim in told)
            matched.complaints.append(f"{end} is cabled {says}, but takes one cable")
        sides[end.node, told[0].far.node].append((end, told))
    _pair_sides(matched, sides)


def _pair_sides(matched: Matched, sides: dict[tuple[str, str], list[tuple[End, list[SeenCable]]]]) -> None:
    """Make cables of ports whose far port is not told: ports of two nodes that name each other belong together."""
    for (near, far), mine in sides.items():
        theirs = sides.get((far, near), [])
        if theirs and far < near:
            continue  # done from the other side
        pairs = min(len(mine), len(theirs))
        if pairs > 1:
            matched.assumed.append(
                f"which of {pairs} ports of {near} and {far} belong together is not told: in order"
            )
        for (end, told), (other, back) in zip(mine, theirs, strict=False):
            matched.cables.append(Cable(end, other, told + back))
        for rest, peer in ((mine[pairs:], far), (theirs[pairs:], near)):
            matched.cables += [Cable(end, End(peer), told) for end, told in rest]


def _add_bare(matched: Matched, claims: Iterable[SeenCable], hosts: Set[str]) -> None:
    told: dict[frozenset[str], list[SeenCable]] = defaultdict(list)
    for claim in claims:
        told[frozenset((claim.near.node, claim.far.node))].append(claim)
    known = {frozenset((cable.a.node, cable.b.node)): cable for cable in matched.cables}
    cabled = {node: cable for cable in matched.cables for node in (cable.a.node, cable.b.node)}
    for pair, seen in told.items():
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
