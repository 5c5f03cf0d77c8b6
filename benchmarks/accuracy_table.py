"""Figures of many scored runs: precision, recall, false alarms with their bound, calibration, time to detect."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.accuracy_score import Hit, Named, Score

_BINS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95)  # lower ends of confidence; a tenth and less near the top, where it matters
_TAIL = 0.05  # of a one-sided bound that holds in 95 of 100 cases
_S_PER_HOUR = 3_600.0


@dataclass(frozen=True)
class Tally:
    """What a set of runs adds up to."""

    scores: Sequence[Score]

    @property
    def hits(self) -> list[Hit]:
        """Verdicts on parts that did break, late ones included."""
        return [hit for score in self.scores for hit in score.hits]

    @property
    def found(self) -> list[Hit]:
        """Those of them that came in time."""
        return [hit for hit in self.hits if hit.in_time]

    @property
    def faults(self) -> int:
        return sum(len(score.hits) + len(score.missed) for score in self.scores)

    @property
    def wrong(self) -> list[Named]:
        """Verdicts on parts that are well, whether anything else was broken or not."""
        return [named for score in self.scores for named in (*score.wrong, *score.alarms)]

    @property
    def recall(self) -> float:
        return _percent(len(self.found), self.faults)

    @property
    def class_recall(self) -> float:
        return _percent(sum(hit.class_right for hit in self.found), self.faults)

    @property
    def side_right(self) -> float:
        """Of the verdicts on a fault with a side, in percent."""
        judged = [hit.side_right for hit in self.hits if hit.side_right is not None]
        return _percent(sum(judged), len(judged))

    @property
    def precision(self) -> float:
        return _percent(len(self.hits), len(self.hits) + len(self.wrong))

    @property
    def ambiguous(self) -> float:
        """Share of verdicts on a fault that name others as equally likely, in percent."""
        return _percent(sum(bool(hit.named.ambiguous_with) for hit in self.hits), len(self.hits))

    @property
    def alarms(self) -> int:
        return sum(len(score.alarms) for score in self.scores)

    @property
    def healthy_hours(self) -> float:
        return sum(score.healthy_s for score in self.scores) / _S_PER_HOUR

    @property
    def wrong_isolations(self) -> int:
        return sum(len(score.wrong_isolations) for score in self.scores)

    @property
    def isolation_alarms(self) -> int:
        """While nothing was broken."""
        return sum(named.grade == "isolate" for score in self.scores for named in score.alarms)

    def delays_s(self) -> list[float]:
        return sorted(hit.delay_s for hit in self.found)

    def delays_steps(self) -> list[float]:
        """Time to detect in steps of the job before the fault, where their length is known."""
        return sorted(
            hit.delay_s / score.step_s for score in self.scores if score.step_s for hit in score.hits if hit.in_time
        )

    def beside(self) -> str:
        """Return the rest of what is worth knowing of a family, in one line."""
        said = [f"precision {self.precision:.1f} %", f"class {self.class_recall:.0f} %", f"n={len(self.scores)}"]
        if self.delays_s():
            said.append(f"median {median(self.delays_s()):.0f} s{_steps(self.delays_steps())}")
        late = len(self.hits) - len(self.found)
        said += [f"late {late}"] * bool(late) + [f"alarms {self.alarms}"] * bool(self.alarms)
        return ", ".join([*said, *_worst(self.wrong)])


@dataclass(frozen=True, slots=True)
class Bin:
    """Verdicts of about the same confidence."""

    low: float
    high: float
    verdicts: int
    right: int


def calibrate(scores: Iterable[Score]) -> list[Bin]:
    """Return how many verdicts there are of each confidence and how many of them are right in part and class."""
    said = [pair for score in scores for pair in _judged(score)]
    ends = (*_BINS[1:], math.inf)
    inside: Callable[[float, float], list[bool]] = lambda low, high: [  # noqa: E731
        right for confidence, right in said if low <= confidence < high
    ]
    return [
        Bin(low, min(high, 1.0), len(inside(low, high)), sum(inside(low, high)))
        for low, high in zip(_BINS, ends, strict=True)
    ]


def right_at(bins: Iterable[Bin], confidence: float) -> tuple[float, int]:
    """Return the percentage of right verdicts of at least that confidence, and how many there are."""
    chosen = [one for one in bins if one.low >= confidence]
    verdicts = sum(one.verdicts for one in chosen)
    return _percent(sum(one.right for one in chosen), verdicts), verdicts


def upper_bound(events: int) -> float:
    """Return how many events there may be at most in the mean when so many were seen, one-sided, at 95 %.

    The Poisson mean at which seeing so few or fewer has a chance of 5 %; for none that is ln 20, about three.

    >>> round(upper_bound(0), 3), round(upper_bound(2), 3)
    (2.996, 6.296)
    """
    low, high = float(events), events + 10 * math.sqrt(events + 1) + 10
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _chance_of_at_most(events, middle) > _TAIL else (low, middle)
    return high


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of sorted values lies; not a number when there are none."""
    return values[min(int(share * len(values)), len(values) - 1)] if values else math.nan


def _chance_of_at_most(events: int, mean: float) -> float:
    return sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(events + 1))


def _judged(score: Score) -> list[tuple[float, bool]]:
    right = [(hit.named.confidence, hit.class_right) for hit in score.hits]
    return [*right, *((named.confidence, False) for named in (*score.wrong, *score.alarms))]


def _percent(part: float, whole: float) -> float:
    """Return a percentage; of nothing, everything is right."""
    return 100.0 * part / whole if whole else 100.0


def _steps(delays: list[float]) -> str:
    return f" = {median(delays):.1f} steps" if delays else ""


def _worst(wrong: list[Named]) -> list[str]:
    if not wrong:
        return []
    names = sorted({f"{named.component} {named.fault_class}" for named in wrong})
    return [f"wrong {len(wrong)}: {'; '.join(names[:2])}{' …' if len(names) > 2 else ''}"]
