"""After how many operations a rank begins again: the shortest period of what it does and of when it pauses.

A step repeats the same operations with the same pauses between them. For a lag P, two shares are added: of the
operations that differ from the one P later, and of the time by which the pauses before them differ. At the true
period, and at its multiples, both are noise. The pauses are needed where all operations look alike: four equal
buckets are one step when every fourth has the compute time in front of it.

Candidates are not all lags, but the distances between an operation and its m-th next of the same kind, for the
rarest kinds: an operation that a step does m times comes again after exactly one step.

Cost: O(candidates x operations), at most 6 x 64 candidates. Reference: periods by autocorrelation as in Greyhound
(ATC'25), here over words and pauses instead of rates.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from analyzer.steps.traffic import Witness

MOST_PER_STEP = 64  # of one kind; a step that does its rarest operation more often is not found
_RARE_KINDS = 5
_FEWEST_ROUNDS = 3  # twice is chance; a third time is a period
_NEARLY_BEST = 1.5  # a shorter lag is as good up to this factor: noise of the larger one is averaged more
_SLACK = 0.05  # and up to this share: checkpoints every few steps differ by that, and are no longer step
_REGULAR = 0.2  # of a kind may fail to come again: rows get lost, and steps are disturbed
_WORST = 0.45  # more than that different, and there is no period; moe and pipelines with stragglers reach 0.2
_ALIKE = 0.9  # of the operations come again after a period: else nothing can be said of the pauses
_CELLS = 1 << 16  # operations that are compared at once: steps have from one to many thousands
_LONG_PAUSE = 1.5  # times the usual long pause: a checkpoint between steps; counted as long, not as that long


@dataclass(frozen=True, slots=True)
class Period:
    """A period in operations, and how much differs from one round to the next."""

    operations: int
    mismatch: float  # share, 0 to 1
    since: int = 0  # place of the first operation that was looked at


def find_period(words: np.ndarray, gap_ns: np.ndarray, span_ns: int) -> Period | None:
    """Return the shortest period of a list of operations; None where nothing repeats three times.

    Two mixes of operations one after the other repeat after the product of their periods: a shorter period of the
    newer half, should it have one, is what holds now.

    >>> words, gaps = np.array([0, 1, 1] * 5), np.array([900, 0, 0] * 5)
    >>> find_period(words, gaps, 5000)
    Period(operations=3, mismatch=0.0, since=0)
    """
    whole = _find_shortest(words, gap_ns, span_ns)
    half = len(words) // 2
    if whole and half < _FEWEST_ROUNDS * whole.operations:
        return whole
    newer = _find_shortest(words[half:], gap_ns[half:], span_ns // 2) if half else None
    if newer is None:
        return whole
    is_better = whole is None or newer.mismatch <= _NEARLY_BEST * whole.mismatch + _SLACK
    return replace(newer, since=half) if is_better else whole


def _find_shortest(words: np.ndarray, gap_ns: np.ndarray, span_ns: int) -> Period | None:
    pauses = _without_outliers(gap_ns)
    usual = _find_usual(pauses, gap_ns, span_ns)
    lags = [lag for lag in _candidates(words) if lag * _FEWEST_ROUNDS <= len(words)]
    missing = _measure_rare(words, lags)
    found = [Period(lag, measure(words, pauses, usual, lag) + missing[lag]) for lag in lags]
    best = min((period.mismatch for period in found), default=1.0)
    if best > _WORST:
        return None
    return min(
        (period for period in found if period.mismatch <= _NEARLY_BEST * best + _SLACK),
        key=lambda period: period.operations,
    )


def measure(words: np.ndarray, pauses: np.ndarray, usual_ns: float, lag: int) -> float:
    """Return which share of operations and time differs from what comes `lag` operations later."""
    pairs = len(words) - lag
    other = float(np.count_nonzero(words[lag:] != words[:-lag])) / pairs
    # The first pause of all is unknown, not zero.
    apart = float(np.abs(pauses[lag + 1 :] - pauses[1:-lag]).sum()) / max(pairs - 1, 1)
    return other + apart / usual_ns


def still_holds(words: np.ndarray, gap_ns: np.ndarray, span_ns: int, lag: int) -> bool:
    """Return whether pauses come again after `lag` operations, where the operations do.

    A period that was found in the burst of one step, in which all operations look alike, has no pauses: the next
    step begins with one. Where the operations themselves differ, the job does something else, and that tells nothing.
    """
    if len(words) < _FEWEST_ROUNDS * lag + 1:
        return True
    pauses = _without_outliers(gap_ns)
    is_same = words[lag:] == words[:-lag]
    if is_same.mean() < _ALIKE:
        return True
    apart = np.abs(pauses[lag + 1 :] - pauses[1:-lag])[is_same[1:]]
    return float(apart.mean()) <= _WORST * _find_usual(pauses, gap_ns, span_ns)


def _measure_rare(words: np.ndarray, lags: list[int]) -> dict[int, float]:
    """Return for each lag the largest share of a rare kind of operation that does not come again after it.

    Layers repeat many times in a step, and what a step does once is lost among them; but without it, it is no step.
    Kinds that come again after no lag at all are something else: sizes that differ, an evaluation.
    """
    kinds, counts = np.unique(words, return_counts=True)
    rare = kinds[np.argsort(counts, kind="stable")][np.sort(counts) >= _FEWEST_ROUNDS][:_RARE_KINDS]
    worst = dict.fromkeys(lags, 0.0)
    for kind in rare:
        indexes = words == kind
        gone = {
            lag: 1 - np.count_nonzero(indexes[lag:] & indexes[:-lag]) / max(indexes[:-lag].sum(), 1) for lag in lags
        }
        if min(gone.values(), default=1.0) <= _REGULAR:
            worst = {lag: max(worst[lag], float(gone[lag])) for lag in lags}
    return worst


def _find_usual(pauses: np.ndarray, gap_ns: np.ndarray, span_ns: int) -> float:
    """Return the time from one operation to the next, the longest pauses shortened."""
    return float(max(span_ns - int((gap_ns - pauses).sum()), 1)) / max(len(pauses), 1)


def _without_outliers(gap_ns: np.ndarray) -> np.ndarray:
    """Return the pauses with single very long ones shortened: a checkpoint must not outweigh all steps."""
    if len(gap_ns) < 4:
        return gap_ns.astype(np.float64)
    ordered = np.sort(gap_ns)[::-1]
    rest = ordered[max(1, len(ordered) // 200) :]  # one in two hundred may be anything
    weight = np.cumsum(rest)
    usual_long = rest[int(np.searchsorted(weight, weight[-1] / 2))]  # half of the paused time is in longer ones
    shortened: np.ndarray = np.minimum(gap_ns, max(_LONG_PAUSE * usual_long, 1.0)).astype(np.float64)
    return shortened


def _candidates(words: np.ndarray) -> list[int]:
    kinds, counts = np.unique(words, return_counts=True)
    order = np.argsort(counts, kind="stable")
    often = order[counts[order] >= _FEWEST_ROUNDS]
    lags: set[int] = set()
    for kind in {*often[:_RARE_KINDS].tolist(), *often[-1:].tolist()}:
        indexes = np.flatnonzero(words == kinds[kind])
        for nth in range(1, min(MOST_PER_STEP, len(indexes) - 2) + 1):
            lags.add(int(np.median(indexes[nth:] - indexes[:-nth])))
    return sorted(lags - {0})


_SAME = 0.9  # of the operations of a step agree with the signature; single rows get lost
_DOMINANT = 3.0  # times the next longest: then it is the host's wait for the step before, and no jitter
OFF_PERIOD = 0.1  # of a step: less is the jitter of its beginning
_LAYER = 4  # operations of a layer at most: gathered and scattered twice; more of them that repeat are a step
_LONG = 2.0  # times the usual length: not noise, and not a slowdown unless it stays
_ENOUGH_STEPS = 6  # steps whose middle is the usual length even where two of them are long
_ODD_IN_A_ROW = 2  # first iterations come in pairs; three long steps are a slow job
_NOTHING_LOST = np.zeros(0, np.int64)

Observation = Literal["host", "pause", "words"]


@dataclass(frozen=True)
class Signature:
    """What a step of one rank looks like."""

    words: np.ndarray
    pause_ns: int  # usual time before its first operation in which the rank had nothing under way
    observation: (
        Observation  # what tells its beginning: the words alone, or that the host asks for nothing or the rank pauses
    )
    sign_ns: int = 0  # for how long, usually


@dataclass(frozen=True)
class Steps:
    """Steps of one rank in order, in parallel arrays, and the stretches between them."""

    process: int
    start_ns: np.ndarray
    end_ns: np.ndarray
    bytes: np.ndarray  # that NCCL counts in each
    is_odd: np.ndarray  # bool, long because of something that is no step
    off_period: tuple[tuple[int, int], ...] = ()  # begin and end of what is no step

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def period_ns(self) -> int | None:
        """Return the usual length of a step; None without one."""
        usual = (self.end_ns - self.start_ns)[~self.is_odd]
        return int(np.median(usual)) if len(usual) else None


def choose_period(witness: Witness) -> Period | None:
    """Return the period of a rank's operations by its pauses, or by its host's where they show no step.

    Layers of a tensor-parallel job look alike and follow each other without a pause, so any number of them repeats:
    only the host, which waits for the end of each step, tells how many are one. Where it does not, nobody knows.
    """
    period = find_period(witness.words, witness.gap_ns, witness.span_ns)
    if period is None or _is_seen_to_begin(witness.since(period.since), period.operations):
        return period
    asked = find_period(witness.words, witness.idle_ns, int(np.ptp(witness.enqueue_ns)))
    return asked if asked and asked.operations > min(period.operations, _LAYER) else None


def _is_seen_to_begin(witness: Witness, lag: int) -> bool:
    """Return whether a round is no mere layer, and either its operations differ or a pause in it is no jitter."""
    if lag > _LAYER and len(np.unique(witness.words[:lag])) > 1:
        return True
    length_ns = np.median(witness.start_ns[lag:] - witness.start_ns[:-lag])
    return bool(_by_phase(witness.gap_ns, 0, lag).max() >= OFF_PERIOD * length_ns)


def learn_signature(witness: Witness, period: Period) -> Signature | None:
    """Return what a step looks like where two follow each other undisturbed.

    It begins where the host asks for nothing for longest: it waits there for the step before. A host that runs
    ahead has no such place; then it begins after the longest pause.
    """
    witness = witness.since(period.since)
    lag, words = period.operations, witness.words
    is_same = np.concatenate([words[lag:] == words[:-lag], np.zeros(lag, bool)])
    alike = np.cumsum(np.concatenate([[0], is_same]))
    begins = np.flatnonzero(alike[lag:] - alike[:-lag] >= _SAME * lag)
    if not len(begins):
        return None
    first = int(begins[len(begins) // 2])  # from the middle: the first rounds are the least typical
    idle, pauses = (_by_phase(times, first, lag) for times in (witness.idle_ns, witness.gap_ns))
    second, longest = np.sort(idle)[-2:] if lag > 1 else (0.0, 0.0)
    gaps = idle if longest > _DOMINANT * second else pauses
    begin = int(np.argmax(gaps))
    index = first + begin if first + begin + lag <= len(words) else first + begin - lag
    signature = words[index : index + lag]
    observation: Observation = "words" if _is_unlike_itself(signature) else "host" if gaps is idle else "pause"
    return Signature(signature, int(pauses[begin]), observation, int(gaps[begin]))


def cut(
    witness: Witness, signature: Signature, usual_ns: int | None = None, lost_ns: np.ndarray = _NOTHING_LOST
) -> Steps:
    """Return the steps among a rank's operations; what fits no step is off the period.

    Steps of which nobody saw the begin or the end, or in which operations are missing, are none: their lengths would
    be made up; `lost_ns` are the times before which some are missing.
    `usual_ns` is the length of a step as far as it is known; a few steps, one of them long, do not tell it.
    """
    begins = _find_begins(witness, signature)
    lag = len(signature.words)
    busy_until = np.maximum.accumulate(witness.end_ns)
    ends = busy_until[begins + lag - 1]
    opening = witness.start_ns[begins] - signature.pause_ns
    follows = begins > 0
    follows[1:] &= begins[1:] == begins[:-1] + lag
    starts = np.where(follows, busy_until[begins - 1], opening)
    totals = np.concatenate([[0], np.cumsum(witness.bytes)])
    steps = Steps(
        witness.process,
        starts,
        ends,
        bytes=totals[begins + lag] - totals[begins],
        is_odd=_find_odd(ends - starts, usual_ns),
    )
    unseen = witness.untimed[begins + lag - 1] | witness.untimed[np.where(follows, begins - 1, begins)]
    unseen |= _count_between(lost_ns, witness.enqueue_ns[begins], witness.enqueue_ns[begins + lag - 1]) > 0
    holes_ns = np.sort(np.concatenate([witness.enqueue_ns[witness.untimed], lost_ns]))
    return _leave_out(_set_apart(steps, opening, usual_ns), unseen, holes_ns)


def _by_phase(times: np.ndarray, first: int, lag: int) -> np.ndarray:
    """Return the usual time at each place of a step, counted from one that begins at `first`."""
    phases = (np.arange(len(times)) - first) % lag
    phases[0] = lag  # what was before the first operation is unknown
    order = np.argsort(phases, kind="stable")
    borders = np.searchsorted(phases[order], np.arange(lag + 1))
    return np.array([np.median(times[order[low:high]]) for low, high in pairwise(borders)])


def _is_unlike_itself(words: np.ndarray) -> bool:
    """Return whether a step looks different from one that is read from another operation on."""
    turned = (np.roll(words, by) for by in range(1, len(words)) if words[-by] == words[0])
    return all(np.mean(other == words) < _SAME for other in turned)


def find_rest(witness: Witness, signature: Signature) -> Witness:
    """Return the operations after the last step."""
    begins = _find_begins(witness, signature)
    return witness.since(int(begins[-1]) + len(signature.words) if len(begins) else 0)


def _find_begins(witness: Witness, signature: Signature) -> np.ndarray:
    """Return where steps begin, none inside another."""
    words, lag = witness.words, len(signature.words)
    indexes = np.flatnonzero(words[: max(len(words) - lag + 1, 0)] == signature.words[0])
    begins, free_from, at_once = [], 0, max(_CELLS // lag, 1)
    for number in range(0, len(indexes), at_once):
        part = indexes[number : number + at_once]
        part = part[part >= free_from]
        for index in part[_are_begins(witness, signature, part)].tolist():
            if index >= free_from:
                begins.append(index)
                free_from = index + lag
    return np.array(begins, np.int64)


def _are_begins(witness: Witness, signature: Signature, indexes: np.ndarray) -> np.ndarray:
    """Return at which operations a step may begin. Cost: O(indexes x operations of a step)."""
    lag = len(signature.words)
    spans = indexes[:, None] + np.arange(lag)
    is_same: np.ndarray = np.count_nonzero(witness.words[spans] == signature.words, axis=1) / lag >= _SAME
    if signature.observation == "words":
        return is_same
    times = (witness.idle_ns if signature.observation == "host" else witness.gap_ns)[spans]
    within = times[:, 1:].max(axis=1, initial=0)
    # Nobody knows what was before the first operation; it begins a step if none begins right after it.
    begins: np.ndarray = is_same & np.where(indexes == 0, within < signature.sign_ns / 2, times[:, 0] >= within)
    return begins


def _set_apart(steps: Steps, opening: np.ndarray, usual_ns: int | None) -> Steps:
    """Return the steps with the pauses before them taken off where they are no part of a step."""
    starts, ends, still_odd = steps.start_ns, steps.end_ns, steps.is_odd
    if still_odd.any():
        starts = np.where(steps.is_odd, np.maximum(steps.start_ns, np.minimum(opening, ends)), steps.start_ns)
        still_odd = _find_odd(ends - starts, usual_ns) & steps.is_odd
    between = list(zip(ends[:-1].tolist(), starts[1:].tolist(), strict=True))
    long_steps = list(zip(starts[still_odd].tolist(), ends[still_odd].tolist(), strict=True))
    worth = OFF_PERIOD * float(np.median(ends - starts)) if len(starts) else 0.0
    stretches = sorted(stretch for stretch in between + long_steps if stretch[1] - stretch[0] > worth)
    return replace(steps, start_ns=starts, is_odd=still_odd, off_period=tuple(stretches))


def _leave_out(steps: Steps, unseen: np.ndarray, holes_ns: np.ndarray) -> Steps:
    """Return the steps that were seen, and the stretches in which no operation went unseen."""
    if not len(holes_ns):
        return steps
    stretches = np.array(steps.off_period, np.int64).reshape(-1, 2)
    kept = stretches[_count_between(holes_ns, *stretches.T) == 0].tolist()
    columns = {name: getattr(steps, name)[~unseen] for name in ("start_ns", "end_ns", "bytes", "is_odd")}
    return replace(steps, **columns, off_period=tuple((begin, end) for begin, end in kept))


def _count_between(timestamps_ns: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Return how many timestamps, which are in order, lie in each stretch, its ends included."""
    between: np.ndarray = np.searchsorted(timestamps_ns, end_ns, "right") - np.searchsorted(timestamps_ns, begin_ns)
    return between


def _find_odd(lengths: np.ndarray, usual_ns: int | None) -> np.ndarray:
    """Return which steps are long without being one of a row of long ones."""
    if not len(lengths):
        return np.zeros(0, bool)
    usual = np.median(lengths)
    if len(lengths) < _ENOUGH_STEPS:  # the first of a job, of which half may be long, or a few after a pause
        usual = np.quantile(lengths, 0.25) if usual_ns is None else usual_ns
    is_long: np.ndarray = lengths > _LONG * usual
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_long, [False]]).astype(int)))
    for begin, end in edges.reshape(-1, 2).tolist():
        if end - begin > _ODD_IN_A_ROW:
            is_long[begin:end] = False
    return is_long
