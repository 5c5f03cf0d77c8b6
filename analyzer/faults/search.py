"""Which parts together explain the slow wires best.

The part with the largest gain is taken, its wires are explained, and the rest is asked again, until nothing makes the
delays likelier than a fault is rare. Then each part is taken out and the best one put in its place, for as long as
that helps; and the search begins again with the parts that had almost been taken first, because the largest is not
always right: between two slow NICs of a ring there may be a healthy one whose wires are all slow.

Cost: O(entries of suspects) per part tried. Reference: maximum likelihood over fault sets, greedy with joint updates,
as in Flock (CoNEXT'23).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.faults.cables import Cables
from analyzer.faults.likelihood import Likelihood, Pick
from analyzer.faults.parts import Kind, Part
from analyzer.signs.signs import Signs
from lockstep.verdict import Side

# How rare faults are, as the logarithm of odds. One NIC of a thousand is in trouble at any time; a fault of a link in
# the fabric, a GPU's own connections or a whole host is rarer, that of a switch rarer still: where the data does not
# decide, the lowest part is named, and central ones, which can explain anything, are not.
PRIORS: dict[Kind, float] = {
    "wire": -7.0,
    "nic": -7.0,
    "link": -8.0,
    "pcie": -9.0,
    "nvlink": -8.0,
    "host": -8.0,
    "switch": -9.5,
}
_UNKNOWN_NICS = -2.0  # a wire between hosts names nothing that could be looked at; the host does
_BOTH_WAYS = -0.5  # one direction is the simpler story
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
    """Looks for explanations among suspects; `price` is what each part costs to blame, signs included."""

    def __init__(self, likelihood: Likelihood, signs: Signs, cables: Cables) -> None:
        self.likelihood, self._signs = likelihood, signs
        self.price = np.array([_price(part, signs, cables) for part in likelihood.suspects.parts])

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

    def prefers_cable(self, nic: Part, cable: tuple[str, Side | None]) -> bool:
        """Return whether signs speak for the cable rather than for the NIC it is in."""
        return self._signs.llr(*cable) > self._signs.llr(nic.component, nic.side) + _CLEARLY

    def _greedy(self, start: tuple[Pick, ...], most: int = _MOST_FAULTS) -> tuple[Pick, ...]:
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
        suspects, hot = self.likelihood.suspects, self.likelihood.hot
        taken = {pick.number for pick in found.picks}
        slow = suspects.touched(hot)
        rival = np.zeros(len(values), bool)
        for pick in found.picks[:_MOST_RIVALS]:
            mine = np.zeros(len(hot), bool)
            mine[suspects.members(pick.number)] = True
            shared = suspects.touched(mine & hot)
            differs = (shared < slow[pick.number]) | (slow > shared)
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
        so_far, total = self.likelihood.none(), 0.0
        for pick in sorted(picks, key=lambda each: each.number):
            total += self.likelihood.gain(so_far, pick) + float(self.price[pick.number])
            so_far = self.likelihood.explain(so_far, pick)
        return total

    def _explained(self, picks: Sequence[Pick]) -> np.ndarray:
        so_far = self.likelihood.none()
        for pick in picks:
            so_far = self.likelihood.explain(so_far, pick)
        return so_far


def _price(part: Part, signs: Signs, cables: Cables) -> float:
    both_ways = _BOTH_WAYS if part.side is None and part.kind in ("nic", "host", "link") else 0.0
    unknown = _UNKNOWN_NICS if part.kind == "wire" and not part.joins_nics else 0.0
    return PRIORS[part.kind] + both_ways + unknown + cables.llr(signs, part.component, part.side)
