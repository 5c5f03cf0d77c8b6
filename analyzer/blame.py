"""Which parts explain the slow pairs: the fewest faults under which the matrix looks as it does.

A part is the set of pairs that run through it. If it were at fault, a pair through it would be slow with probability
1 - MISS, and any other pair with probability FALSE_ALARM. The part with the largest gain in log-likelihood is
taken, its pairs are explained, and the rest is asked again; a part that would have been as good a choice is tried
in its place, and the way with the fewest faults is kept. What cannot be told apart is named together: parts that are
as good over the same slow pairs, and parts with which another set of as few faults begins.

Cost: O(pairs) per fault, as a pair runs through a dozen parts at most. Reference: maximum likelihood over fault sets,
as in Flock (CoNEXT'23); taking one part at a time finds a likely set, not always the likeliest.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from analyzer.context import End
from analyzer.delay import DelayMatrix, Pair
from lockstep.topology import TopologyIndex, host_name, link_name, nic_name, split_end, switch_name
from lockstep.verdict import RuledOut, Side

K = TypeVar("K", bound=Hashable)

MISS = 0.05  # a pair through a slow part that looks normal: short transfers, another path
FALSE_ALARM = 0.001  # a slow pair without a fault; generous next to the six sigmas it has to pass
_HOT_GAIN = math.log((1 - MISS) / FALSE_ALARM)
_COLD_LOSS = math.log(MISS / (1 - FALSE_ALARM))
_AMBIGUITY = math.log(10)  # less than ten times as likely is not told apart
_MOST_SWAPS = 32  # with more the fabric is congested as a whole, and trying them all would take minutes

# Among equals the lowest is named: it is the one a technician looks at first. A NIC and a host have three each, for
# sending, receiving and both.
_WIRE_RANK, _NIC_RANK, _HOST_RANK, _LEAF_RANK = 0, 1, 4, 7


@dataclass(frozen=True)
class Part:
    """Something that can break, and the numbers of the pairs that run through it."""

    component: str
    side: Side | None
    rank: int
    members: list[int]


@dataclass(frozen=True)
class Blame:
    """A part at fault, what cannot be told from it, and what was cleared."""

    component: str
    side: Side | None
    likelihood: float  # of this part among all that could explain the same slow pairs, 0 to 1
    members: np.ndarray  # the slow pairs it explains
    ambiguous_with: tuple[str, ...]
    ruled_out: tuple[RuledOut, ...] = ()


def find_blame(matrix: DelayMatrix, topology: TopologyIndex | None) -> list[Blame]:
    """Return the parts at fault, the one that explains most first; nothing when no pair is slow."""
    if not matrix.hot.any():
        return []
    suspects = _Suspects(_list_parts(matrix, topology), matrix.hot)
    picks, swaps = _settle(suspects)
    guilty = suspects.names(picks).keys()
    remaining = matrix.hot.copy()
    blames: list[Blame] = []
    for pick in picks:
        blame = _blame(suspects, pick, swaps, remaining)
        blame = replace(blame, ruled_out=tuple(_rule_out(suspects, blame, guilty)))
        blames.append(_with_cables(blame, topology))
        remaining &= ~blame.members
    return sorted(blames, key=lambda blame: -int(blame.members.sum()))


class _Suspects:
    """All parts by rank, and for each slow pair that runs through a part an entry in two parallel arrays."""

    def __init__(self, parts: Iterable[Part], hot: np.ndarray) -> None:
        self.parts = sorted(parts, key=lambda part: (part.rank, part.component))
        slow = [[number for number in part.members if hot[number]] for part in self.parts]
        self._part = np.repeat(np.arange(len(slow)), [len(numbers) for numbers in slow])
        self._pair = np.array([number for numbers in slow for number in numbers])
        self.hot = hot
        self.normal: np.ndarray = np.array([len(part.members) for part in self.parts]) - self.count(hot)
        self.worth = self.gain(hot)

    def names(self, numbers: Iterable[int]) -> dict[str, None]:
        """Return the components of some parts, each once, in their order."""
        return dict.fromkeys(self.parts[number].component for number in numbers)

    def through(self, number: int, marked: np.ndarray) -> np.ndarray:
        """Return those of the marked pairs that run through a part."""
        found = np.zeros_like(marked)
        found[self.parts[number].members] = marked[self.parts[number].members]
        return found

    def count(self, marked: np.ndarray) -> np.ndarray:
        """Return how many of the marked pairs, all of them slow, run through each part."""
        return np.bincount(self._part, weights=marked[self._pair], minlength=len(self.parts))

    def gain(self, slow: np.ndarray) -> np.ndarray:
        """Return how much likelier each part makes the matrix when it has these slow pairs to explain."""
        return self.count(slow) * _HOT_GAIN + self.normal * _COLD_LOSS


def _settle(suspects: _Suspects) -> tuple[list[int], list[int]]:
    """Return the fewest parts that explain all slow pairs, and the parts with which others as few would begin."""
    picks = _pick(suspects)
    while True:
        equals = _find_equals(suspects, picks)
        if len(equals) > _MOST_SWAPS:
            return picks, equals
        others = {number: _pick(suspects, number) for number in equals}
        fewest = min(others.values(), key=len, default=picks)
        if len(fewest) >= len(picks):
            return picks, [number for number, other in others.items() if len(other) == len(picks)]
        picks = fewest


def _pick(suspects: _Suspects, *first: int) -> list[int]:
    """Return the parts that explain the slow pairs, each chosen for what those before it left over."""
    picks, remaining = list(first), suspects.hot.copy()
    for number in first:
        remaining &= ~suspects.through(number, remaining)
    while remaining.any():  # ends: the wire of a slow pair explains it, and nothing contradicts that
        picks.append(int(suspects.gain(remaining).argmax()))
        remaining &= ~suspects.through(picks[-1], remaining)
    return picks


def _find_equals(suspects: _Suspects, picks: list[int]) -> list[int]:
    """Return the parts that were not picked, but explain as much as one that was, and some of the same pairs."""
    named = suspects.names(picks)
    slow = suspects.count(suspects.hot)
    equal = np.zeros(len(suspects.parts), bool)
    for pick in picks:
        shared = suspects.count(suspects.through(pick, suspects.hot))
        others = (shared < slow[pick]) | (slow > shared)  # with the very same pairs, swapping them changes nothing
        equal |= (shared > 0) & others & (suspects.worth >= suspects.worth[pick])
    return [number for number in np.flatnonzero(equal).tolist() if suspects.parts[number].component not in named]


def _list_parts(matrix: DelayMatrix, topology: TopologyIndex | None) -> Iterator[Part]:
    """Yield every part that a slow pair runs through; the others can explain nothing."""
    slow = np.flatnonzero(matrix.hot).tolist()
    ends = {end for number in slow for end in matrix.pairs[number]}
    yield from (Part(_wire_name(matrix.pairs[number]), "tx", _WIRE_RANK, [number]) for number in slow)
    yield from _nics({end for end in ends if end.nic}, matrix.pairs)
    yield from _hosts({end.host for end in ends}, matrix.pairs)
    if topology:
        yield from _leaves(ends, matrix.pairs, topology)


def _wire_name(pair: Pair) -> str:
    return f"link:{pair[0]}--{pair[1]}"


def _nics(ends: set[End], pairs: tuple[Pair, ...]) -> Iterator[Part]:
    tx, rx = _numbers_by(src for src, _ in pairs), _numbers_by(dst for _, dst in pairs)
    for end in ends:
        yield from _sides(nic_name(end.host, str(end.nic)), _NIC_RANK, tx[end], rx[end])


def _hosts(hosts: set[str], pairs: tuple[Pair, ...]) -> Iterator[Part]:
    """Yield the hosts that are more than one NIC: they have several, or nothing tells which one it is."""
    tx, rx = _numbers_by(src.host for src, _ in pairs), _numbers_by(dst.host for _, dst in pairs)
    for host in hosts:
        nics = {end.nic for number in tx[host] + rx[host] for end in pairs[number] if end.host == host}
        if len(nics) > 1 or None in nics:
            yield from _sides(host_name(host), _HOST_RANK, tx[host], rx[host])


def _sides(component: str, rank: int, tx: list[int], rx: list[int]) -> Iterator[Part]:
    if tx:
        yield Part(component, "tx", rank, tx)
    if rx:
        yield Part(component, "rx", rank + 1, rx)
    if tx and rx:
        yield Part(component, None, rank + 2, sorted({*tx, *rx}))


def _leaves(ends: set[End], pairs: tuple[Pair, ...], topology: TopologyIndex) -> Iterator[Part]:
    members: dict[str | None, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        for leaf in {topology.leaf_of(end.host, end.nic) for end in pair if end.nic}:
            members[leaf].append(number)
    leaves = {topology.leaf_of(end.host, end.nic) for end in ends if end.nic}
    yield from (Part(switch_name(leaf), None, _LEAF_RANK, members[leaf]) for leaf in leaves if leaf)


def _numbers_by(keys: Iterable[K]) -> dict[K, list[int]]:
    numbers: dict[K, list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        numbers[key].append(number)
    return numbers


def _blame(suspects: _Suspects, pick: int, swaps: list[int], remaining: np.ndarray) -> Blame:
    explained = suspects.through(pick, remaining)
    involved, gains = suspects.count(explained), suspects.gain(explained)
    same = (involved == involved[pick]) & (suspects.count(remaining & ~explained) == 0)
    alike = np.flatnonzero(same & (gains > gains[pick] - _AMBIGUITY)).tolist()
    named = suspects.names([pick, *alike, *(number for number in swaps if involved[number])])
    some = np.flatnonzero(involved)
    weights = np.exp(gains[some] - gains[some].max())
    ours = [suspects.parts[number].component in named for number in some]
    return Blame(
        component=suspects.parts[pick].component,
        side=suspects.parts[pick].side,
        likelihood=float(weights[ours].sum() / weights.sum()) / len(named),
        members=explained,
        ambiguous_with=tuple(named)[1:],
    )


def _rule_out(suspects: _Suspects, blame: Blame, guilty: Set[str]) -> Iterator[RuledOut]:
    """Say why the other parts that the slow pairs run through are not the one: what else they carry is fine."""
    involved = np.flatnonzero(suspects.count(blame.members)).tolist()
    widest = {suspects.parts[number].component: number for number in involved}  # both ways comes after tx and rx
    kept = {blame.component, *blame.ambiguous_with, *guilty}
    for component, number in sorted(widest.items(), key=lambda item: item[1]):
        normal, carried = int(suspects.normal[number]), len(suspects.parts[number].members)
        if normal and component not in kept:
            yield RuledOut(
                component=component, because=f"{normal} of the {carried} connections through it are normal"
            )


def _with_cables(blame: Blame, topology: TopologyIndex | None) -> Blame:
    """Name the cable beside its NIC: every pair through one runs through the other."""
    named = (blame.component, *blame.ambiguous_with)
    nics = [split_end(name.removeprefix("nic:")) for name in named if name.startswith("nic:")]
    links = [topology.host_link(host, str(nic)) for host, nic in nics] if topology else []
    cables = dict.fromkeys(link_name(link) for link in links if link)
    return replace(blame, ambiguous_with=(*blame.ambiguous_with, *(name for name in cables if name not in named)))
