"""How likely the delays of all wires are, given which parts are how slow.

A wire's excess is the logarithm of its delay over what is normal. A part that is slow by a factor slows all wires
through it about alike, and a wire through several of them by the slowest. So, with `e` the excess of a wire, `t` that
of the slowest part on its way and N the normal density:

    slow wire, no fault on its way     FALSE_ALARM * U
    slow wire through a fault          (1 - MISS) * N(e; t, tau) + MISS * U
    normal wire through a fault        MISS + (1 - MISS) * exp(-(e - t)^2 / 2 tau^2), against 1 without the fault

A normal wire never speaks for a fault: it is at most neutral, when its part is hardly slower than it is. Where a wire
runs through a part with a probability only, the likelihood is the mixture of both cases.
"""

import math
from dataclasses import dataclass

import numpy as np

from analyzer.faults.parts import Suspects

MISS_UNSEEN = (
    0.25  # likewise, of a wire that shows no delay at all: a socket's buffer hides what a slow part does to it
)
MISS = 0.05  # a wire through a slow part that looks normal or otherwise slow: short transfers, another way
FALSE_ALARM = 1e-4  # a slow wire without a fault; generous next to the many sigmas it has to pass
_U = 0.25  # density of an excess of which nothing is known: up to e^4, fifty times as slow
_UNEVEN = 0.35  # wires through one part differ by so much of its excess: they share it with others, or not
_MOST = 50.0  # of a logarithm, so that no exponential overflows
_LEAST_SPREAD = 0.05  # of wires through a part that is slow by a little


@dataclass(frozen=True, slots=True)
class Pick:
    """A part that is taken to be at fault, and how slow it makes its wires (logarithm of a factor)."""

    number: int
    excess: float


class Likelihood:
    """Weighs parts by the wires that run through them, in the light of those that are at fault already.

    What explains each wire so far is an array of excesses, 0 where nothing does; `explained_by` makes it.
    """

    def __init__(self, suspects: Suspects, excess: np.ndarray, hot: np.ndarray, unseen: np.ndarray) -> None:
        self.suspects, self.hot = suspects, hot
        self._miss = np.where(unseen, MISS_UNSEEN, MISS)  # by wire
        self._excess = np.clip(excess, 0.0, 1 / _U)
        slow = np.flatnonzero(hot[suspects.wire])
        order = np.lexsort((self._excess[suspects.wire[slow]], suspects.part[slow]))
        self._slow_entries = slow[order]  # of slow wires, by part and then by excess: medians are read off

    def none(self) -> np.ndarray:
        return np.zeros(len(self.hot))

    def gains(self, so_far: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much each part would make the delays likelier (logarithm), and with which excess."""
        excess = self._fit(so_far)
        change = self._change(so_far, excess[self.suspects.part], slice(None))
        return np.bincount(self.suspects.part, weights=change, minlength=len(self.suspects.parts)), excess

    def gain(self, so_far: np.ndarray, pick: Pick) -> float:
        """Return by how much one part makes the delays likelier (logarithm)."""
        return float(self._change(so_far, np.array(pick.excess), self.suspects.entries(pick.number)).sum())

    def explain(self, so_far: np.ndarray, pick: Pick) -> np.ndarray:
        """Return what explains each wire once a part is at fault, too."""
        entries = self.suspects.entries(pick.number)
        wires, share = self.suspects.wire[entries], self.suspects.share[entries]
        raised = np.maximum(so_far[wires], pick.excess)
        change = self._log(wires, raised) - self._log(wires, so_far[wires])
        with np.errstate(divide="ignore"):  # a share of 1 is certain: its odds are infinite
            is_through = np.log(share) - np.log1p(-share) + change > 0
        after = so_far.copy()
        after[wires[is_through | (share == 1)]] = raised[is_through | (share == 1)]
        return after

    def unexplained(self, so_far: np.ndarray) -> np.ndarray:
        """Return which slow wires are slower than what explains them so far."""
        missing: np.ndarray = self.hot & (self._excess - so_far > 2 * _spread(so_far))
        return missing

    def _change(self, so_far: np.ndarray, excess: np.ndarray, entries: slice) -> np.ndarray:
        """Return by how much each entry's wire would be likelier, were its part as slow as that."""
        wires, share = self.suspects.wire[entries], self.suspects.share[entries]
        raised = np.maximum(so_far[wires], excess)
        change = np.clip(self._log(wires, raised) - self._log(wires, so_far[wires]), -_MOST, _MOST)
        mixed: np.ndarray = np.log1p(share * np.expm1(change))
        return mixed

    def _fit(self, so_far: np.ndarray) -> np.ndarray:
        """Return the excess of each part that fits its slow wires best: the median of those not yet explained."""
        entries = self._slow_entries[self.unexplained(so_far)[self.suspects.wire[self._slow_entries]]]
        count = np.bincount(self.suspects.part[entries], minlength=len(self.suspects.parts))
        middle = np.cumsum(count) - count + np.maximum(count - 1, 0) // 2
        values = np.append(self._excess[self.suspects.wire[entries]], 0.0)
        return np.where(count > 0, values[np.minimum(middle, len(entries))], 0.0)

    def _log(self, wires: np.ndarray, given: np.ndarray) -> np.ndarray:
        """Return the logarithm of the likelihood of some wires, each given what slows it; 0: nothing."""
        spread = _spread(given)
        near = np.exp(-0.5 * ((self._excess[wires] - given) / spread) ** 2)
        slow = np.log((1 - MISS) * near / (spread * math.sqrt(2 * math.pi)) + MISS * _U)
        normal = np.log(self._miss[wires] + (1 - self._miss[wires]) * near)
        faulty = np.where(self.hot[wires], slow, normal)
        sound = np.where(self.hot[wires], math.log(FALSE_ALARM * _U), 0.0)
        return np.where(given > 0, faulty, sound)


def _spread(excess: np.ndarray) -> np.ndarray:
    spread: np.ndarray = np.maximum(_UNEVEN * excess, _LEAST_SPREAD)
    return spread
