"""Whether everybody became slower at once, and no part is to blame: what peers cannot show, own history does.

A job that does other operations, or moves more bytes in each step, is slower by its own doing, and nothing is said.
"""

from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from analyzer.context import Context
from analyzer.finding import Finding
from analyzer.steps.history import Level, StepHistory, find_newest, judge_levels
from analyzer.steps.stage import StepMemory
from lockstep.clock import NS_PER_S
from lockstep.topology import host_name
from lockstep.verdict import RuledOut


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """When a slowdown of everybody is worth a word."""

    least_ratio: float = 1.10  # step time now over the usual: below that, nobody pays for looking into it
    fewest_steps: int = 3  # on the new level, as many as it takes to be told from outliers
    same_bytes: float = 0.05  # share by which bytes per step may differ before the job itself has changed
    likelihood: float = 0.9  # that a lasting change of level without a part at fault is the fabric's or the power's
    half_blind: float = 0.45  # the same where some hosts say nothing: the part may well be one of theirs


def find_global(memory: StepMemory, context: Context, options: GlobalOptions | None = None) -> list[Finding]:
    """Return a finding when the job is slower than usual; to be asked where no part was found that explains it."""
    options = options or GlobalOptions()
    history = memory.kind.history
    slow = _find_newest_slow(judge_levels(history, options.least_ratio))
    if not slow or find_newest(history) < options.least_ratio * slow[-1].usual_ns:
        return []
    since = slow[0].begin
    if not since or len(history) - since < options.fewest_steps or _moves_more(history, since, options):
        return []
    return [_say(history, since, slow[-1].usual_ns, context, options)]


def _find_newest_slow(levels: list[Level]) -> list[Level]:
    """Return the newest levels, in order, that are slower than usual without one at usual speed between them."""
    return list(reversed(list(takewhile(lambda level: level.is_slow, reversed(levels)))))


def _moves_more(history: StepHistory, since: int, options: GlobalOptions) -> bool:
    before, after = (float(np.median(part)) for part in (history.bytes[:since], history.bytes[since:]))
    return abs(after - before) > options.same_bytes * before


def _say(history: StepHistory, since: int, usual: float, context: Context, options: GlobalOptions) -> Finding:
    now = find_newest(history)
    now_s, usual_s = now / NS_PER_S, usual / NS_PER_S
    return Finding(
        fault_class="global_slow",
        component=f"job:{context.job}",
        likelihood=options.likelihood if context.coverage >= 1 else options.half_blind,
        reason=(
            f"all ranks became slower together: a step takes {now_s:.3g} s instead of {usual_s:.3g} s with the same "
            f"operations, and no part stands out; {_advise(context)}"
        ),
        evidence=(
            {
                "kind": "step_times",
                "usual_s": round(usual_s, 6),
                "now_s": round(now_s, 6),
                "ratio": round(now / usual, 3),
                "steps": len(history) - since,
                "bytes_per_step_before": int(np.median(history.bytes[:since])),
                "bytes_per_step_now": int(np.median(history.bytes[since:])),
            },
        ),
        ruled_out=(
            RuledOut(component=f"job:{context.job}", because="its steps do the same operations of the same sizes"),
        ),
        ambiguous_with=tuple(host_name(host) for host in sorted(context.silent)),
        ranks_waiting=0,
        lost_share=1 - usual / now,
        since_ns=int(history.start_ns[since]),
    )


def _advise(context: Context) -> str:
    if context.coverage < 1:
        return (
            f"{1 - context.coverage:.0%} of its hosts say nothing, and the part may be one of theirs: ask them first"
        )
    return "look at what the job shares with others: fabric, power, storage"
