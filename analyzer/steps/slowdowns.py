"""When a job was slower than usual, from nothing but its step times.

The clock of `analyzer.steps.clock` cuts the series into levels. Each level above the usual one is a slowdown, and
where one slow level follows another there are two.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.finding import Finding
from analyzer.steps.clock import ClockOptions
from analyzer.steps.history import WORTH_SAYING, Level, StepHistory, hear_steps, judge_levels
from lockstep.clock import NS_PER_S

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


def find_stretches(rows: pa.Table, job: str, options: ClockOptions | None = None) -> list[Stretch]:
    """Return a finding for each slow stretch that rows of `steps` tell of; they are of one attempt of one job."""
    start_ns, length_ns = reduce_rows(rows)
    return [_say(slowdown, job) for slowdown in find_slowdowns(start_ns, length_ns, options)]


def reduce_rows(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return begin and length of each step in order, the middle one of what its ranks say.

    Steps that the job told are taken where there are any. Clocks differ, so each length is of one host.
    """
    rows = _thin_out(rows)
    told = np.asarray(pc.equal(rows["source"], "told").combine_chunks(), dtype=bool)
    step, start, end = (np.asarray(rows[name].combine_chunks())[told | ~told.any()] for name in _COLUMNS)
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
    history = hear_steps(StepHistory(), start_ns, length_ns, sizes, options or ClockOptions())
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
    return Stretch(finding, slowdown.until_ns, slowdown.is_over)
