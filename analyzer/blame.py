"""Which parts explain the slow pairs: the fewest faults under which the matrix looks as it does.

A part is the set of pairs that run through it. If it were at fault, a pair through it would be slow with probability
1 - MISS, and any other pair with probability FALSE_ALARM. The part with the largest gain in log-likelihood is
taken, its pairs are explained, and the rest is asked again. Parts whose gain is as good, over the same slow pairs,
cannot be told apart from it and are named beside it.

Cost: O(parts * pairs) per fault. Reference: maximum likelihood over fault sets, as in Flock (CoNEXT'23).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from analyzer.delay import DelayMatrix
from analyzer.facts import End
from lockstep.topology import TopologyIndex, host_name, link_name, nic_name, switch_name
from lockstep.verdict import RuledOut, Side

MISS = 0.05  # a pair through a slow part that looks normal: short transfers, another path
FALSE_ALARM = 0.001  # a slow pair without a fault; generous next to the six sigmas it has to pass
_HOT_GAIN = math.log((1 - MISS) / FALSE_ALARM)
_COLD_LOSS = math.log(MISS / (1 - FALSE_ALARM))
_AMBIGUITY = math.log(10)  # less than ten times as likely is not told apart
_MIN_GAIN = _HOT_GAIN - _AMBIGUITY  # one slow pair and nothing against it


@dataclass(frozen=True)
class Part:
    """Something that can break, and the pairs that run through it."""

    component: str
    side: Side | None
    rank: int  # among equals the one with the lowest rank is named: it is the one a technician looks at first
    members: np.ndarray


@dataclass(frozen=True)
class Blame:
    """A part at fault, what cannot be told from it, and what was cleared."""

    component: str
    side: Side | None
    likelihood: float  # of this part (or what cannot be told from it) among all parts, 0 to 1
    members: np.ndarray  # the slow pairs it explains
    ambiguous_with: tuple[str, ...]
    ruled_out: tuple[RuledOut, ...]


def find_blame(matrix: DelayMatrix, topology: TopologyIndex | None) -> list[Blame]:
    """Return the parts at fault, the one that explains most first; nothing when no pair is slow."""
    remaining = matrix.hot.copy()
    parts = _list_parts(matrix, topology)
    blames: list[Blame] = []
    while remaining.any():
        gains = np.array([_gain(part, remaining, matrix.hot) for part in parts])
        best = max(range(len(parts)), key=lambda index: (gains[index], -parts[index].rank))
        if gains[best] < _MIN_GAIN:
            break
        blames.append(_blame(parts, gains, best, remaining, matrix))
        remaining = remaining & ~parts[best].members
    return [_with_cable(blame, topology) for blame in blames]


def _gain(part: Part, remaining: np.ndarray, hot: np.ndarray) -> float:
    explained = int((part.members & remaining).sum())
    contradicting = int((part.members & ~hot).sum())
    return explained * _HOT_GAIN + contradicting * _COLD_LOSS


def _list_parts(matrix: DelayMatrix, topology: TopologyIndex | None) -> list[Part]:
    """Return every part that a slow pair runs through; the others can explain nothing."""
    hot = [pair for pair, slow in zip(matrix.pairs, matrix.hot, strict=True) if slow]
    ends = sorted({end for pair in hot for end in pair}, key=str)
    parts = [*_wires(hot, matrix), *_ends(ends, matrix), *_hosts(ends, matrix)]
    return [*parts, *_leaves(ends, matrix, topology)] if topology else parts


def _wires(hot: Iterable[tuple[End, End]], matrix: DelayMatrix) -> Iterator[Part]:
    for pair in hot:
        members = np.array([other == pair for other in matrix.pairs])
        yield Part(f"link:{pair[0]}--{pair[1]}", "tx", 0, members)


def _ends(ends: Iterable[End], matrix: DelayMatrix) -> Iterator[Part]:
    for end in ends:
        name = nic_name(end.host, end.nic) if end.nic else host_name(end.host)
        tx = np.array([src == end for src, _ in matrix.pairs])
        rx = np.array([dst == end for _, dst in matrix.pairs])
        yield Part(name, None, 3, tx | rx)
        if tx.any() and rx.any():
            yield Part(name, "tx", 1, tx)
            yield Part(name, "rx", 2, rx)


def _hosts(ends: Iterable[End], matrix: DelayMatrix) -> Iterator[Part]:
    for host in sorted({end.host for end in ends if end.nic}):
        nics = {end for pair in matrix.pairs for end in pair if end.host == host}
        if len(nics) > 1:
            yield Part(
                host_name(host), None, 4, np.array([host in (src.host, dst.host) for src, dst in matrix.pairs])
            )


def _leaves(ends: Iterable[End], matrix: DelayMatrix, topology: TopologyIndex) -> Iterator[Part]:
    leaves = {topology.leaf_of(end.host, end.nic) for end in ends if end.nic}
    for leaf in sorted(leaf for leaf in leaves if leaf):
        behind = [{topology.leaf_of(end.host, end.nic) for end in pair if end.nic} for pair in matrix.pairs]
        yield Part(switch_name(leaf), None, 5, np.array([leaf in pair for pair in behind]))


def _blame(parts: list[Part], gains: np.ndarray, best: int, remaining: np.ndarray, matrix: DelayMatrix) -> Blame:
    chosen = parts[best]
    explained = chosen.members & remaining
    close = [index for index in range(len(parts)) if gains[index] > gains[best] - _AMBIGUITY]
    rivals = dict.fromkeys(
        parts[index].component
        for index in close
        if parts[index].component != chosen.component and np.array_equal(parts[index].members & remaining, explained)
    )
    together = [index for index, part in enumerate(parts) if part.component in {chosen.component, *rivals}]
    posterior = np.exp(gains - gains.max()) / np.exp(gains - gains.max()).sum()
    return Blame(
        component=chosen.component,
        side=chosen.side,
        likelihood=float(posterior[together].sum()) / (1 + len(rivals)),
        members=explained,
        ambiguous_with=tuple(rivals),
        ruled_out=tuple(_ruled_out(parts, {chosen.component, *rivals}, explained, matrix.hot)),
    )


def _ruled_out(parts: list[Part], kept: set[str], explained: np.ndarray, hot: np.ndarray) -> Iterator[RuledOut]:
    """Say why the other parts that the slow pairs run through are not the one: what else they carry is fine."""
    for part in parts:
        normal, carried = int((part.members & ~hot).sum()), int(part.members.sum())
        if part.component in kept or part.side or not (part.members & explained).any() or not normal:
            continue
        kept.add(part.component)
        yield RuledOut(
            component=part.component, because=f"{normal} of the {carried} connections through it are normal"
        )


def _with_cable(blame: Blame, topology: TopologyIndex | None) -> Blame:
    """Name the cable beside its NIC: every pair through one runs through the other."""
    if not topology or not blame.component.startswith("nic:"):
        return blame
    link = topology.host_link(*blame.component.removeprefix("nic:").split("/", 1))
    if link is None:
        return blame
    return replace(blame, ambiguous_with=(*blame.ambiguous_with, link_name(link)))
