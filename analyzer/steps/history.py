"""The step times of a job so far: their levels, which of them is usual, and how the newest compare with it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analyzer.steps.levels import LevelOptions, Spans, find_spans
from analyzer.windows.window import Window

MOST_STEPS = 2000  # remembered of a running job: a level that has lasted for so long is the usual one by then
ENOUGH_STEPS = 50  # of a first level that are usual whatever follows
FEWEST_USUAL = 5  # steps before a change that are needed to tell what was usual
FIRST_STEPS = 10  # that tell a usual step time well enough to hold a few percent against it
OUTGROWN = 10  # times as long as the first level: what follows such a beginning is the job's own pace
WORTH_SAYING = 1.07  # times the usual step time; less is within what levels differ by themselves
RECENT = 20  # usual steps whose middle is what is usual: drift is followed
LONGER = 200  # usual steps whose middle was usual before
HELD = 0.4  # share of all steps for which a job has held its usual pace, while the first level is all that is known
BACK = 1.04  # times that: a level below it is the old pace, after a fast spell
BEFORE = 40  # steps before a fault whose middle is what was usual
NEWEST = 5  # steps whose middle is the step time now: one of them may be a checkpoint, and two
SETTLING_STEPS = 14  # that a level has to last to be a change of its own: overshoots and ramps are shorter
LASTING_STEPS = 10  # that are no burst, as others have it (Greyhound)
LASTED_STEPS = 8  # the same of a stretch that is over: of ten, two may look usual
COSTLY_STEPS = 10  # that a stretch which is over has lost, before anybody should be woken for it
COSTLY_GOING_ON = 3  # the same for one that goes on: more will follow
OTHER_CHANGE = 1.10  # between two slow levels that lasted: it is another change


@dataclass(frozen=True)
class StepHistory:
    """Steps in order, in parallel arrays, and where their level changed."""

    start_ns: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    length_ns: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    spans: Spans = field(default_factory=list)  # first and last step (excluded) of each level

    def __len__(self) -> int:
        return len(self.start_ns)


def add_steps(
    history: StepHistory,
    start_ns: np.ndarray,
    length_ns: np.ndarray,
    sizes: np.ndarray,
    options: LevelOptions | None = None,
    most_steps: int | None = MOST_STEPS,
) -> StepHistory:
    """Return the history with further steps; all are kept where no number is given."""
    known = length_ns > 0
    kept = slice(None if most_steps is None else -most_steps, None)
    lengths = np.concatenate([history.length_ns, length_ns[known]])[kept]
    return StepHistory(
        start_ns=np.concatenate([history.start_ns, start_ns[known]])[kept],
        length_ns=lengths,
        bytes=np.concatenate([history.bytes, sizes[known]])[kept],
        spans=find_spans(lengths, options) if known.any() else history.spans,
    )


@dataclass(frozen=True, slots=True)
class Level:
    """Steps of about one length."""

    begin: int  # place of its first step
    end: int  # and of the first after it
    step_ns: float
    usual_ns: float  # what is usual at that time
    is_slow: bool

    @property
    def steps(self) -> int:
        return self.end - self.begin

    @property
    def excess(self) -> float:
        """Return how much longer its steps are, as a share of the usual."""
        return self.step_ns / self.usual_ns - 1

    @property
    def lost_steps(self) -> float:
        """Return what it cost, in usual steps."""
        return self.steps * self.excess


def judge_levels(history: StepHistory, worth: float) -> list[Level]:
    """Return all levels in order; slow is what takes `worth` times as long as what was usual before it, or more.

    What is usual drifts: it is the middle of the last steps that were not slow. The first level has none before it,
    and is compared with the pace held for long; a short one that a far longer one follows is how the job began.
    """
    usual: np.ndarray = np.zeros(0)
    levels: list[Level] = []
    for begin, end in history.spans:
        lengths = history.length_ns[begin:end]
        step_ns = float(np.median(lengths))
        usual_ns = float(np.median(usual[-RECENT:]) if len(usual) else np.quantile(history.length_ns, HELD))
        is_back = len(usual) > 0 and step_ns < BACK * np.median(usual)
        is_slow = bool(step_ns >= worth * usual_ns) and not is_back
        levels.append(Level(begin, end, step_ns, usual_ns, is_slow))
        if not is_slow and not (begin == 0 and _is_beginning(history.spans)):
            usual = np.append(usual, lengths)[-LONGER:]
    return levels


def _is_beginning(spans: Spans) -> bool:
    """Return whether the first level is too short to be what is usual."""
    lengths = [end - begin for begin, end in spans]
    if lengths[0] < FEWEST_USUAL:
        return True
    return lengths[0] < ENOUGH_STEPS and len(spans) > 1 and lengths[1] >= OUTGROWN * lengths[0]


def find_slow_levels(history: StepHistory, worth: float) -> list[Level]:
    """Return one level for each change to slower steps: overshoots, ramps and wandering are part of it."""
    changes: list[list[Level]] = []
    for level in (level for level in judge_levels(history, worth) if level.is_slow):
        if changes and _is_same_change(changes[-1][-1], level):
            changes[-1].append(level)
        else:
            changes.append([level])
    return [_join(parts, history) for parts in changes]


def _is_same_change(before: Level, after: Level) -> bool:
    """Return whether a slow level goes on with the one before: one of them did not settle, or they are alike.

    Usual steps between them that are too few to be a level are part of the change.
    """
    if after.begin - before.end >= SETTLING_STEPS:
        return False
    is_alike = 1 / OTHER_CHANGE < after.step_ns / before.step_ns < OTHER_CHANGE
    return is_alike or min(before.steps, after.steps) < SETTLING_STEPS


def _join(parts: Sequence[Level], history: StepHistory) -> Level:
    lengths = np.concatenate([history.length_ns[part.begin : part.end] for part in parts])
    return replace(parts[0], end=parts[-1].end, step_ns=float(np.median(lengths)))


def is_costly(level: Level, is_over: bool) -> bool:
    """Return whether a slow level is worth an alert; one since the first step was never seen to begin."""
    fewest, costly = (LASTED_STEPS, COSTLY_STEPS) if is_over else (LASTING_STEPS, COSTLY_GOING_ON)
    return level.begin > 0 and (level.steps >= fewest or level.lost_steps >= costly)


def is_stale(history: StepHistory, window: Window) -> bool:
    """Return whether no known step ended in a window, which holds three of the usual ones."""
    return not len(history) or int(history.start_ns[-1] + history.length_ns[-1]) < window.start_ns


def find_newest(history: StepHistory) -> float:
    """Return the step time now: the middle of the newest steps of the newest level."""
    begin, end = history.spans[-1]
    return float(np.median(history.length_ns[max(begin, end - NEWEST) : end]))


def find_before(history: StepHistory, since_ns: int | None = None) -> float | None:
    """Return the usual step time before a fault; None while there is nothing to hold its steps against.

    Where a fault is known to have begun, the steps before it are the usual ones: what costs a few percent is no
    change of level, and would be taken for usual itself after a while.
    """
    before: np.ndarray = history.length_ns[history.start_ns < (since_ns or 0)]
    if len(before) >= FIRST_STEPS:
        return float(np.median(before[-BEFORE:]))
    if len(history) < FIRST_STEPS:
        return None
    levels = judge_levels(history, WORTH_SAYING)
    is_known = since_ns is None or len(levels) > 1  # a fault since the first step has no before
    return levels[-1].usual_ns if is_known else None
