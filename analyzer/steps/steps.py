"""Which steps a job has done since the last evaluation, on which period, and how long they take against the usual."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np
import pyarrow as pa

from analyzer.steps.history import (
    BEFORE,
    LASTING_STEPS,
    Level,
    StepHistory,
    add_steps,
    find_newest,
    is_costly,
    is_stale,
    judge_levels,
)
from analyzer.steps.levels import LevelOptions
from analyzer.steps.periods import (
    OFF_PERIOD,
    Signature,
    Steps,
    choose_period,
    cut,
    find_rest,
    learn_signature,
    still_holds,
)
from analyzer.steps.traffic import StepFacts, Witness, find_period_in_samples, find_period_in_seconds
from analyzer.windows.window import Context, Finding
from lockstep.arrow import fill_rows, schema_of
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import host_name
from lockstep.verdict import RuledOut

_STEPS = TABLE_BY_NAME["steps"]
_YOUNG_NS = 15 * NS_PER_S  # of steps seen: some evaluations, within which a period found too early shows
_FIRST_TRY = 6000  # of the newest operations in which a period is looked for before all are; it is found sooner


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What the stage is told."""

    levels: LevelOptions = field(default_factory=LevelOptions)
    same_step: float = 0.5  # of a period between the ends of one step on two ranks: their clocks may differ by that
    fewest_other: int = 3  # steps' worth of operations that fit no step before another kind of step is looked for


@dataclass(frozen=True)
class Kind:
    """A kind of step: what each rank does in it, and how long it has taken so far."""

    signatures: Mapping[int, Signature] = field(default_factory=dict)  # by process
    history: StepHistory = field(default_factory=StepHistory)


@dataclass(frozen=True)
class StepMemory:
    """What is known of a job's steps from the evaluations before."""

    attempt: int = -1
    kind: Kind = field(default_factory=Kind)
    before: Kind | None = None  # the kind of step that was done before; an evaluation ends, and it comes back
    reference: int = -1  # the process whose steps are counted
    next_step: int = 0
    last_end_ns: int = 0  # of the newest step counted
    reported: StepHistory = field(default_factory=StepHistory)  # steps that the job told of itself
    reported_until: int = -1  # number of the newest of them
    period_ns: int | None = None

    @property
    def history(self) -> StepHistory:
        """Return the steps to judge: those that the job tells, once they reach back as far as those found."""
        found = self.kind.history
        return self.reported if len(self.reported) >= min(len(found), BEFORE) else found


@dataclass(frozen=True)
class StepReport:
    """What one evaluation found."""

    period_ns: int | None = None
    rows: pa.Table = field(default_factory=lambda: schema_of(_STEPS).empty_table())  # of new steps only
    off_period: tuple[tuple[int, int], ...] = ()  # begin and end of what was no step, on the reference's clock
    operations: int | None = None  # in a step of the reference; None where the period is an estimate


def find_steps(
    facts: StepFacts, memory: StepMemory, context: Context, options: StepOptions | None = None
) -> tuple[StepReport, StepMemory]:
    """Return the new steps of a few ranks, which stand for all, and the memory to go on with."""
    options = options or StepOptions()
    if memory.attempt != context.attempt:
        memory = StepMemory(attempt=context.attempt)
    memory = _recognise(facts.witnesses, memory, options)
    cuts = [steps for witness in facts.witnesses if (steps := _cut(witness, memory)) and steps.period_ns]
    steps = _choose_reference(cuts, memory.reference)
    if steps is None:
        period_ns = _estimate(facts) or memory.period_ns
        report, memory = StepReport(period_ns), replace(memory, period_ns=period_ns)
    else:
        report, memory = _count(steps, cuts, memory, context, options)
    return report, _add_reported(facts.reported, memory, options)


def _estimate(facts: StepFacts) -> int | None:
    """Return the period where single steps cannot be told."""
    if facts.seconds is not None:
        return find_period_in_seconds(facts.seconds)
    return find_period_in_samples([witness for witness in facts.witnesses if witness.is_sampled])


def _recognise(witnesses: Sequence[Witness], memory: StepMemory, options: StepOptions) -> StepMemory:
    """Return the memory with the kind of step that the ranks do now."""
    whole = [witness.without_light for witness in witnesses if not witness.is_sampled]
    known = [witness for witness in whole if witness.process in memory.kind.signatures]
    left = [find_rest(witness, memory.kind.signatures[witness.process]) for witness in known]
    astray = [
        rest for rest in left if len(rest) > options.fewest_other * len(memory.kind.signatures[rest.process].words)
    ]
    if known and 2 * len(astray) > len(known):
        return _change_kind(astray, memory)
    memory = _unlearn(known, memory)
    fresh = _learn([witness for witness in whole if witness.process not in memory.kind.signatures])
    return replace(memory, kind=replace(memory.kind, signatures={**memory.kind.signatures, **fresh}))


def _unlearn(known: Sequence[Witness], memory: StepMemory) -> StepMemory:
    """Return the memory without a period that was none: the first evaluation may have seen a part of one step only.

    Later ones do not ask: a fault may make pauses uneven, and what is known of the steps before it is needed then.
    """
    seen = memory.kind.history
    if len(seen) and seen.start_ns[-1] + seen.length_ns[-1] - seen.start_ns[0] > _YOUNG_NS:
        return memory
    signatures = memory.kind.signatures
    wrong = [
        witness
        for witness in known
        if not still_holds(witness.words, witness.gap_ns, witness.span_ns, len(signatures[witness.process].words))
    ]
    if 2 * len(wrong) <= len(known):
        return memory
    better = _learn(wrong)
    if any(len(better[process].words) == len(signatures[process].words) for process in better):
        return memory  # it is the best there is: pauses of this job differ from step to step
    return replace(memory, kind=Kind(better), period_ns=None)


def _change_kind(astray: Sequence[Witness], memory: StepMemory) -> StepMemory:
    """Return the memory with the kind of step that fits operations which the one so far does not fit."""
    before = memory.before or Kind()
    if any(
        len(cut(rest, before.signatures[rest.process])) > 1 for rest in astray if rest.process in before.signatures
    ):
        return replace(memory, kind=before, before=memory.kind, period_ns=None)
    signatures = _learn(astray)
    return replace(memory, kind=Kind(signatures), before=memory.kind, period_ns=None) if signatures else memory


def _learn(witnesses: Sequence[Witness]) -> dict[int, Signature]:
    found = ((witness.process, _learn_one(witness)) for witness in witnesses)
    return {process: signature for process, signature in found if signature}


def _learn_one(witness: Witness) -> Signature | None:
    for part in (witness.since(max(len(witness) - _FIRST_TRY, 0)), witness):
        if not len(part):
            return None
        if period := choose_period(part):
            return learn_signature(part, period)
    return None


def _cut(witness: Witness, memory: StepMemory) -> Steps | None:
    if witness.is_sampled:
        return None
    signature = memory.kind.signatures.get(witness.process)
    return cut(witness.without_light, signature, memory.period_ns, witness.lost_ns) if signature else None


def _choose_reference(cuts: Sequence[Steps], reference: int) -> Steps | None:
    """Return the steps of the rank that was followed before, else of one whose period most others share."""
    followed = next((steps for steps in cuts if steps.process == reference), None)
    if followed or not cuts:
        return followed
    usual = float(np.median([steps.period_ns or 0 for steps in cuts]))
    return min(cuts, key=lambda steps: abs((steps.period_ns or 0) - usual))


def _add_reported(rows: pa.Table | None, memory: StepMemory, options: StepOptions) -> StepMemory:
    """Return the memory with the steps that the job told of itself; their times are the better ones."""
    if rows is None or not rows.num_rows:
        return memory
    step, start, length = (np.asarray(rows[name].combine_chunks()).astype(np.int64) for name in rows.column_names)
    is_new = step > memory.reported_until
    sizes = _find_bytes(memory.kind.history, start[is_new])
    reported = add_steps(memory.reported, start[is_new], length[is_new], sizes, options.levels)
    return replace(memory, reported=reported, reported_until=int(step.max(initial=memory.reported_until)))


def _find_bytes(found: StepHistory, start_ns: np.ndarray) -> np.ndarray:
    """Return the bytes of the steps that were found when these began; 0 where none was."""
    if not len(found):
        return np.zeros(len(start_ns), np.int64)
    bytes_then: np.ndarray = found.bytes[np.maximum(np.searchsorted(found.start_ns, start_ns, "right") - 1, 0)]
    return bytes_then


def _count(
    steps: Steps, cuts: Sequence[Steps], memory: StepMemory, context: Context, options: StepOptions
) -> tuple[StepReport, StepMemory]:
    """Number the new steps of the reference, and those of other ranks like them."""
    length = steps.end_ns - steps.start_ns
    is_new = steps.end_ns > memory.last_end_ns + 0.3 * length  # one that was counted ends where it ended before
    period_ns = steps.period_ns or 0
    numbers = memory.next_step + np.cumsum(is_new) - 1
    matched = [(each, *_match(each.end_ns, steps.end_ns[is_new], options.same_step * period_ns)) for each in cuts]
    history = add_steps(
        memory.kind.history, steps.start_ns[is_new], length[is_new], steps.bytes[is_new], options.levels
    )
    kind = replace(memory.kind, history=history)
    signature = kind.signatures.get(steps.process)
    report = StepReport(
        period_ns=period_ns,
        rows=_rows(matched, numbers[is_new], context),
        off_period=_find_off_period(steps, steps.start_ns[is_new], memory.last_end_ns),
        operations=len(signature.words) if signature else None,
    )
    return report, replace(
        memory,
        kind=kind,
        reference=steps.process,
        next_step=memory.next_step + int(is_new.sum()),
        last_end_ns=int(steps.end_ns[is_new].max(initial=memory.last_end_ns)),
        period_ns=period_ns,
    )


def _find_off_period(steps: Steps, new_start_ns: np.ndarray, last_end_ns: int) -> tuple[tuple[int, int], ...]:
    """Return what was no step, with what lies between the evaluation before and this one."""
    known = tuple(stretch for stretch in steps.off_period if stretch[1] > last_end_ns)
    if not last_end_ns or not len(new_start_ns):
        return known
    begin, worth = int(new_start_ns[0]), OFF_PERIOD * (steps.period_ns or 0)
    is_known = any(end == begin for _, end in known)
    return known if is_known or begin - last_end_ns <= worth else ((last_end_ns, begin), *known)


def _rows(matched: Sequence[tuple[Steps, np.ndarray, np.ndarray]], numbers: np.ndarray, context: Context) -> pa.Table:
    """Return rows of the steps of some ranks: which of theirs, and which of the numbered ones they are."""
    roster, times = context.roster, [len(mine) for _, mine, _ in matched]
    process = np.repeat([steps.process for steps, *_ in matched], times)
    world_rank = roster.world_rank_of[process]
    start_ns, end_ns = (
        np.concatenate([getattr(steps, name)[mine] for steps, mine, _ in matched]) for name in ("start_ns", "end_ns")
    )
    return fill_rows(
        _STEPS,
        len(process),
        {
            "host": pa.array(roster.host_of[process], pa.string()),
            "job": context.job,
            "attempt": context.attempt,
            "world_rank": np.where(world_rank >= 0, world_rank, process),
            "step": numbers[np.concatenate([theirs for *_, theirs in matched])],
            "start_ns": np.maximum(start_ns, 0),
            "end_ns": end_ns,
            "source": "period",
        },
    )


def _match(mine_ns: np.ndarray, theirs_ns: np.ndarray, tolerance_ns: float) -> tuple[np.ndarray, np.ndarray]:
    """Return which moments are each other's nearest, as places in both lists, which are in order."""
    if not len(mine_ns) or not len(theirs_ns):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    mine = _find_nearest(theirs_ns, mine_ns)
    theirs = np.arange(len(theirs_ns))
    mutual = _find_nearest(mine_ns, theirs_ns)[mine] == theirs
    near = mutual & (np.abs(mine_ns[mine] - theirs_ns) <= tolerance_ns)
    return mine[near], theirs[near]


def _find_nearest(wanted_ns: np.ndarray, timestamps_ns: np.ndarray) -> np.ndarray:
    """Return the place of the moment nearest to each wanted one."""
    after = np.clip(np.searchsorted(timestamps_ns, wanted_ns), 1, max(len(timestamps_ns) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(timestamps_ns) - 1)
    nearer: np.ndarray = np.where(
        np.abs(timestamps_ns[before] - wanted_ns) <= np.abs(timestamps_ns[after] - wanted_ns), before, after
    )
    return nearer


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """When a slowdown of everybody is worth a word."""

    least_ratio: float = 1.10  # step time now over the usual: below that, nobody pays for looking into it
    fewest_steps: int = 3  # on the new level, as many as it takes to be told from outliers
    same_bytes: float = 0.05  # share by which bytes per step may differ before the job itself has changed
    likelihood: float = 0.9  # that a lasting change of level without a part at fault is the fabric's or the power's
    half_blind: float = 0.45  # the same where some hosts say nothing, or are suspected: the part may well be theirs


def find_global(
    memory: StepMemory,
    context: Context,
    options: GlobalOptions | None = None,
    suspects: frozenset[str] = frozenset(),
) -> list[Finding]:
    """Return a finding when the job is slower than usual; to be asked where no part was found that explains it.

    Suspects are hosts of late ranks that are not told yet, or all where nobody's own time is known.
    """
    options = options or GlobalOptions()
    history = memory.history
    slow = _find_slow_end(history, options.least_ratio)
    if slow is None or not slow.begin or slow.steps < options.fewest_steps:
        return []
    before, after = (float(np.median(part)) for part in (history.bytes[: slow.begin], history.bytes[slow.begin :]))
    if abs(after - before) <= options.same_bytes * before:
        return [_say(history, slow, context, options, suspects)]
    return [_say_own(history, slow, context, options)] if slow.steps >= LASTING_STEPS else []


def _say_own(history: StepHistory, slow: Level, context: Context, options: GlobalOptions) -> Finding:
    """Return the finding of a job that changed itself, in batch, precision or sequence: something to read."""
    finding = _say(history, slow, context, options, frozenset())
    before, now = (finding.evidence[0][f"bytes_per_step_{when}"] / 1e6 for when in ("before", "now"))
    now_s, usual_s = slow.step_ns / NS_PER_S, slow.usual_ns / NS_PER_S
    reason = (
        f"a step takes {now_s:.3g} s instead of {usual_s:.3g} s since the job changed what it does: it "
        f"exchanges {now:.3g} MB a step instead of {before:.3g} MB, and nothing else changed"
    )
    return replace(finding, reason=reason, ruled_out=(), ambiguous_with=(), is_minor=True)


def _find_slow_end(history: StepHistory, worth: float) -> Level | None:
    """Return the newest levels that are slower than usual, as one: at usual speed the job was before them only."""
    newest_first = takewhile(lambda level: level.is_slow, reversed(judge_levels(history, worth)))
    slow = list(newest_first)[::-1]
    if not slow:
        return None
    now_ns = find_newest(history)
    whole = replace(slow[-1], begin=slow[0].begin, step_ns=now_ns)
    return whole if now_ns >= worth * whole.usual_ns else None


def _say(
    history: StepHistory, slow: Level, context: Context, options: GlobalOptions, suspects: frozenset[str]
) -> Finding:
    now_s, usual_s = slow.step_ns / NS_PER_S, slow.usual_ns / NS_PER_S
    beside = context.silent | (suspects if suspects < context.roster.hosts else frozenset())
    return Finding(
        fault_class="global_slow",
        component=f"job:{context.job}",
        likelihood=options.half_blind if suspects or context.coverage < 1 else options.likelihood,
        reason=(
            f"all ranks became slower together: a step takes {now_s:.3g} s instead of {usual_s:.3g} s with the same "
            f"operations, and no part stands out; {_advise(context, suspects)}"
        ),
        evidence=(
            {
                "kind": "step_times",
                "usual_s": round(usual_s, 6),
                "now_s": round(now_s, 6),
                "ratio": round(now_s / usual_s, 3),
                "steps": slow.steps,
                "bytes_per_step_before": int(np.median(history.bytes[: slow.begin])),
                "bytes_per_step_now": int(np.median(history.bytes[slow.begin :])),
            },
        ),
        ruled_out=(
            RuledOut(component=f"job:{context.job}", because="its steps do the same operations of the same sizes"),
        ),
        ambiguous_with=tuple(map(host_name, sorted(beside))),
        ranks_waiting=0,
        lost_share=1 - usual_s / now_s,
        since_ns=int(history.start_ns[slow.begin]),
        is_minor=not is_costly(slow, is_over=False),
        is_stale=is_stale(history, context.window),
    )


def _advise(context: Context, suspects: frozenset[str]) -> str:
    if suspects and suspects >= context.roster.hosts:
        return (
            "how long its ranks take for themselves is not known, so it may be one of them: ask for their operations"
        )
    if suspects:
        return (
            f"ranks of {', '.join(sorted(suspects))} are late, in too few steps so far to say that all wait for them"
        )
    if context.coverage < 1:
        return (
            f"{1 - context.coverage:.0%} of its hosts say nothing, and the part may be one of theirs: ask them first"
        )
    return "look at what the job shares with others: fabric, power, storage"
