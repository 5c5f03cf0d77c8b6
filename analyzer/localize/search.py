"""Which parts together explain the slow pairs best.

The part with the largest gain is taken, its pairs are explained, and the rest is asked again, until nothing makes the
delays likelier than a fault is rare. Then each part is taken out and the best one put in its place, for as long as
that helps; and the search begins again with the parts that had almost been taken first, because the largest is not
always right: between two slow NICs of a ring there may be a healthy one whose pairs are all slow.

Cost: O(entries of suspects) per part tried. Reference: maximum likelihood over fault sets, greedy with joint updates,
as in Flock (CoNEXT'23).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, betaln

from analyzer.evidence.observations import Evidence
from analyzer.localize.parts import Kind, Part, Suspects
from lockstep.topology import TopologyIndex, link_name, split_end
from lockstep.verdict import Side

_OTHER: dict[Side, Side] = {"tx": "rx", "rx": "tx"}


class Cables:
    """Names the cable of a NIC in verdicts, where the topology knows it."""

    def __init__(self, topology: TopologyIndex | None) -> None:
        self._topology = topology

    def cable_of(self, component: str, side: Side | None = None) -> tuple[str, Side | None] | None:
        """Return the cable in a NIC and its direction when the NIC sends or receives; None for what is no NIC."""
        kind, _, name = component.partition(":")
        host, nic = split_end(name)
        link = self._topology.host_link(host, nic) if self._topology and kind == "nic" and nic else None
        if link is None:
            return None
        is_from_nic = link.a == name
        return link_name(link), side if side is None or is_from_nic else _OTHER[side]

    def log_odds(self, evidence: Evidence, component: str, side: Side | None) -> float:
        """Return the weight of the evidence of a part, or of its cable where they weigh more."""
        cable = self.cable_of(component, side)
        return max(evidence.log_odds(component, side), evidence.log_odds(*cable) if cable else -float("inf"))


MISS_UNSEEN = (
    0.25  # likewise, of a pair that shows no delay at all: a socket's buffer hides what a slow part does to it
)
MISS = 0.05  # a pair through a slow part that looks normal or otherwise slow: short transfers, another way
FALSE_ALARM = 1e-4  # a slow pair without a fault; generous next to the many sigmas it has to pass
_U = 0.25  # density of an excess of which nothing is known: up to e^4, fifty times as slow
_UNEVEN = 0.35  # pairs through one part differ by so much of its excess: they share it with others, or not
_MOST = 50.0  # of a logarithm, so that no exponential overflows
_LEAST_SPREAD = 0.05  # of pairs through a part that is slow by a little


@dataclass(frozen=True, slots=True)
class Pick:
    """A part that is taken to be at fault, and how slow it makes its pairs (logarithm of a factor)."""

    number: int
    excess: float


class Likelihood:
    """Weighs parts by the pairs that run through them, in the light of those that are at fault already.

    What explains each pair so far is an array of excesses, 0 where nothing does; `explained_by` makes it.
    """

    def __init__(
        self,
        suspects: Suspects,
        excess: np.ndarray,
        slow: np.ndarray,
        miss: np.ndarray,
        chance: np.ndarray,
        weight: np.ndarray,
    ) -> None:
        self.suspects, self.slow = suspects, slow
        self.normal = ~slow & (miss < 1)  # as far as anything tells
        self._miss = miss  # by pair: how likely it looks normal, or otherwise slow, through a slow part
        self._chance = chance  # by pair: how likely it is slow without a fault
        self._weight = weight  # by pair: less than one where several are likely to be slow for one reason
        self._excess = np.clip(excess, 0.0, 1 / _U)
        entries = np.flatnonzero(slow[suspects.pair])
        order = np.lexsort((self._excess[suspects.pair[entries]], suspects.part[entries]))
        self._slow_entries = entries[order]  # of slow pairs, by part and then by excess: medians are read off

    def none(self) -> np.ndarray:
        return np.zeros(len(self.slow))

    def gains(self, so_far: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much each part would make the delays likelier (logarithm), and with which excess."""
        excess = self._fit(so_far)
        change = self._change(so_far, excess[self.suspects.part], slice(None))
        return np.bincount(self.suspects.part, weights=change, minlength=len(self.suspects.parts)), excess

    def gain(self, so_far: np.ndarray, pick: Pick) -> float:
        """Return by how much one part makes the delays likelier (logarithm)."""
        return float(self._change(so_far, np.array(pick.excess), self.suspects.entries(pick.number)).sum())

    def explain(self, so_far: np.ndarray, pick: Pick) -> np.ndarray:
        """Return what explains each pair once a part is at fault, too."""
        entries = self.suspects.entries(pick.number)
        pairs, share = self.suspects.pair[entries], self.suspects.share[entries]
        raised = np.maximum(so_far[pairs], pick.excess)
        change = self._log(pairs, raised) - self._log(pairs, so_far[pairs])
        with np.errstate(divide="ignore"):  # a share of 1 is certain: its odds are infinite
            is_through = np.log(share) - np.log1p(-share) + change > 0
        after = so_far.copy()
        after[pairs[is_through | (share == 1)]] = raised[is_through | (share == 1)]
        return after

    def share_of_fault(self, so_far: np.ndarray, pick: Pick) -> float:
        """Return how likely a part is at fault rather than that what runs through it differs by nature.

        A fault slows all of it. Where pairs are slow for what they are, such as those in the middle of a tree, half
        of them may be, and where all are, nothing else slows them. Of pairs that ECMP may send elsewhere a fault
        slows its share, and paths that collide any share up to a half, as likely each. Pairs that others slow speak
        for neither.
        """
        entries = self.suspects.entries(pick.number)
        pairs, share = self.suspects.pair[entries], self.suspects.share[entries]
        collide = self.suspects.parts[pick.number].kind in ("link", "switch")  # ports of a NIC do not
        kept = (so_far[pairs] == 0) & (self.slow | self.normal)[pairs] & ((share == 1) | collide)
        pairs, share = pairs[kept], share[kept]
        slow, is_certain = self.slow[pairs], share == 1
        if slow[is_certain].all() and (is_certain.any() or slow.all()):
            return 1.0
        near = np.exp(-0.5 * ((self._excess[pairs] - pick.excess) / _spread(np.array(pick.excess))) ** 2)
        normal = self._miss[pairs] + (1 - self._miss[pairs]) * near
        by_fault = np.log(np.where(slow, share * (1 - MISS), 1 - share + share * normal))
        by_nature = is_certain.sum() * math.log(0.5) + _log_minority(slow[~is_certain])
        return 1 / (1 + math.exp(min(by_nature - float(by_fault.sum()), _MOST)))

    def unexplained(self, so_far: np.ndarray) -> np.ndarray:
        """Return which slow pairs are slower than what explains them so far."""
        missing: np.ndarray = self.slow & (self._excess - so_far > 2 * _spread(so_far))
        return missing

    def _change(self, so_far: np.ndarray, excess: np.ndarray, entries: slice) -> np.ndarray:
        """Return by how much each entry's wire would be likelier, were its part as slow as that."""
        pairs, share = self.suspects.pair[entries], self.suspects.share[entries]
        raised = np.maximum(so_far[pairs], excess)
        change = np.clip(self._log(pairs, raised) - self._log(pairs, so_far[pairs]), -_MOST, _MOST)
        mixed: np.ndarray = np.log1p(share * np.expm1(change))
        return mixed

    def _fit(self, so_far: np.ndarray) -> np.ndarray:
        """Return the excess of each part that fits its slow pairs best: the median of those not yet explained."""
        entries = self._slow_entries[self.unexplained(so_far)[self.suspects.pair[self._slow_entries]]]
        count = np.bincount(self.suspects.part[entries], minlength=len(self.suspects.parts))
        middle = np.cumsum(count) - count + np.maximum(count - 1, 0) // 2
        values = np.append(self._excess[self.suspects.pair[entries]], 0.0)
        return np.where(count > 0, values[np.minimum(middle, len(entries))], 0.0)

    def _log(self, pairs: np.ndarray, given: np.ndarray) -> np.ndarray:
        """Return the logarithm of the likelihood of some pairs, each given what slows it; 0: nothing."""
        spread = _spread(given)
        near = np.exp(-0.5 * ((self._excess[pairs] - given) / spread) ** 2)
        slow = np.log((1 - MISS) * near / (spread * math.sqrt(2 * math.pi)) + MISS * _U)
        normal = np.log(self._miss[pairs] + (1 - self._miss[pairs]) * near)
        faulty = np.where(self.slow[pairs], slow, normal)
        sound = np.where(self.slow[pairs], np.log(self._chance[pairs] * _U), 0.0)
        weighed: np.ndarray = np.where(given > 0, faulty, sound) * self._weight[pairs]
        return weighed


def _log_minority(slow: np.ndarray) -> float:
    """Return how likely just these are slow where each is by a chance that is at most a half (logarithm)."""
    if not len(slow):
        return 0.0
    count, others = int(slow.sum()) + 1, int((~slow).sum()) + 1
    with np.errstate(divide="ignore"):  # that hundreds are is so unlikely that it has no logarithm
        return float(math.log(2) + betaln(count, others) + np.log(betainc(count, others, 0.5)))


def _spread(excess: np.ndarray) -> np.ndarray:
    spread: np.ndarray = np.maximum(_UNEVEN * excess, _LEAST_SPREAD)
    return spread


# How rare faults are, as the logarithm of odds. One NIC of a thousand is in trouble at any time; a fault of a link in
# the fabric, a GPU's own connections or a whole host is rarer, that of a switch rarer still: where the data does not
# decide, the lowest part is named, and central ones, which can explain anything, are not.
PRIORS: dict[Kind, float] = {
    "pair": -7.0,
    "nic": -7.0,
    "link": -8.0,
    "pcie": -9.0,
    "nvlink": -8.0,
    "host": -8.0,
    "switch": -9.5,
}
_UNKNOWN_NICS = -2.0  # a pair between hosts names nothing that could be looked at; the host does
_BOTH_DIRECTIONS = -0.5  # one direction is the simpler scenario
_MOST_FAULTS = 256  # bounds the time; by then the fabric is congested as a whole
_MOST_RIVALS = 6  # other parts with which the search begins again
_MORE_FAULTS = 2  # that such a search may end with; what takes more is no rival
_HOPELESS = 20.0  # in the logarithm: so far behind, taking parts out and putting others in does not make up for it
_MOST_SETTLED = 32  # faults; with more, taking each out takes longer than it is worth
_ROUNDS = 3  # of taking out and putting in; it settles in one or two
_CLEARLY = 1.0  # in the logarithm: nearly three times as likely, else the NIC stands for both
_WORTH = 1e-6  # a better explanation is better by more than rounding


@dataclass(frozen=True)
class Explanation:
    """Parts at fault, in the order in which they were taken, and how much likelier they make the delays."""

    picks: tuple[Pick, ...]
    score: float


class Search:
    """Looks for explanations among suspects; `price` is what each part costs to blame, evidence included."""

    def __init__(self, likelihood: Likelihood, evidence: Evidence, cables: Cables) -> None:
        self.likelihood, self._signs = likelihood, evidence
        self.price = np.array([_price(part, evidence, cables) for part in likelihood.suspects.parts])
        # Most searches come by the same parts: two of three beginnings were tried before, and nine of ten scores.
        self._tried: dict[tuple[tuple[Pick, ...], int], tuple[Pick, ...]] = {}
        self._scores: dict[frozenset[Pick], float] = {}

    def explain(self) -> list[Explanation]:
        """Return the best explanation, and after it others that were found, the better first."""
        first = self._settle(self._greedy(()))
        most = len(first.picks) + _MORE_FAULTS
        tried = [self._greedy((rival,), most) for rival in self._rivals(first)]
        others = [self._settle(picks) for picks in tried if self._score(picks) > first.score - _HOPELESS]
        found = {frozenset(pick.number for pick in each.picks): each for each in (*others, first)}
        return sorted(found.values(), key=lambda each: (-round(each.score, 6), len(each.picks)))

    def values(self, without: Sequence[Pick]) -> tuple[np.ndarray, np.ndarray]:
        """Return what each part is worth beside some others that are at fault, and with which excess."""
        return self._worth(self._explained(without))

    def share_of_fault(self, rest: Sequence[Pick], pick: Pick) -> float:
        """Return how likely a part is at fault beside the others rather than that its pairs differ by nature."""
        return self.likelihood.share_of_fault(self._explained(rest), pick)

    def prefers_cable(self, nic: Part, cable: tuple[str, Side | None]) -> bool:
        """Return whether evidence speaks for the cable rather than for the NIC it is in."""
        return self._signs.log_odds(*cable) > self._signs.log_odds(nic.component, nic.side) + _CLEARLY

    def _greedy(self, start: tuple[Pick, ...], most: int = _MOST_FAULTS) -> tuple[Pick, ...]:
        if (start, most) not in self._tried:
            self._tried[start, most] = self._take_best(start, most)
        return self._tried[start, most]

    def _take_best(self, start: tuple[Pick, ...], most: int) -> tuple[Pick, ...]:
        picks, so_far = list(start), self._explained(start)
        while len(picks) < most:
            worth, excess = self._worth(so_far)
            best = int(worth.argmax())
            if worth[best] <= 0:
                break
            picks.append(Pick(best, float(excess[best])))
            so_far = self.likelihood.explain(so_far, picks[-1])
        return tuple(picks)

    def _settle(self, picks: tuple[Pick, ...]) -> Explanation:
        """Return the explanation after every part was taken out once and replaced by the best, or by none."""
        score = self._score(picks)
        for _ in range(_ROUNDS if len(picks) <= _MOST_SETTLED else 0):
            before = score
            for pick in picks:
                tried = self._greedy(tuple(each for each in picks if each.number != pick.number))
                if (better := self._score(tried)) > score + _WORTH:
                    picks, score = tried, better
            if score <= before + _WORTH:
                break
        return Explanation(picks, score)

    def _rivals(self, found: Explanation) -> list[Pick]:
        """Return the parts that explain some of the same wires almost as well, but not just those of one pick."""
        values, excess = self.values(())
        suspects, slow = self.likelihood.suspects, self.likelihood.slow
        taken = {pick.number for pick in found.picks}
        touched = suspects.touched(slow)
        rival = np.zeros(len(values), bool)
        for pick in found.picks[:_MOST_RIVALS]:
            mine = np.zeros(len(slow), bool)
            mine[suspects.members(pick.number)] = True
            shared = suspects.touched(mine & slow)
            differs = (shared < touched[pick.number]) | (touched > shared)
            rival |= (shared > 0) & differs & (values > 0)
        order = np.argsort(-values, kind="stable")
        best = [number for number in order.tolist() if rival[number] and number not in taken][:_MOST_RIVALS]
        return [Pick(number, float(excess[number])) for number in best]

    def _worth(self, so_far: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gains, excess = self.likelihood.gains(so_far)
        worth = np.where(excess > 0, gains + self.price, -np.inf)
        return np.round(worth, 6), excess  # sums in another order must not decide among equals

    def _score(self, picks: Sequence[Pick]) -> float:
        """Return how much likelier the parts make the delays, and that so many are at fault at once."""
        key = frozenset(picks)
        if key not in self._scores:
            so_far, total = self.likelihood.none(), 0.0
            for pick in sorted(picks, key=lambda each: each.number):
                total += self.likelihood.gain(so_far, pick) + float(self.price[pick.number])
                so_far = self.likelihood.explain(so_far, pick)
            self._scores[key] = total
        return self._scores[key]

    def _explained(self, picks: Sequence[Pick]) -> np.ndarray:
        so_far = self.likelihood.none()
        for pick in picks:
            so_far = self.likelihood.explain(so_far, pick)
        return so_far


def _price(part: Part, evidence: Evidence, cables: Cables) -> float:
    both_directions = _BOTH_DIRECTIONS if part.side is None and part.kind in ("nic", "host", "link", "pair") else 0.0
    unknown = _UNKNOWN_NICS if part.kind == "pair" and not part.joins_nics else 0.0
    return PRIORS[part.kind] + both_directions + unknown + cables.log_odds(evidence, part.component, part.side)
