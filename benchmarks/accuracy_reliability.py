"""Whether confidence is to be believed: of verdicts that were so sure, how many are right, in all and by class."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.accuracy_score import Named, Score
from benchmarks.figures import Figure

_BINS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95)  # lower ends of confidence; a tenth and less near the top, where it matters
_SURE = 0.9
_BAR = 20  # characters
_Z = 1.959964  # of a normal distribution: 95 % lie within


def percent(part: float, whole: float) -> float:
    """Return a percentage; of nothing, everything is right."""
    return 100.0 * part / whole if whole else 100.0


def interval(part: int, whole: int) -> tuple[float, float]:
    """Return the bounds of a share that was seen in so many cases, at 95 % (Wilson 1927).

    >>> [round(bound, 3) for bound in interval(9, 10)]
    [0.596, 0.982]
    """
    if not whole:
        return 0.0, 1.0
    share, square = part / whole, _Z * _Z / whole
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square * square / 4) / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)


@dataclass(frozen=True, slots=True)
class Bin:
    """Verdicts of about the same confidence."""

    low: float
    high: float
    verdicts: int
    right: int


def calibrate(scores: Iterable[Score]) -> list[Bin]:
    """Return how many verdicts there are of each confidence and how many of them are right in part and class."""
    return _fill_bins([(named.confidence, is_right) for named, is_right in _judged(scores)])


def _fill_bins(judged: Sequence[tuple[float, bool]]) -> list[Bin]:
    bins = []
    for low, high in zip(_BINS, (*_BINS[1:], math.inf), strict=True):
        inside = [right for confidence, right in judged if low <= confidence < high]
        bins.append(Bin(low, min(high, 1.0), len(inside), sum(inside)))
    return bins


def _judged(scores: Iterable[Score]) -> list[tuple[Named, bool]]:
    """Return every verdict and whether it is right in part and class."""
    judged: list[tuple[Named, bool]] = []
    for score in scores:
        judged += [(hit.named, hit.class_right) for hit in score.hits]
        judged += [(named, False) for named in (*score.wrong, *score.alarms)]
    return judged


def right_at(bins: Iterable[Bin], confidence: float) -> tuple[float, int]:
    """Return the percentage of right verdicts of at least that confidence, and how many there are."""
    chosen = [one for one in bins if one.low >= confidence]
    verdicts = sum(one.verdicts for one in chosen)
    return percent(sum(one.right for one in chosen), verdicts), verdicts


def show_reliability(scores: Sequence[Score]) -> Iterator[Figure]:
    """Yield a reliability diagram of all verdicts, and one of each class: a line per bin of confidence."""
    judged = _judged(scores)
    share, verdicts = right_at(calibrate(scores), _SURE)
    if verdicts:
        yield Figure(f"right of those at {_SURE} and above", share, "%", 90, 99, True, f"{verdicts} verdicts")
    yield from _diagram("all classes", judged)
    for name in sorted({named.fault_class for named, _ in judged}):
        yield from _diagram(name, [(named, is_right) for named, is_right in judged if named.fault_class == name])


def _diagram(name: str, judged: Sequence[tuple[Named, bool]]) -> Iterator[Figure]:
    told = [(named.confidence, is_right) for named, is_right in judged]
    if not told:
        return
    said = sum(confidence for confidence, _ in told) / len(told)
    beside = f"{len(told)} verdicts, which said {100 * said:.0f} % in the mean"
    yield Figure(f"reliability: {name}", percent(sum(right for _, right in told), len(told)), "%", reference=beside)
    for one in _fill_bins(told):
        if one.verdicts:
            low, high = (100 * bound for bound in interval(one.right, one.verdicts))
            share = one.right / one.verdicts
            beside = f"|{'#' * round(_BAR * share):{_BAR}}| {one.right} of {one.verdicts}"
            beside = f"{beside}, 95 % interval {low:.0f} to {high:.0f}"
            yield Figure(f"  {name} at {one.low:.2f} to {one.high:.2f}", 100 * share, "%", reference=beside)
