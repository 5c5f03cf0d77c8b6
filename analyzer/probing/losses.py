"""Which links and switches lose probes: the likeliest set, given how many were lost on each flow.

A probe survives a link that loses a share p with probability 1 - p, so the logarithms add up along a route: with
r = -log(1 - p) for each part at fault and r0 for everything else, a flow of R = r0 + sum of r has the log-likelihood

    - (sent - lost) R  +  lost log(1 - exp(-R))

The first term is linear, so flows that lost nothing count as one number per part; only the others are looked at one
by one. The part with the largest gain is taken at the rate that fits it best, then all rates are fitted together, and
the rest is asked again; at the end, each part must still be worth its price beside all others, or it goes.

Cost: O(entries of flows that lost something) per part and rate tried. Reference: Flock (CoNEXT'23), whose joint
likelihood over fault sets this is, with a rate of its own for each part.
"""

from dataclasses import dataclass

import numpy as np

MOST_PARTS = 64  # bounds the time; more links at fault at once is a fabric in ruins
_RATES = np.geomspace(1e-4, 8.0, 24)  # tried for each part; from one in ten thousand to everything
_LEAST_RATE = 1e-9  # of what is lost everywhere: no probe was lost yet does not mean that none will be
_FITS = 30  # rounds of fitting all rates; they settle in a dozen


@dataclass(frozen=True)
class Incidence:
    """Which flows cross which parts, an entry each."""

    parts: int
    part: np.ndarray
    flow: np.ndarray
    share: np.ndarray


@dataclass(frozen=True, slots=True)
class Lossy:
    """A part that loses probes."""

    part: int
    rate: float  # -log(1 - share lost)
    gain: float  # by how much it makes the losses likelier beside all others, its price deducted
    rivals: dict[int, float]  # what other parts would gain in its place, where that comes close


class Losses:
    """Weighs parts by what was lost on the flows across them."""

    def __init__(self, crossed: Incidence, sent: np.ndarray, lost: np.ndarray, price: np.ndarray) -> None:
        self._price = price
        survived = sent - lost
        self._survived = np.bincount(
            crossed.part, weights=crossed.share * survived[crossed.flow], minlength=crossed.parts
        )
        self._all_survived = float(survived.sum())
        troubled = np.flatnonzero(lost > 0)
        self._lost = lost[troubled]
        number = np.full(len(lost), -1)
        number[troubled] = np.arange(len(troubled))
        kept = np.flatnonzero(number[crossed.flow] >= 0)
        kept = kept[np.argsort(crossed.part[kept], kind="stable")]
        self._part, self._share = crossed.part[kept], crossed.share[kept]
        self._flow = number[crossed.flow[kept]]
        self._bounds = np.searchsorted(self._part, np.arange(crossed.parts + 1))

    def find(self, least_rate: float) -> list[Lossy]:
        """Return the parts that lose more than that, the weightiest first."""
        rates: dict[int, float] = {}
        everywhere = self._fit(rates)
        while len(rates) < MOST_PARTS:
            worth, best_rate = self._worth(self._along(rates, everywhere))
            worth[list(rates)] = -np.inf
            best = int(worth.argmax())
            if worth[best] <= 0:
                break
            rates[best] = float(best_rate[best])
            everywhere = self._fit(rates)
        kept = self._settle(rates)
        found = [self._judge(part, kept) for part in kept if kept[part] >= least_rate]
        return sorted(found, key=lambda each: -each.gain)

    def _settle(self, rates: dict[int, float]) -> dict[int, float]:
        """Return the parts that are each worth their price beside the others, or what is better in their place."""
        for part in list(rates):
            others = {each: rate for each, rate in rates.items() if each != part}
            everywhere = self._fit(others)
            worth, best_rate = self._worth(self._along(others, everywhere))
            best = int(worth.argmax())
            if worth[best] <= 0:
                rates = others
            elif best != part and best not in others and worth[best] > worth[part]:
                rates = {**others, best: float(best_rate[best])}
        self._fit(rates)
        return rates

    def _judge(self, part: int, rates: dict[int, float]) -> Lossy:
        """Return a part with its rivals: as good in its place, and of no more use beside it."""
        others = {each: rate for each, rate in rates.items() if each != part}
        without, _ = self._worth(self._along(others, self._fit(others)))
        beside, _ = self._worth(self._along(rates, self._fit(rates)))
        is_close = without > without[part] - np.log(10.0)
        is_same = beside + self._price < 0.5 * (without + self._price)
        rivals = {each: float(without[each]) for each in np.flatnonzero(is_close & is_same).tolist()}
        return Lossy(part, rates[part], float(without[part]), {n: v for n, v in rivals.items() if n not in rates})

    def _worth(self, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what each part is worth at the rate that fits it best, and that rate."""
        gains = np.array([self._gain(along, rate) for rate in _RATES])
        best = gains.argmax(axis=0)
        return gains[best, np.arange(gains.shape[1])] - self._price, _RATES[best]

    def _gain(self, along: np.ndarray, rate: float) -> np.ndarray:
        """Return by how much each part at this rate would make the losses likelier (logarithm)."""
        before = along[self._flow]
        change = self._lost[self._flow] * (_log_lost(before + self._share * rate) - _log_lost(before))
        return np.bincount(self._part, weights=change, minlength=len(self._price)) - self._survived * rate

    def _along(self, rates: dict[int, float], everywhere: float) -> np.ndarray:
        """Return the rate along each flow that lost something."""
        along = np.full(len(self._lost), everywhere)
        for part, rate in rates.items():
            mine = slice(self._bounds[part], self._bounds[part + 1])
            np.add.at(along, self._flow[mine], self._share[mine] * rate)
        return along

    def _fit(self, rates: dict[int, float]) -> float:
        """Fit the rates of all parts in place, and return that of everything else.

        Each round multiplies a rate by what was lost over what it would lose, which never makes the fit worse.
        """
        everywhere = max(float(self._lost.sum()) / max(self._all_survived, 1.0) / 2, _LEAST_RATE)
        for _ in range(_FITS):
            along = self._along(rates, everywhere)
            pull = self._lost / np.expm1(along)
            everywhere = max(everywhere * float(pull.sum()) / max(self._all_survived, 1.0), _LEAST_RATE)
            for part in rates:
                mine = slice(self._bounds[part], self._bounds[part + 1])
                mean = float((self._share[mine] * pull[self._flow[mine]]).sum()) / max(self._survived[part], 1e-3)
                rates[part] = min(max(rates[part] * mean, _LEAST_RATE), float(_RATES[-1]))
        return everywhere


def _log_lost(along: np.ndarray) -> np.ndarray:
    logarithm: np.ndarray = np.log(-np.expm1(-along))
    return logarithm
