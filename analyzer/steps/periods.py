"""After how many operations a rank begins again: the shortest period of what it does and of when it pauses.

A step repeats the same operations with the same pauses between them. For a lag P, two shares are added: of the
operations that differ from the one P later, and of the time by which the pauses before them differ. At the true
period, and at its multiples, both are noise. The pauses are needed where all operations look alike: four equal
buckets are one step when every fourth has the compute time in front of it.

Candidates are not all lags, but the distances between an operation and its m-th next of the same kind, for the
rarest kinds: an operation that a step does m times comes again after exactly one step.

Cost: O(candidates x operations), at most 6 x 64 candidates. Reference: periods by autocorrelation as in Greyhound
(ATC'25), here over words and pauses instead of rates.
"""

from dataclasses import dataclass, replace

import numpy as np

MOST_PER_STEP = 64  # of one kind; a step that does its rarest operation more often is not found
_RARE_KINDS = 5
_FEWEST_ROUNDS = 3  # twice is chance; a third time is a period
_NEARLY_BEST = 1.5  # a shorter lag is as good up to this factor: noise of the larger one is averaged more
_SLACK = 0.05  # and up to this share: checkpoints every few steps differ by that, and are no longer step
_REGULAR = 0.2  # of a kind may fail to come again: rows get lost, and steps are disturbed
_WORST = 0.45  # more than that different, and there is no period; moe and pipelines with late ranks reach 0.2
_ALIKE = 0.9  # of the operations come again after a period: else nothing can be said of the pauses
_LONG_PAUSE = 1.5  # times the usual long pause: a checkpoint between steps; counted as long, not as that long


@dataclass(frozen=True, slots=True)
class Period:
    """A period in operations, and how much differs from one round to the next."""

    operations: int
    mismatch: float  # share, 0 to 1
    since: int = 0  # place of the first operation that was looked at


def find_period(words: np.ndarray, gap_ns: np.ndarray, span_ns: int) -> Period | None:
    """Return the shortest period of a list of operations; None where nothing repeats three times.

    Two mixes of operations one after the other repeat after the product of their periods: a shorter period of the
    newer half, should it have one, is what holds now.

    >>> words, gaps = np.array([0, 1, 1] * 5), np.array([900, 0, 0] * 5)
    >>> find_period(words, gaps, 5000)
    Period(operations=3, mismatch=0.0, since=0)
    """
    whole = _find_shortest(words, gap_ns, span_ns)
    half = len(words) // 2
    if whole and half < _FEWEST_ROUNDS * whole.operations:
        return whole
    newer = _find_shortest(words[half:], gap_ns[half:], span_ns // 2) if half else None
    if newer is None:
        return whole
    is_better = whole is None or newer.mismatch <= _NEARLY_BEST * whole.mismatch + _SLACK
    return replace(newer, since=half) if is_better else whole


def _find_shortest(words: np.ndarray, gap_ns: np.ndarray, span_ns: int) -> Period | None:
    pauses = _without_outliers(gap_ns)
    usual = _find_usual(pauses, gap_ns, span_ns)
    lags = [lag for lag in _candidates(words) if lag * _FEWEST_ROUNDS <= len(words)]
    missing = _measure_rare(words, lags)
    found = [Period(lag, measure(words, pauses, usual, lag) + missing[lag]) for lag in lags]
    best = min((period.mismatch for period in found), default=1.0)
    if best > _WORST:
        return None
    return min(
        (period for period in found if period.mismatch <= _NEARLY_BEST * best + _SLACK),
        key=lambda period: period.operations,
    )


def measure(words: np.ndarray, pauses: np.ndarray, usual_ns: float, lag: int) -> float:
    """Return which share of operations and time differs from what comes `lag` operations later."""
    pairs = len(words) - lag
    other = float(np.count_nonzero(words[lag:] != words[:-lag])) / pairs
    # The first pause of all is unknown, not zero.
    apart = float(np.abs(pauses[lag + 1 :] - pauses[1:-lag]).sum()) / max(pairs - 1, 1)
    return other + apart / usual_ns


def still_holds(words: np.ndarray, gap_ns: np.ndarray, span_ns: int, lag: int) -> bool:
    """Return whether pauses come again after `lag` operations, where the operations do.

    A period that was found in the burst of one step, in which all operations look alike, has no pauses: the next
    step begins with one. Where the operations themselves differ, the job does something else, and that tells nothing.
    """
    if len(words) < _FEWEST_ROUNDS * lag + 1:
        return True
    pauses = _without_outliers(gap_ns)
    is_same = words[lag:] == words[:-lag]
    if is_same.mean() < _ALIKE:
        return True
    apart = np.abs(pauses[lag + 1 :] - pauses[1:-lag])[is_same[1:]]
    return float(apart.mean()) <= _WORST * _find_usual(pauses, gap_ns, span_ns)


def _measure_rare(words: np.ndarray, lags: list[int]) -> dict[int, float]:
    """Return for each lag the largest share of a rare kind of operation that does not come again after it.

    Layers repeat many times in a step, and what a step does once is lost among them; but without it, it is no step.
    Kinds that come again after no lag at all are something else: sizes that differ, an evaluation.
    """
    kinds, counts = np.unique(words, return_counts=True)
    rare = kinds[np.argsort(counts, kind="stable")][np.sort(counts) >= _FEWEST_ROUNDS][:_RARE_KINDS]
    worst = dict.fromkeys(lags, 0.0)
    for kind in rare:
        places = words == kind
        gone = {lag: 1 - np.count_nonzero(places[lag:] & places[:-lag]) / max(places[:-lag].sum(), 1) for lag in lags}
        if min(gone.values(), default=1.0) <= _REGULAR:
            worst = {lag: max(worst[lag], float(gone[lag])) for lag in lags}
    return worst


def _find_usual(pauses: np.ndarray, gap_ns: np.ndarray, span_ns: int) -> float:
    """Return the time from one operation to the next, the longest pauses shortened."""
    return float(max(span_ns - int((gap_ns - pauses).sum()), 1)) / max(len(pauses), 1)


def _without_outliers(gap_ns: np.ndarray) -> np.ndarray:
    """Return the pauses with single very long ones shortened: a checkpoint must not outweigh all steps."""
    if len(gap_ns) < 4:
        return gap_ns.astype(np.float64)
    ordered = np.sort(gap_ns)[::-1]
    rest = ordered[max(1, len(ordered) // 200) :]  # one in two hundred may be anything
    weight = np.cumsum(rest)
    usual_long = rest[int(np.searchsorted(weight, weight[-1] / 2))]  # half of the paused time is in longer ones
    shortened: np.ndarray = np.minimum(gap_ns, max(_LONG_PAUSE * usual_long, 1.0)).astype(np.float64)
    return shortened


def _candidates(words: np.ndarray) -> list[int]:
    kinds, counts = np.unique(words, return_counts=True)
    order = np.argsort(counts, kind="stable")
    often = order[counts[order] >= _FEWEST_ROUNDS]
    lags: set[int] = set()
    for kind in {*often[:_RARE_KINDS].tolist(), *often[-1:].tolist()}:
        places = np.flatnonzero(words == kinds[kind])
        for nth in range(1, min(MOST_PER_STEP, len(places) - 2) + 1):
            lags.add(int(np.median(places[nth:] - places[:-nth])))
    return sorted(lags - {0})
