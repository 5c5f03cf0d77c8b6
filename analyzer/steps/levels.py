"""Where step times changed for good: the levels of a series that explain it with the fewest changes.

Step times are heavy-tailed: checkpoints, garbage collection and unlucky steps are several times as long and mean
nothing. A change of level is different in one way only: it stays. So a step costs half its squared distance from its
level, in deviations of this job, but never more than an outlier does, and each change of level costs as much as about
three outliers. The cheapest sequence of levels is found exactly, by dynamic programming over levels 2 % apart: a
stretch of outliers becomes a level of its own once it is long enough to pay for two changes (six steps), or for one
where the series ends in it (three steps).

Cost: O(steps x levels) in arrays, and a loop over candidates where a step differs from the one before; 1 ms for 1,000
quiet steps. Reference: Fearnhead and Rigaill, Changepoint detection in the presence of outliers (JASA 2019): the
bounded loss; Viterbi over a grid of levels instead of their functional pruning.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Spans = list[tuple[int, int]]

NORMAL = 1.4826  # deviations in a median distance, were the noise normal
UPPER = 0.7  # share of steps that outliers leave alone; where more are off, the job has two kinds of steps
NORMAL_UPPER = 0.9648  # deviations in the distance below which that share is
TWO_KINDS = 2.0  # times as noisy as the middle says: too much for one kind of steps with outliers
CAUTION = 5  # steps whose worth of doubt is added to the noise: half as much again for the first ten
AROUND = 21  # steps around one whose median it is compared with to learn the noise: drift is none
SUPPORT = 5  # steps of which a level explains most: the range of levels is that of medians of so many
MOST_CELLS = 50_000_000  # steps times levels: 400 MB
FEWEST_LEVELS = 16
EVERY = 16  # steps after which a change is tried also where nothing jumps: drift


@dataclass(frozen=True, slots=True)
class LevelOptions:
    """When a change is one."""

    grain: float = 0.02  # of the step time between two levels: changes of 7 % are what matters
    least_noise: float = 0.02  # of the step time: levels of quieter jobs still wander by as much
    outlier: float = 3.3  # deviations: what is further off costs no more
    change: float = 15.0  # what a change costs: three outliers in a row pay for it, two never


def find_spans(length: np.ndarray, options: LevelOptions | None = None) -> Spans:
    """Return first and last step (excluded) of each level.

    >>> find_spans(np.repeat([1.0, 1.5, 1.0], [20, 10, 20]))
    [(0, 20), (20, 30), (30, 50)]
    """
    if not len(length):
        return []
    options = options or LevelOptions()
    value = np.log(length.astype(np.float64))
    around = np.median(_windows(value, min(AROUND, max(len(value) // 3, 1))), axis=1)
    first = _trace(value, _deviation(value - around, options), options)
    # Levels that are known tell the noise better than neighbours do, of which some are of another level.
    return _trace(value, measure_noise(value, first, options), options)


def find_centres(value: np.ndarray, spans: Spans) -> np.ndarray:
    """Return the median of its level for each value."""
    return np.concatenate([np.full(end - begin, np.median(value[begin:end])) for begin, end in spans])


def measure_noise(value: np.ndarray, spans: Spans, options: LevelOptions) -> float:
    """Return how far steps usually are from their level; some jobs have two kinds of steps, and no outliers."""
    off = value - find_centres(value, spans)
    upper = NORMAL_UPPER * float(np.quantile(np.abs(off), UPPER))
    middle = _deviation(off, options)
    return upper if upper > TWO_KINDS * middle else middle


def _deviation(off: np.ndarray, options: LevelOptions) -> float:
    """Return the deviation behind the median distance; few distances count for more than they show."""
    return max(NORMAL * float(np.median(np.abs(off))) * (1 + CAUTION / len(off)), options.least_noise)


def _windows(value: np.ndarray, steps: int) -> np.ndarray:
    """Return the values around each, as a row; at the ends they are mirrored."""
    half = steps // 2
    windows: np.ndarray = np.lib.stride_tricks.sliding_window_view(np.pad(value, half, "reflect"), 2 * half + 1)
    return windows


def _trace(value: np.ndarray, noise: float, options: LevelOptions) -> Spans:
    """Return the levels of the cheapest way through the series."""
    grid = _list_levels(np.median(_windows(value, min(SUPPORT, len(value))), axis=1), options.grain)
    jumps = np.abs(np.diff(value, prepend=value[0])) > noise / 2
    jumps[::EVERY] = True
    candidates = np.flatnonzero(jumps)
    loss = np.minimum((value[:, None] - grid) ** 2 / (2 * noise**2), options.outlier**2 / 2)
    levels = _find_cheapest(np.add.reduceat(loss, candidates, axis=0), options.change)
    borders = candidates[np.flatnonzero(np.diff(levels, prepend=-1))]
    return list(pairwise([*borders.tolist(), len(value)]))


def _list_levels(middle: np.ndarray, grain: float) -> np.ndarray:
    """Return the levels to try; fewer and further apart for a long series that goes through many.

    >>> [len(_list_levels(np.array([0.0, top]), grain=0.02)) for top in (0.1, 1.0)]
    [6, 51]
    >>> len(_list_levels(np.linspace(-20.0, 20.0, 2_000_000), grain=0.02))
    25
    """
    span, most = float(np.ptp(middle)), max(MOST_CELLS // len(middle), FEWEST_LEVELS)
    return np.linspace(middle.min(), middle.max(), min(int(np.ceil(span / grain)) + 1, most))


def _find_cheapest(loss: np.ndarray, change: float) -> np.ndarray:
    """Return the level at each index, of those that are the columns of the loss."""
    total = loss[0]
    came_from, switched = np.zeros(len(loss), np.int64), np.zeros(loss.shape, bool)
    for index in range(1, len(loss)):
        came_from[index] = total.argmin()
        least = total[came_from[index]] + change
        switched[index] = total > least
        total = np.minimum(total, least) + loss[index]
    levels = np.full(len(loss), int(total.argmin()))
    for index in range(len(loss) - 1, 0, -1):
        level = levels[index]
        levels[index - 1] = came_from[index] if switched[index, level] else level
    return levels
