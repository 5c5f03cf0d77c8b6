"""Which steps a job has done since the last look, on which period, and how long they take against the usual."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from analyzer.context import Context
from analyzer.steps.clock import ClockOptions
from analyzer.steps.cutting import OFF_PERIOD, Signature, Steps, cut, learn_signature
from analyzer.steps.history import StepHistory, hear_steps
from analyzer.steps.periods import find_period, still_holds
from analyzer.steps.rates import find_period_in_samples, find_period_in_seconds
from analyzer.steps.traffic import StepFacts, Witness
from lockstep.arrow import fill_rows, schema_of
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME

_STEPS = TABLE_BY_NAME["steps"]
_YOUNG_NS = 15 * NS_PER_S  # of steps seen: some looks, within which a period found too early shows
_FIRST_TRY = 6000  # of the newest operations in which a period is looked for before all are; it is found sooner


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What the stage is told."""

    clock: ClockOptions = field(default_factory=ClockOptions)
    same_step: float = 0.5  # of a period between the ends of one step on two ranks: their clocks may differ by that
    fewest_other: int = 3  # steps' worth of operations that fit no step before another kind of step is looked for


@dataclass(frozen=True)
class Kind:
    """A kind of step: what each rank does in it, and how long it has taken so far."""

    signatures: Mapping[int, Signature] = field(default_factory=dict)  # by process
    history: StepHistory = field(default_factory=StepHistory)


@dataclass(frozen=True)
class StepMemory:
    """What is known of a job's steps from the looks before."""

    attempt: int = -1
    kind: Kind = field(default_factory=Kind)
    before: Kind | None = None  # the kind of step that was done before; an evaluation ends, and it comes back
    reference: int = -1  # the process whose steps are counted
    next_step: int = 0
    last_end_ns: int = 0  # of the newest step counted
    told_until: int = -1  # number of the newest step that the job told of
    period_ns: int | None = None


@dataclass(frozen=True)
class StepReport:
    """What one look found."""

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
    memory = _hear_told(facts.told, memory, options)
    steps = _choose_reference(cuts, memory.reference)
    if steps is None:
        period_ns = _estimate(facts) or memory.period_ns
        return StepReport(period_ns), replace(memory, period_ns=period_ns)
    return _count(steps, cuts, memory, context, options)


def _estimate(facts: StepFacts) -> int | None:
    """Return the period where single steps cannot be told."""
    if facts.seconds is not None:
        return find_period_in_seconds(facts.seconds)
    return find_period_in_samples([witness for witness in facts.witnesses if witness.is_sampled])


def _recognise(witnesses: Sequence[Witness], memory: StepMemory, options: StepOptions) -> StepMemory:
    """Return the memory with the kind of step that the ranks do now."""
    whole = [witness.without_light() for witness in witnesses if not witness.is_sampled]
    known = [witness for witness in whole if witness.process in memory.kind.signatures]
    left = [
        witness.since(len(witness) - cut(witness, memory.kind.signatures[witness.process]).rest) for witness in known
    ]
    astray = [
        rest for rest in left if len(rest) > options.fewest_other * len(memory.kind.signatures[rest.process].words)
    ]
    if known and 2 * len(astray) > len(known):
        return _change_kind(astray, memory)
    memory = _unlearn(known, memory)
    fresh = _learn([witness for witness in whole if witness.process not in memory.kind.signatures])
    return replace(memory, kind=replace(memory.kind, signatures={**memory.kind.signatures, **fresh}))


def _unlearn(known: Sequence[Witness], memory: StepMemory) -> StepMemory:
    """Return the memory without a period that was none: the first look may have seen a part of one step only.

    Later looks do not ask: a fault may make pauses uneven, and what is known of the steps before it is needed then.
    """
    if _lasted_ns(memory.kind.history) > _YOUNG_NS:
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


def _lasted_ns(history: StepHistory) -> int:
    """Return how long steps of this kind have been seen."""
    return int(history.start_ns[-1] + history.length_ns[-1] - history.start_ns[0]) if len(history) else 0


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
        if period := find_period(part.words, part.gap_ns, part.span_ns):
            return learn_signature(part, period)
    return None


def _cut(witness: Witness, memory: StepMemory) -> Steps | None:
    if witness.is_sampled:
        return None
    signature = memory.kind.signatures.get(witness.process)
    return cut(witness.without_light(), signature, memory.period_ns) if signature else None


def _choose_reference(cuts: Sequence[Steps], reference: int) -> Steps | None:
    """Return the steps of the rank that was followed before, else of one whose period most others share."""
    followed = next((steps for steps in cuts if steps.process == reference), None)
    if followed or not cuts:
        return followed
    usual = float(np.median([steps.period_ns or 0 for steps in cuts]))
    return min(cuts, key=lambda steps: abs((steps.period_ns or 0) - usual))


def _hear_told(told: pa.Table | None, memory: StepMemory, options: StepOptions) -> StepMemory:
    """Return the memory with the steps that the job told of itself; their times are the better ones."""
    if told is None or not told.num_rows:
        return memory
    step, start, length = (np.asarray(told[name].combine_chunks()).astype(np.int64) for name in told.column_names)
    is_new = step > memory.told_until
    past = memory.kind.history if memory.told_until >= 0 else StepHistory()
    history = hear_steps(past, start[is_new], length[is_new], np.zeros(int(is_new.sum()), np.int64), options.clock)
    return replace(memory, kind=replace(memory.kind, history=history), told_until=int(step.max(initial=-1)))


def _count(
    steps: Steps, cuts: Sequence[Steps], memory: StepMemory, context: Context, options: StepOptions
) -> tuple[StepReport, StepMemory]:
    """Number the new steps of the reference, and those of other ranks like them."""
    length = steps.end_ns - steps.start_ns
    is_new = steps.end_ns > memory.last_end_ns + 0.3 * length  # one that was counted ends where it ended before
    period_ns = steps.period_ns or 0
    numbers = memory.next_step + np.cumsum(is_new) - 1
    rows = [
        _rows(each, numbers[is_new], steps.end_ns[is_new], options.same_step * period_ns, context) for each in cuts
    ]
    kind = memory.kind
    if memory.told_until < 0:
        history = hear_steps(kind.history, steps.start_ns[is_new], length[is_new], steps.bytes[is_new], options.clock)
        kind = replace(kind, history=history)
    signature = kind.signatures.get(steps.process)
    report = StepReport(
        period_ns=period_ns,
        rows=pa.concat_tables(rows),
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
    """Return what was no step, with what lies between the look before and this one."""
    known = tuple(stretch for stretch in steps.off_period if stretch[1] > last_end_ns)
    if not last_end_ns or not len(new_start_ns):
        return known
    begin, worth = int(new_start_ns[0]), OFF_PERIOD * (steps.period_ns or 0)
    is_told = any(end == begin for _, end in known)
    return known if is_told or begin - last_end_ns <= worth else ((last_end_ns, begin), *known)


def _rows(steps: Steps, numbers: np.ndarray, end_ns: np.ndarray, tolerance_ns: float, context: Context) -> pa.Table:
    """Return rows of the steps of one rank that ended when the numbered ones did."""
    mine, theirs = _match(steps.end_ns, end_ns, tolerance_ns)
    roster = context.roster
    world_rank = int(roster.world_rank_of[steps.process])
    return fill_rows(
        _STEPS,
        len(mine),
        {
            "host": str(roster.host_of[steps.process]),
            "job": context.job,
            "attempt": context.attempt,
            "world_rank": world_rank if world_rank >= 0 else steps.process,
            "step": numbers[theirs],
            "start_ns": np.maximum(steps.start_ns[mine], 0),
            "end_ns": steps.end_ns[mine],
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


def _find_nearest(wanted_ns: np.ndarray, moments_ns: np.ndarray) -> np.ndarray:
    """Return the place of the moment nearest to each wanted one."""
    after = np.clip(np.searchsorted(moments_ns, wanted_ns), 1, max(len(moments_ns) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(moments_ns) - 1)
    nearer: np.ndarray = np.where(
        np.abs(moments_ns[before] - wanted_ns) <= np.abs(moments_ns[after] - wanted_ns), before, after
    )
    return nearer
