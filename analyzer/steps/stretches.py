"""Slow stretches of a job of which only step times are known: what was slow, from when to when, and what it cost.

A stretch that lasts, or costs something, is a finding of its own. What is over before it cost anything is a burst:
all bursts of a job are one finding with their number, for people to read, until together they cost something.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.steps.history import (
    FEWEST_USUAL,
    WORTH_SAYING,
    Level,
    StepHistory,
    add_steps,
    find_slow_levels,
    is_costly,
)
from analyzer.steps.levels import LevelOptions, find_centres, measure_noise
from analyzer.windows.window import Finding
from lockstep.clock import NS_PER_S

MANY_ROWS = 500_000  # beyond which some ranks stand for all
SOME_RANKS = 64
LIKELIHOOD = 0.95  # of series as large jobs have them, this share of alarms is at a true change
BURST_STEPS = 3  # one long step is an outlier, two are a checkpoint and what it left behind
BURSTS_WITHIN = 300  # steps, of which bursts may take up
BURSTS_SHARE = 0.05  # this share before they are worth an alert

_COLUMNS = ("step", "start_ns", "end_ns")


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A stretch of steps that were slower than usual, or all bursts of them."""

    since_ns: int  # begin of its first step
    until_ns: int  # end of its last step
    is_over: bool  # whether another level followed it
    step_ns: int  # usual step time in it
    usual_ns: int  # usual step time of the job
    steps: int
    is_costly: bool  # worth an alert
    times: int = 1  # how often steps were slow for a while

    @property
    def ratio(self) -> float:
        return self.step_ns / self.usual_ns

    @property
    def lost_ns(self) -> int:
        return self.steps * (self.step_ns - self.usual_ns)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A slowdown as a finding, with its end."""

    finding: Finding
    until_ns: int
    is_over: bool
    usual_ns: int  # step time before it
    lost_ns: int  # by its steps together


def find_stretches(rows: pa.Table, job: str, options: LevelOptions | None = None) -> list[Stretch]:
    """Return a finding for each slow stretch that rows of `steps` tell of; they are of one attempt of one job."""
    start_ns, length_ns = reduce_rows(rows)
    return [_say(slowdown, job) for slowdown in find_slowdowns(start_ns, length_ns, options)]


def reduce_rows(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return begin and length of each step in order, the middle one of what its ranks say.

    Steps that the job reported are taken, unless far more were found in its traffic: it reported its end only. Clocks
    differ, so each length is of one host.
    """
    rows = _thin_out(rows)
    step, start, end = (np.asarray(rows[name].combine_chunks()).astype(np.int64) for name in _COLUMNS)
    reported = np.asarray(pc.equal(rows["source"], "told").combine_chunks(), dtype=bool)
    has_reported = 2 * len(np.unique(step[reported])) >= len(np.unique(step[~reported]))
    chosen = reported if has_reported else ~reported
    return _middles(step[chosen], start[chosen]), _middles(step[chosen], (end - start)[chosen])


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
    start_ns: np.ndarray, length_ns: np.ndarray, options: LevelOptions | None = None
) -> list[Slowdown]:
    """Return the stretches that were slower than usual, in order, and behind them all bursts as one."""
    options, sizes = options or LevelOptions(), np.zeros(len(length_ns), np.int64)
    history = add_steps(StepHistory(), start_ns, length_ns, sizes, options, most_steps=None)
    if not len(history):
        return []
    slow = find_slow_levels(history, WORTH_SAYING)
    stretches = [_describe(history, level) for level in slow if not _is_burst(level, history)]
    return [*stretches, *_sum_up(history, [level for level in slow if _is_burst(level, history)], options)]


def _is_burst(level: Level, history: StepHistory) -> bool:
    is_over = level.end < len(history)
    return is_over and level.begin > 0 and not is_costly(level, is_over)


def _describe(history: StepHistory, level: Level) -> Slowdown:
    last = level.end - 1
    return Slowdown(
        since_ns=int(history.start_ns[level.begin]),
        until_ns=int(history.start_ns[last] + history.length_ns[last]),
        is_over=level.end < len(history),
        step_ns=int(level.step_ns),
        usual_ns=int(level.usual_ns),
        steps=level.steps,
        is_costly=is_costly(level, level.end < len(history)),
    )


def _sum_up(history: StepHistory, short: Sequence[Level], options: LevelOptions) -> list[Slowdown]:
    """Return all bursts as one slowdown: levels that were too short, and runs of long steps within a level."""
    bursts = sorted([*short, *_find_runs(history, options)], key=lambda level: level.begin)
    if not bursts:
        return []
    lost = np.zeros(len(history))
    for burst in bursts:
        lost[burst.begin : burst.end] = burst.excess
    totals = np.cumsum(np.append(0.0, lost))
    within = totals[BURSTS_WITHIN:] - totals[:-BURSTS_WITHIN] if len(totals) > BURSTS_WITHIN else totals[-1:]
    steps = sum(burst.steps for burst in bursts)
    usual_ns = float(np.median([burst.usual_ns for burst in bursts]))
    whole = Level(bursts[0].begin, bursts[-1].end, usual_ns * (1 + totals[-1] / steps), usual_ns, is_slow=True)
    is_alert = bool(within.max() >= BURSTS_SHARE * BURSTS_WITHIN)
    return [replace(_describe(history, whole), steps=steps, is_over=True, is_costly=is_alert, times=len(bursts))]


def _find_runs(history: StepHistory, options: LevelOptions) -> list[Level]:
    """Return the runs of steps that are far longer than their level, and too short to be one."""
    value = np.log(history.length_ns)
    centre = find_centres(value, history.spans)
    far = value - centre >= max(np.log(WORTH_SAYING), options.outlier * measure_noise(value, history.spans, options))
    far[:FEWEST_USUAL] = False  # the first steps of any job are long
    edges = np.flatnonzero(np.diff(far, prepend=False, append=False)).reshape(-1, 2)
    return [
        Level(begin, end, float(np.mean(history.length_ns[begin:end])), float(np.exp(centre[begin])), is_slow=True)
        for begin, end in edges.tolist()
        if end - begin >= BURST_STEPS
    ]


def _say(slowdown: Slowdown, job: str) -> Stretch:
    now, usual = slowdown.step_ns / NS_PER_S, slowdown.usual_ns / NS_PER_S
    finding = Finding(
        fault_class="global_slow",
        component=f"job:{job}",
        likelihood=LIKELIHOOD,
        reason=f"{_describe_pace(slowdown)}; step times alone do not show which part is slow",
        evidence=(
            {
                "kind": "step_times",
                "usual_s": round(usual, 6),
                "now_s": round(now, 6),
                "ratio": round(slowdown.ratio, 3),
                "steps": slowdown.steps,
                "times": slowdown.times,
            },
        ),
        ranks_waiting=0,
        lost_share=1 - slowdown.usual_ns / slowdown.step_ns,
        since_ns=slowdown.since_ns,
        is_certain=True,
        is_minor=not slowdown.is_costly,
    )
    return Stretch(finding, slowdown.until_ns, slowdown.is_over, slowdown.usual_ns, slowdown.lost_ns)


def _describe_pace(slowdown: Slowdown) -> str:
    now, usual = slowdown.step_ns / NS_PER_S, slowdown.usual_ns / NS_PER_S
    if slowdown.times > 1:
        bursts = f"{slowdown.times} short bursts, {slowdown.steps} steps in all, ended by themselves"
        return f"{bursts}: their steps took {now:.3g} s instead of {usual:.3g} s"
    return f"steps take {now:.3g} s instead of {usual:.3g} s"
