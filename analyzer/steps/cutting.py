"""A rank's operations cut into steps, and what it did outside of any step.

A step begins when the one before it has ended: its first pause is its own. What a rank waits for beyond that, for a
checkpoint, an evaluation or a first iteration that tunes kernels, is a stretch off the period and no slow step. A
single step of more than twice the usual length is such a stretch; where such steps follow each other the job is slow.

Cost: O(operations), plus the length of a step for each place where one could begin and does not.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from analyzer.steps.periods import Period
from analyzer.steps.traffic import Witness

_SAME = 0.9  # of the operations of a step agree with the signature; single rows get lost
_DOMINANT = 3.0  # times the next longest: then it is the host's wait for the step before, and no jitter
OFF_PERIOD = 0.1  # of a step: less is the jitter of its beginning
_LONG = 2.0  # times the usual length: not noise, and not a slowdown unless it stays
_TELLING = 6  # steps whose middle is the usual length even where two of them are long
_ODD_IN_A_ROW = 2  # first iterations come in pairs; three long steps are a slow job

Sign = Literal["host", "pause", "words"]


@dataclass(frozen=True)
class Signature:
    """What a step of one rank looks like."""

    words: np.ndarray
    pause_ns: int  # usual time before its first operation in which the rank had nothing under way
    sign: Sign  # what tells its beginning: the words alone, or that the host asks for nothing or the rank pauses
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
    rest: int = 0  # operations after the last step

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def period_ns(self) -> int | None:
        """Return the usual length of a step; None without one."""
        usual = (self.end_ns - self.start_ns)[~self.is_odd]
        return int(np.median(usual)) if len(usual) else None


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
    told_by = idle if lag > 1 and _stands_out(idle) else pauses
    begin = int(np.argmax(told_by))
    place = first + begin if first + begin + lag <= len(words) else first + begin - lag
    signature = words[place : place + lag]
    sign: Sign = "words" if _is_unlike_itself(signature) else "host" if told_by is idle else "pause"
    return Signature(signature, int(pauses[begin]), sign, int(told_by[begin]))


def cut(witness: Witness, signature: Signature, usual_ns: int | None = None) -> Steps:
    """Return the steps among a rank's operations; what fits no step is off the period.

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
    rest = len(witness) - (int(begins[-1]) + lag if len(begins) else 0)
    steps = Steps(
        witness.process,
        starts,
        ends,
        bytes=totals[begins + lag] - totals[begins],
        is_odd=_find_odd(ends - starts, usual_ns),
        rest=rest,
    )
    return _set_apart(steps, opening, usual_ns)


def _by_phase(times: np.ndarray, first: int, lag: int) -> np.ndarray:
    """Return the usual time at each place of a step, counted from one that begins at `first`."""
    phases = (np.arange(len(times)) - first) % lag
    phases[0] = lag  # what was before the first operation is unknown
    order = np.argsort(phases, kind="stable")
    borders = np.searchsorted(phases[order], np.arange(lag + 1))
    return np.array([np.median(times[order[low:high]]) for low, high in pairwise(borders)])


def _stands_out(times: np.ndarray) -> bool:
    second, longest = np.sort(times)[-2:]
    return bool(longest > _DOMINANT * second)


def _is_unlike_itself(words: np.ndarray) -> bool:
    """Return whether a step looks different from one that is read from another operation on."""
    turned = (np.roll(words, by) for by in range(1, len(words)) if words[-by] == words[0])
    return all(np.mean(other == words) < _SAME for other in turned)


def _find_begins(witness: Witness, signature: Signature) -> np.ndarray:
    words, lag = witness.words, len(signature.words)
    begins, free_from = [], 0
    for place in np.flatnonzero(words[: max(len(words) - lag + 1, 0)] == signature.words[0]).tolist():
        if place >= free_from and _begins_at(witness, signature, place):
            begins.append(place)
            free_from = place + lag
    return np.array(begins, np.int64)


def _begins_at(witness: Witness, signature: Signature, place: int) -> bool:
    span = slice(place, place + len(signature.words))
    if np.mean(witness.words[span] == signature.words) < _SAME:
        return False
    if signature.sign == "words":
        return True
    times = (witness.idle_ns if signature.sign == "host" else witness.gap_ns)[span]
    within = times[1:].max(initial=0)
    # Nobody knows what was before the first operation; it begins a step if none begins right after it.
    return bool(within < signature.sign_ns / 2) if place == 0 else bool(times[0] >= within)


def _set_apart(steps: Steps, opening: np.ndarray, usual_ns: int | None) -> Steps:
    """Return the steps with the pauses before them taken off where they are no part of a step."""
    ends = steps.end_ns
    starts = np.where(steps.is_odd, np.maximum(steps.start_ns, np.minimum(opening, ends)), steps.start_ns)
    still_odd = _find_odd(ends - starts, usual_ns) & steps.is_odd
    between = list(zip(ends[:-1].tolist(), starts[1:].tolist(), strict=True))
    long_steps = list(zip(starts[still_odd].tolist(), ends[still_odd].tolist(), strict=True))
    worth = OFF_PERIOD * float(np.median(ends - starts)) if len(starts) else 0.0
    stretches = sorted(stretch for stretch in between + long_steps if stretch[1] - stretch[0] > worth)
    return replace(steps, start_ns=starts, is_odd=still_odd, off_period=tuple(stretches))


def _find_odd(lengths: np.ndarray, usual_ns: int | None) -> np.ndarray:
    """Return which steps are long without being one of a row of long ones."""
    if not len(lengths):
        return np.zeros(0, bool)
    usual = np.median(lengths)
    if len(lengths) < _TELLING:  # the first of a job, of which half may be long, or a few after a pause
        usual = np.quantile(lengths, 0.25) if usual_ns is None else usual_ns
    is_long: np.ndarray = lengths > _LONG * usual
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_long, [False]]).astype(int)))
    for begin, end in edges.reshape(-1, 2).tolist():
        if end - begin > _ODD_IN_A_ROW:
            is_long[begin:end] = False
    return is_long
