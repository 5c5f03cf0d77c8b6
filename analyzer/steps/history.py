"""The step times of a job so far: their levels, which of them is usual, and how the newest compare with it."""

from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.steps.clock import FIRST_STEPS, LEVEL_STEPS, ClockOptions, StepClock
from analyzer.windows.window import Finding
from lockstep.clock import NS_PER_S

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
    clock: StepClock | None = None  # never changed in place: an evaluation may be judged again

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def spans(self) -> Spans:
        """Return first and last step (excluded) of each level."""
        borders = [0, *self.borders, len(self)]
        return [(begin, end) for begin, end in pairwise(borders) if end > begin]


def add_steps(
    history: StepHistory, start_ns: np.ndarray, length_ns: np.ndarray, sizes: np.ndarray, options: ClockOptions
) -> StepHistory:
    """Return the history with further steps."""
    clock = deepcopy(history.clock) if history.clock else StepClock(options)
    # The clock counts what it was given in all; the arrays begin where older steps were forgotten.
    shift = len(history) - clock.steps
    present = [clock.observe(length) for length in length_ns.astype(np.float64).tolist()]
    borders = [*history.borders, *(change.step + shift for change in present if change)]
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


def find_before(history: StepHistory, since_ns: int | None = None) -> float | None:
    """Return the usual step time before a fault; None while there is nothing to hold its steps against.

    Where a fault is known to have begun, the steps before it are the usual ones: what costs a few percent is no
    change of level, and would be taken for usual itself after a while.
    """
    before: np.ndarray = history.length_ns[history.start_ns < (since_ns or 0)]
    if len(before) >= FIRST_STEPS:
        return float(np.median(before[-BEFORE:]))
    levels = judge_levels(history, WORTH_SAYING)
    is_known = bool(levels) and (since_ns is None or len(levels) > 1)  # a fault since the first step has no before
    return levels[-1].usual_ns if is_known else None


MANY_ROWS = 500_000  # beyond which some ranks stand for all
SOME_RANKS = 64
LIKELIHOOD = 0.95  # of series as large jobs have them, this share of alarms is at a true change

_COLUMNS = ("step", "start_ns", "end_ns")


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A stretch of steps that were slower than usual."""

    since_ns: int  # begin of its first step
    until_ns: int  # end of its last step
    is_over: bool  # whether another level followed it
    step_ns: int  # usual step time in it
    usual_ns: int  # usual step time of the job
    steps: int

    @property
    def ratio(self) -> float:
        return self.step_ns / self.usual_ns


@dataclass(frozen=True, slots=True)
class Stretch:
    """A slowdown as a finding, with its end."""

    finding: Finding
    until_ns: int
    is_over: bool
    usual_ns: int  # step time before it


def find_stretches(rows: pa.Table, job: str, options: ClockOptions | None = None) -> list[Stretch]:
    """Return a finding for each slow stretch that rows of `steps` tell of; they are of one attempt of one job."""
    start_ns, length_ns = reduce_rows(rows)
    return [_say(slowdown, job) for slowdown in find_slowdowns(start_ns, length_ns, options)]


def reduce_rows(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return begin and length of each step in order, the middle one of what its ranks say.

    Steps that the job told are taken where there are any. Clocks differ, so each length is of one host.
    """
    rows = _thin_out(rows)
    reported = np.asarray(pc.equal(rows["source"], "told").combine_chunks(), dtype=bool)
    step, start, end = (np.asarray(rows[name].combine_chunks())[reported | ~reported.any()] for name in _COLUMNS)
    step, start, length = step.astype(np.int64), start.astype(np.int64), (end - start).astype(np.int64)
    return _middles(step, start), _middles(step, length)


def _thin_out(rows: pa.Table) -> pa.Table:
    """Return the rows of some ranks where there are very many: all ranks do the same steps."""
    if rows.num_rows < MANY_ROWS:
        return rows
    rank = np.asarray(rows["world_rank"].combine_chunks()).astype(np.int64)
    apart = -(-(int(rank.max()) + 1) // SOME_RANKS)
    return rows.filter(pa.array(rank % apart == rank[0] % apart))


def _middles(step: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the middle value of each step, in the order of their numbers."""
    order = np.lexsort((values, step))
    firsts = np.flatnonzero(np.diff(step[order], prepend=-1))
    counts = np.diff(np.append(firsts, len(order)))
    middles: np.ndarray = values[order][firsts + (counts - 1) // 2]
    return middles


def find_slowdowns(
    start_ns: np.ndarray, length_ns: np.ndarray, options: ClockOptions | None = None
) -> list[Slowdown]:
    """Return the stretches that were slower than usual, in order."""
    sizes = np.zeros(len(length_ns), np.int64)
    history = add_steps(StepHistory(), start_ns, length_ns, sizes, options or ClockOptions())
    return [_describe(history, level) for level in judge_levels(history, WORTH_SAYING) if level.is_slow]


def _describe(history: StepHistory, level: Level) -> Slowdown:
    last = level.end - 1
    return Slowdown(
        since_ns=int(history.start_ns[level.begin]),
        until_ns=int(history.start_ns[last] + history.length_ns[last]),
        is_over=level.end < len(history),
        step_ns=int(level.step_ns),
        usual_ns=int(level.usual_ns),
        steps=level.end - level.begin,
    )


def _say(slowdown: Slowdown, job: str) -> Stretch:
    now, usual = slowdown.step_ns / NS_PER_S, slowdown.usual_ns / NS_PER_S
    finding = Finding(
        fault_class="global_slow",
        component=f"job:{job}",
        likelihood=LIKELIHOOD,
        reason=f"steps take {now:.3g} s instead of {usual:.3g} s; step times alone do not tell which part is slow",
        evidence=(
            {
                "kind": "step_times",
                "usual_s": round(usual, 6),
                "now_s": round(now, 6),
                "ratio": round(slowdown.ratio, 3),
                "steps": slowdown.steps,
            },
        ),
        ranks_waiting=0,
        lost_share=1 - slowdown.usual_ns / slowdown.step_ns,
        since_ns=slowdown.since_ns,
        is_certain=True,
    )
    return Stretch(finding, slowdown.until_ns, slowdown.is_over, slowdown.usual_ns)
