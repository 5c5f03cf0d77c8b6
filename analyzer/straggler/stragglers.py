"""Who was late: ranks that take longer for themselves than their peers do, and for whom others wait.

A rank stands out when what it takes beyond its peers lasts, costs the job something, and is far outside of what its
peers differ among each other. What comes and goes on changing ranks (experts, sequence lengths, garbage collection)
widens that spread or does not last, and stays unnamed. A GPU that is slow only now and then is named when the same
one comes again.

Many who are late at once are no set of faults but a property of the job, and left to those who look at all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import pdtrc

from analyzer.straggler.culprits import (
    Culprit,
    GroupingOptions,
    are_too_many,
    group_stragglers,
    is_first_rank_alone,
    make_finding,
)
from analyzer.straggler.excess import Excess, measure_excess, spread_of, without_worst
from analyzer.straggler.gpu_waits import (
    GpuWaitOptions,
    GpuWaits,
    LateGpu,
    chance_to_be_last,
    find_late_gpus,
    find_slower_gpus,
    learn_waits,
)
from analyzer.straggler.kernels import NumericOptions, choose_kernels
from analyzer.straggler.memory import SlowStep, StragglerMemory, StragglerSince
from analyzer.straggler.operations import Operations
from analyzer.straggler.own_past import OwnPastOptions, find_grown, measure_own
from analyzer.straggler.reading import StragglerFacts
from analyzer.straggler.starving import StarvingOptions, find_starving
from analyzer.windows.window import Context, Finding
from lockstep.clock import NS_PER_S

_PACES = 64  # evaluations, two minutes of them
_OWN_TIMES = 16  # likewise, half a minute
_SAMPLES_NS = 30 * NS_PER_S  # after a job became slower, in which the samples that were asked for tell enough


@dataclass(frozen=True, slots=True)
class StragglerOptions:
    """When a rank counts as late."""

    min_share: float = 0.03  # of the time: steps of healthy jobs differ by as much, and nobody would act on less
    sigmas: float = 6.0  # one false rank in 10^9, if what peers differ by were normal; it is not, hence the share too
    min_spread: float = 0.004  # of the time: a quiet window must not turn jitter of the clocks into outliers
    noisy_spread: float = 0.015  # of the time: where work differs so much, two long steps in a row are chance,
    # and who is late must be late in a second evaluation that shares no step with the first
    min_peers: float = 2.0  # of two, nobody can say which one is odd
    min_kept_up: float = 0.6  # of the time since it began: what comes and goes is a checkpoint or a log, no fault
    first_rank_steps: float = 6.0  # late ones of rank 0 alone, as many as two evaluations hold that share none: of
    # fewer, nobody can say whether its host makes it late or the program, which saves, logs and evaluates there
    few: int = 8  # with fewer to compare, a single one moves the spread that it is judged by
    few_share: float = 0.10  # so among few the effect itself must be large,
    few_ratio: float = 3.0  # and stand apart from all others,
    quiet_ratio: float = 10.0  # or stand so far apart from others who hardly differ that less will do
    apart_ratio: float = 2.0  # over the next one, in sums of seconds
    waited_share: float = 0.5  # of its delay; what others need not wait for is slack, not a cost
    rare_events: int = 3  # slow steps of one GPU: two can be chance
    rare_chance: float = 1e-3  # likewise for any of them, at the rate at which all others have slow steps
    rare_lookback_ns: int = 90 * NS_PER_S  # a GPU slow in one of fifteen steps comes again three times in that
    paces: int = 3  # evaluations that share nothing with this one, for what a rank usually does in a second
    slower_pace: float = (
        0.87  # of what it does in a slow quarter of them: as many operations fewer, 15 % longer steps
    )
    grouping: GroupingOptions = field(default_factory=GroupingOptions)
    starving: StarvingOptions = field(default_factory=StarvingOptions)
    gpu_waits: GpuWaitOptions = field(default_factory=GpuWaitOptions)
    own_past: OwnPastOptions = field(default_factory=OwnPastOptions)
    numeric: NumericOptions = field(default_factory=NumericOptions)


def find_stragglers(
    facts: StragglerFacts, memory: StragglerMemory, context: Context, options: StragglerOptions
) -> tuple[list[Finding], StragglerMemory]:
    """Return the GPUs and hosts that hold the others up, and what to remember for the next evaluation."""
    memory = _remember_pace(memory.renumbered(context.roster), facts.per_s, context)
    findings = find_starving(facts.flushes, facts.slow_hosts, context, options.starving)
    late = find_late_gpus(facts.gpu_waits, options.gpu_waits)
    slower, memory = _find_slower(facts.gpu_waits, memory, context, options)
    late = [each for each in (*late, *slower) if context.roster.process(each.process).host not in facts.slow_senders]
    findings += _report_waited_for(late, facts, context, options)
    kernels = choose_kernels(len(facts.operations), options.numeric)
    processes, fresh_ns = len(context.roster), context.fresh_ns
    excess = measure_excess(facts.operations, facts.are_sums, processes, context.period_ns, kernels, fresh_ns)
    grown, memory = _find_grown(facts, memory, context, options)
    findings += [make_finding(grown, facts.throttled, context)] if grown and not findings else []
    if excess is None:
        return findings, memory
    stragglers = _find_lasting(excess, options)
    if facts.are_sums:
        stragglers = _stand_apart(excess, stragglers, options)
        if _are_of_one_pipeline(excess.processes[stragglers], facts.operations, context):
            return findings, replace(memory, straggling_since={})
    if are_too_many(excess.processes[stragglers], context, options.grouping):
        return findings, replace(memory, straggling_since={})
    memory = _remember(memory, excess, stragglers, context, options)
    culprits = [
        replace(culprit, since_ns=min(memory.straggling_since[number].begun_ns for number in culprit.processes))
        for culprit in group_stragglers(
            excess, _confirm(excess, stragglers, memory, context, options), context, options.grouping
        )
    ]
    known = {number for culprit in culprits for number in culprit.processes}
    culprits += [rare for rare in _find_rare(memory, context, options) if not known & set(rare.processes)]
    if len(culprits) > options.grouping.limit(context):
        return findings, memory
    blamed = {finding.component for finding in findings}
    made = [make_finding(culprit, facts.throttled, context) for culprit in culprits]
    return findings + [finding for finding in made if finding.component not in blamed], memory


def is_slower(memory: StragglerMemory, context: Context, options: StragglerOptions) -> bool:
    """Return whether ranks do fewer operations in a second than in nearly all evaluations before.

    It needs no steps, which cannot be cut where all operations are alike. A reason to look closer, no more: a job
    that evaluates or saves does fewer, too.
    """
    before = [per_s for end_ns, per_s in memory.paces if end_ns <= context.window.start_ns]
    if len(before) < options.paces or not memory.paces:
        return False
    return memory.paces[-1][1] < options.slower_pace * float(np.quantile(before, 0.25))


def _remember_pace(memory: StragglerMemory, per_s: float | None, context: Context) -> StragglerMemory:
    if per_s is None:
        return memory
    return replace(memory, paces=(*memory.paces, (context.window.end_ns, per_s))[-_PACES:])


def _find_slower(
    waits: GpuWaits, memory: StragglerMemory, context: Context, options: StragglerOptions
) -> tuple[list[LateGpu], StragglerMemory]:
    """Return the GPUs that made a job slower in which they have no peers; they stay so until they are as before."""
    end_ns = context.window.end_ns
    if is_slower(memory, context, options):
        memory = replace(memory, slower_ns=end_ns)
    is_asked = bool(memory.waits.held) or end_ns - memory.slower_ns <= _SAMPLES_NS
    found = find_slower_gpus(waits, memory.waits, context.window, options.gpu_waits) if is_asked else []
    return found, replace(memory, waits=learn_waits(waits, memory.waits, context.window, found))


def _find_grown(
    facts: StragglerFacts, memory: StragglerMemory, context: Context, options: StragglerOptions
) -> tuple[Culprit | None, StragglerMemory]:
    """Return the rank without peers whose own time alone has grown; those who have peers are held against them."""
    now = None if facts.are_sums else measure_own(facts.operations, context, options.own_past)
    if now is None:
        return None, memory
    grown = find_grown(now, memory.own, context, options.own_past)
    return grown, memory if grown else replace(memory, own=(*memory.own, now)[-_OWN_TIMES:])


def _report_waited_for(
    late: Sequence[LateGpu], facts: StragglerFacts, context: Context, options: StragglerOptions
) -> list[Finding]:
    """Return the GPUs that sampled transfers always wait for, as far as it costs something."""
    findings = []
    for each in late:
        if each.lost_share >= options.min_share:
            culprit = Culprit(
                kind="gpu",
                processes=(each.process,),
                share=each.lost_share,
                sigmas=0.0,
                peers=each.peers,
                than="before" if each.since_ns else "peers",
                since_ns=each.since_ns,
            )
            found = make_finding(culprit, facts.throttled, context)
            counts = {"kind": "gpu_wait", "last": each.times, "of": each.late}
            findings.append(replace(found, evidence=(*found.evidence, counts), may_isolate=False))
    return findings


def _find_lasting(excess: Excess, options: StragglerOptions) -> np.ndarray:
    """Return the rows of processes that were late throughout, for whom others waited."""
    lasting, waited = excess.lasting, without_worst(excess.waits)
    costly = (lasting >= options.min_share) & (waited >= options.waited_share * lasting)
    costly &= (excess.peers >= options.min_peers) & (excess.kept_up >= options.min_kept_up)
    late = _is_apart(lasting, options)
    if len(lasting) >= options.few:  # half of them can be late together without moving the rule above
        late |= lasting - np.median(lasting) >= options.sigmas * max(spread_of(lasting), options.min_spread)
    return np.flatnonzero(costly & late)


def _stand_apart(excess: Excess, stragglers: np.ndarray, options: StragglerOptions) -> np.ndarray:
    """Return those late in sums of seconds if nobody else was by nearly as much.

    A slow connection lets one rank after the other out of an operation, and sums cannot tell who waits for what.
    """
    others = np.delete(excess.lasting, stragglers)
    far = options.apart_ratio * float(others.max(initial=0.0))
    return stragglers if (excess.lasting[stragglers] >= far).all() else stragglers[:0]


def _are_of_one_pipeline(processes: np.ndarray, sums: Operations, context: Context) -> bool:
    """Say whether several stages on several hosts are late at once: then what is between them is slow.

    Sends overlap with work, so that in sums time on a slow connection looks like time of the ranks at its ends.
    """
    hosts = set(context.roster.host_of[processes].tolist())
    return len(hosts) > 1 and len(np.unique(sums.func[np.isin(sums.process, processes)])) > 1


def _confirm(
    excess: Excess, stragglers: np.ndarray, memory: StragglerMemory, context: Context, options: StragglerOptions
) -> np.ndarray:
    """Return those who were late for longer than one evaluation, where one does not tell enough.

    It does not where ranks differ much by themselves, but for who is the last of all more often than by chance; where
    most are alike and one that is not late all the time loses more than who is; nor of rank 0 alone in a few steps.
    """
    others = np.delete(excess.lasting, stragglers)
    least = float(excess.lasting[stragglers].min(initial=np.inf))
    # Those of a host are late for one reason: of two hosts, they alone would tell how much ranks differ.
    _, of_each_host = np.unique(context.roster.host_of[excess.processes[stragglers]], return_index=True)
    apart = np.append(others, excess.lasting[stragglers[of_each_host]])
    is_noisy = (spread_of(apart) > options.noisy_spread) & ~_are_mostly_last(excess, stragglers, options)
    is_noisy |= float(others.max(initial=0.0)) > least
    is_told_twice = is_noisy & (len(excess.lasting) >= options.few)
    of_first_rank = is_first_rank_alone(excess, stragglers, context, options.grouping)
    is_doubtful = is_told_twice | (of_first_rank & (excess.spread_over[stragglers] < options.first_rank_steps))
    since = np.array([memory.straggling_since[int(excess.processes[row])].found_ns for row in stragglers], np.int64)
    confirmed: np.ndarray = stragglers[~is_doubtful | (since <= context.window.start_ns)]
    return confirmed


def _are_mostly_last(excess: Excess, stragglers: np.ndarray, options: StragglerOptions) -> np.ndarray:
    """Say of each whether it lost more than all others in so many stretches that it is no chance."""
    ranks, stretches = excess.own.shape
    last = excess.own[stragglers] >= excess.own.max(axis=0)
    chances = [chance_to_be_last(times, stretches, ranks) for times in last.sum(axis=1).tolist()]
    return np.array(chances, float) <= options.rare_chance


def _is_apart(lasting: np.ndarray, options: StragglerOptions) -> np.ndarray:
    """Say of each whether it is late by far more than any of those differ who are not."""
    quiet_share = options.quiet_ratio * options.min_spread
    apart = np.zeros(len(lasting), bool)
    for share, ratio in ((options.few_share, options.few_ratio), (quiet_share, options.quiet_ratio)):
        late = lasting >= share
        usual = float(np.abs(lasting[~late]).max(initial=0.0))
        apart |= late & (lasting >= ratio * usual)
    return apart


def _remember(
    memory: StragglerMemory, excess: Excess, stragglers: np.ndarray, context: Context, options: StragglerOptions
) -> StragglerMemory:
    """Keep single slow steps of GPUs, each once, for as long as they count."""
    oldest = context.window.end_ns - options.rare_lookback_ns
    kept = [step for step in memory.slow_steps if step.at_ns >= oldest]
    apart_ns = max((context.period_ns or 0) // 2, NS_PER_S // 2)
    for step in _slow_steps(excess, stragglers, options):
        if all(step.process != other.process or abs(step.at_ns - other.at_ns) > apart_ns for other in kept):
            kept.append(step)
    begun = context.window.start_ns if memory.begun_ns is None else memory.begun_ns
    since = {
        int(excess.processes[row]): memory.straggling_since.get(
            int(excess.processes[row]), StragglerSince(context.window.end_ns, _onset(excess, row))
        )
        for row in stragglers
    }
    return replace(memory, slow_steps=tuple(kept), begun_ns=begun, straggling_since=since)


def _onset(excess: Excess, row: int) -> int:
    """Return when the first stretch began in which a process lost at least half of what it lost in its worst."""
    own = excess.own[row]
    return int(excess.begin_ns[int((own >= own.max() / 2).argmax())])


def _slow_steps(excess: Excess, stragglers: np.ndarray, options: StragglerOptions) -> list[SlowStep]:
    """Return the processes whose worst operation is far beyond the worst of the others, by their GPU's doing."""
    worst = excess.worst_ns
    floor = options.min_share * excess.span_ns
    if len(worst) < options.few:  # then each of the others counts
        far = worst >= np.maximum(floor, options.few_ratio * _largest_of_others(worst))
    else:
        usual = float(np.median(worst))
        far = worst >= max(floor, options.few_ratio * usual, usual + options.sigmas * spread_of(worst))
    far &= (excess.worst_gpu_ns >= options.waited_share * worst) & (excess.peers >= options.min_peers)
    far[stragglers] = False
    rows = np.flatnonzero(far)
    if len(rows) > options.grouping.most_culprits:
        return []  # that many at once have one cause, and it is not theirs
    return [SlowStep(int(excess.processes[row]), int(excess.worst_at_ns[row]), float(worst[row])) for row in rows]


def _largest_of_others(values: np.ndarray) -> np.ndarray:
    """Return for each value the largest of all others, 0 if there is none.

    >>> _largest_of_others(np.array([1.0, 5.0, 3.0])).tolist()
    [5.0, 3.0, 5.0]
    """
    others = np.full(len(values), values.max(initial=0.0))
    if len(values):
        others[values.argmax()] = np.delete(values, values.argmax()).max(initial=0.0)
    return others


def _find_rare(memory: StragglerMemory, context: Context, options: StragglerOptions) -> list[Culprit]:
    by_process: dict[int, list[SlowStep]] = {}
    for step in memory.slow_steps:
        by_process.setdefault(step.process, []).append(step)
    looked_ns = max(min(context.window.end_ns - (memory.begun_ns or 0), options.rare_lookback_ns), 1)
    ranks = len(context.roster)
    return [
        Culprit(
            kind="gpu",
            processes=(process,),
            share=sum(step.lost_ns for step in steps) / looked_ns,
            sigmas=options.sigmas,
            peers=ranks - 1,
            slow_steps=len(steps),
            since_ns=min(step.at_ns for step in steps),
        )
        for process, steps in by_process.items()
        if len(steps) >= options.rare_events
        and ranks * _chance_of(len(steps), (len(memory.slow_steps) - len(steps)) / max(ranks - 1, 1))
        < options.rare_chance
    ]


def _chance_of(events: int, expected: float) -> float:
    """Return how likely so many events or more are, where so many are expected (Poisson).

    >>> [round(_chance_of(3, expected), 3) for expected in (0.0, 1.0)]
    [0.0, 0.08]
    """
    return float(pdtrc(events - 1, expected))
