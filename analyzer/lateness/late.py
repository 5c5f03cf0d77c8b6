"""Who was late: ranks that take longer for themselves than their peers do, and for whom others wait.

A rank stands out when what it takes beyond its peers lasts, costs the job something, and is far outside of what its
peers differ among each other. What comes and goes on changing ranks (experts, sequence lengths, garbage collection)
widens that spread or does not last, and stays unnamed. A GPU that is slow only now and then is named when the same
one comes again.

Many who are late at once are no set of faults but a property of the job, and left to those who look at all of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from analyzer.context import Context
from analyzer.finding import Finding
from analyzer.lateness.excess import Excess, measure_excess, without_worst
from analyzer.lateness.grouping import GroupingOptions, are_too_many, group_late
from analyzer.lateness.reading import LatenessFacts
from analyzer.lateness.spread import spread_of
from analyzer.lateness.starving import StarvingOptions, find_starving
from analyzer.lateness.telling import Culprit, tell
from analyzer.numeric.kernels import NumericOptions, choose_kernels
from lockstep.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class LatenessOptions:
    """When a rank counts as late."""

    min_share: float = 0.03  # of the time: steps of healthy jobs differ by as much, and nobody would act on less
    sigmas: float = 6.0  # one false rank in 10^9, if what peers differ by were normal; it is not, hence the share too
    min_spread: float = 0.004  # of the time: a quiet window must not turn jitter of the clocks into outliers
    noisy_spread: float = 0.015  # of the time: where work differs so much, two long steps in a row are chance,
    # and who is late must be late in a second look that shares no step with the first
    few: int = 8  # with fewer to compare, a single one moves the spread that it is judged by
    few_share: float = 0.10  # so among few the effect itself must be large,
    few_ratio: float = 3.0  # and stand apart from all others
    waited_share: float = 0.5  # of its lateness; what others need not wait for is slack, not a cost
    rare_events: int = 3  # slow steps of one GPU: two can be chance
    rare_look_back_ns: int = 90 * NS_PER_S  # a GPU slow in one of fifteen steps comes again three times in that
    grouping: GroupingOptions = field(default_factory=GroupingOptions)
    starving: StarvingOptions = field(default_factory=StarvingOptions)
    numeric: NumericOptions = field(default_factory=NumericOptions)


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One operation before which a GPU took far longer than all others."""

    process: int
    at_ns: int
    lost_ns: float


@dataclass(frozen=True, slots=True)
class LateSince:
    """When a process was found late first, and when that had begun."""

    found_ns: int  # end of the look
    begun_ns: int


@dataclass(frozen=True, slots=True)
class LatenessMemory:
    """What is kept from look to look."""

    slow_steps: tuple[SlowStep, ...] = ()  # that came alone
    begun_ns: int | None = None  # since when we look
    late_since: Mapping[int, LateSince] = field(default_factory=dict)  # by process, of those late in the last look


def find_late(
    facts: LatenessFacts, memory: LatenessMemory, context: Context, options: LatenessOptions
) -> tuple[list[Finding], LatenessMemory]:
    """Return the GPUs and hosts that hold the others up, and what to remember for the next look."""
    findings = find_starving(facts.flushes, context, options.starving)
    kernels = choose_kernels(len(facts.operations), options.numeric)
    excess = measure_excess(facts.operations, facts.are_sums, len(context.roster), context.period_ns, kernels)
    if excess is None:
        return findings, memory
    late = _find_lasting(excess, options)
    if are_too_many(excess.processes[late], context, options.grouping):
        return findings, replace(memory, late_since={})
    memory = _remember(memory, excess, late, context, options)
    culprits = [
        replace(culprit, since_ns=min(memory.late_since[number].begun_ns for number in culprit.processes))
        for culprit in group_late(excess, _confirm(excess, late, memory, context, options), context, options.grouping)
    ]
    known = {number for culprit in culprits for number in culprit.processes}
    culprits += [rare for rare in _find_rare(memory, context, options) if not known & set(rare.processes)]
    if len(culprits) > options.grouping.limit(context):
        return findings, memory
    blamed = {finding.component for finding in findings}
    told = [tell(culprit, facts.throttled, context) for culprit in culprits]
    return findings + [finding for finding in told if finding.component not in blamed], memory


def _find_lasting(excess: Excess, options: LatenessOptions) -> np.ndarray:
    """Return the rows of processes that were late throughout, for whom others waited."""
    lasting, waited = excess.lasting, without_worst(excess.waits)
    costly = (lasting >= options.min_share) & (waited >= options.waited_share * lasting)
    if len(lasting) < options.few:
        return np.flatnonzero(costly & _is_apart(lasting, options))
    spread = max(spread_of(lasting), options.min_spread)
    return np.flatnonzero(costly & (lasting - np.median(lasting) >= options.sigmas * spread))


def _confirm(
    excess: Excess, late: np.ndarray, memory: LatenessMemory, context: Context, options: LatenessOptions
) -> np.ndarray:
    """Return those who were late for longer than one look, where ranks differ much by themselves."""
    if spread_of(excess.lasting) <= options.noisy_spread or len(excess.lasting) < options.few:
        return late
    since = np.array([memory.late_since[int(excess.processes[row])].found_ns for row in late], np.int64)
    confirmed: np.ndarray = late[since <= context.window.start_ns]
    return confirmed


def _is_apart(lasting: np.ndarray, options: LatenessOptions) -> np.ndarray:
    """Say of each of a few whether it is late by far more than those differ who are not."""
    late = lasting >= options.few_share
    rest = np.abs(lasting[~late])
    # Of two, the other one is what this one is measured by: it says nothing about what is usual.
    usual = float(rest.max()) if len(rest) > 1 else 0.0
    apart: np.ndarray = late & (lasting >= options.few_ratio * usual)
    return apart


def _remember(
    memory: LatenessMemory, excess: Excess, late: np.ndarray, context: Context, options: LatenessOptions
) -> LatenessMemory:
    """Keep single slow steps of GPUs, each once, for as long as they count."""
    oldest = context.window.end_ns - options.rare_look_back_ns
    kept = [step for step in memory.slow_steps if step.at_ns >= oldest]
    apart_ns = max((context.period_ns or 0) // 2, NS_PER_S // 2)
    for step in _slow_steps(excess, late, options):
        if all(step.process != other.process or abs(step.at_ns - other.at_ns) > apart_ns for other in kept):
            kept.append(step)
    begun = context.window.start_ns if memory.begun_ns is None else memory.begun_ns
    since = {
        int(excess.processes[row]): memory.late_since.get(
            int(excess.processes[row]), LateSince(context.window.end_ns, _onset(excess, row))
        )
        for row in late
    }
    return LatenessMemory(tuple(kept), begun, since)


def _onset(excess: Excess, row: int) -> int:
    """Return when the first stretch began in which a process lost at least half of what it lost in its worst."""
    own = excess.own[row]
    return int(excess.begin_ns[int((own >= own.max() / 2).argmax())])


def _slow_steps(excess: Excess, late: np.ndarray, options: LatenessOptions) -> list[SlowStep]:
    """Return the processes whose worst operation is far beyond the worst of the others, by their GPU's doing."""
    worst = excess.worst_ns
    if len(worst) < options.few:
        return []
    usual = float(np.median(worst))
    floor = max(options.min_share * excess.span_ns, options.few_ratio * usual)
    far = worst >= max(floor, usual + options.sigmas * spread_of(worst))
    far &= excess.worst_gpu_ns >= options.waited_share * worst
    far[late] = False
    rows = np.flatnonzero(far)
    if len(rows) > options.grouping.most_culprits:
        return []  # that many at once have one cause, and it is not theirs
    return [SlowStep(int(excess.processes[row]), int(excess.worst_at_ns[row]), float(worst[row])) for row in rows]


def _find_rare(memory: LatenessMemory, context: Context, options: LatenessOptions) -> list[Culprit]:
    by_process: dict[int, list[SlowStep]] = {}
    for step in memory.slow_steps:
        by_process.setdefault(step.process, []).append(step)
    looked_ns = max(min(context.window.end_ns - (memory.begun_ns or 0), options.rare_look_back_ns), 1)
    return [
        Culprit(
            kind="gpu",
            processes=(process,),
            share=sum(step.lost_ns for step in steps) / looked_ns,
            sigmas=options.sigmas,
            peers=len(context.roster) - 1,
            slow_steps=len(steps),
            since_ns=min(step.at_ns for step in steps),
        )
        for process, steps in by_process.items()
        if len(steps) >= options.rare_events
    ]
