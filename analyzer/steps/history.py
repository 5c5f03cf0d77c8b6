"""The step times of a job so far: their levels, which of them is usual, and how the newest compare with it."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from analyzer.steps.clock import FIRST_STEPS, LEVEL_STEPS, ClockOptions, StepClock

MOST_STEPS = 2000  # that are remembered: a level that has lasted for so long is the usual one by then
LASTING = 0.15  # of all steps: a level that was held for shorter is nobody's usual
LASTING_STEPS = 50  # that are enough however many there are
WORTH_SAYING = 1.07  # times the usual step time; less is within what levels differ by themselves
BEFORE = 40  # steps before a fault whose middle is what was usual
NEWEST = 5  # steps whose middle is the step time now: one of them may be a checkpoint, and two

Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class StepHistory:
    """Steps in order, in parallel arrays, and where their level changed."""

    start_ns: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    length_ns: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    borders: tuple[int, ...] = ()  # first steps of levels, without the first level
    clock: StepClock | None = None  # never changed in place: a look may be judged again

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def spans(self) -> Spans:
        """Return first and last step (excluded) of each level."""
        borders = [0, *self.borders, len(self)]
        return [(begin, end) for begin, end in pairwise(borders) if end > begin]


def hear_steps(
    history: StepHistory, start_ns: np.ndarray, length_ns: np.ndarray, sizes: np.ndarray, options: ClockOptions
) -> StepHistory:
    """Return the history with further steps."""
    clock = history.clock.copy() if history.clock else StepClock(options)
    # The clock counts what it was given in all; the arrays begin where older steps were forgotten.
    shift = len(history) - clock.steps
    heard = [clock.hear(length) for length in length_ns.astype(np.float64).tolist()]
    borders = [*history.borders, *(change.step + shift for change in heard if change)]
    known = length_ns > 0
    forgotten = max(len(history) + int(known.sum()) - MOST_STEPS, 0)
    return StepHistory(
        start_ns=np.concatenate([history.start_ns, start_ns[known]])[forgotten:],
        length_ns=np.concatenate([history.length_ns, length_ns[known]])[forgotten:],
        bytes=np.concatenate([history.bytes, sizes[known]])[forgotten:],
        borders=tuple(border - forgotten for border in borders if border > forgotten),
        clock=clock,
    )


def find_usual(spans: Spans, length_ns: np.ndarray) -> float | None:
    """Return the usual step time: the lowest level that lasted; None while none has."""
    lasting = max(FIRST_STEPS, min(LASTING * len(length_ns), LASTING_STEPS))
    held = [float(np.median(length_ns[begin:end])) for begin, end in spans if end - begin >= lasting]
    return min(held, default=None)


@dataclass(frozen=True, slots=True)
class Level:
    """Steps of about one length."""

    begin: int  # place of its first step
    end: int  # and of the first after it
    step_ns: float
    usual_ns: float  # what is usual at that time
    is_slow: bool


def judge_levels(history: StepHistory, worth: float) -> list[Level]:
    """Return all levels in order; slow is what takes `worth` times as long as what was usual before it, or more.

    What is usual drifts: a level that is not slow is what the next one is compared with. The first one has none
    before it, and is compared with the lowest that lasted.
    """
    usual = find_usual(history.spans, history.length_ns)
    levels: list[Level] = []
    for begin, end in history.spans if usual else ():
        step_ns = float(np.median(history.length_ns[begin:end]))
        is_slow = step_ns >= worth * (usual or 0.0)
        levels.append(Level(begin, end, step_ns, usual or 0.0, is_slow))
        if not is_slow:
            usual = float(np.median(history.length_ns[max(begin, end - LEVEL_STEPS) : end]))
    return levels


def find_newest(history: StepHistory) -> float:
    """Return the step time now: the middle of the newest steps of the newest level."""
    begin, end = history.spans[-1]
    return float(np.median(history.length_ns[max(begin, end - NEWEST) : end]))


def step_time_ratio(history: StepHistory, since_ns: int | None = None) -> float | None:
    """Return the step time now over the usual one; None while there is nothing to hold it against.

    Where a fault is known to have begun, the steps before it are the usual ones: what costs a few percent is no
    change of level, and would be taken for usual itself after a while.
    """
    before: np.ndarray = history.length_ns[history.start_ns < (since_ns or 0)]
    if len(before) >= FIRST_STEPS:
        return find_newest(history) / float(np.median(before[-BEFORE:]))
    levels = judge_levels(history, WORTH_SAYING)
    is_known = bool(levels) and (since_ns is None or len(levels) > 1)  # a fault since the first step has no before
    return find_newest(history) / levels[-1].usual_ns if is_known else None
