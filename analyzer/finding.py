"""What a stage says about one look at a job: a part, how likely it is the one, and why."""

from dataclasses import dataclass
from typing import Any

from lockstep.verdict import FaultClass, RuledOut, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One suspected fault in one look; incidents are made of findings that come again."""

    fault_class: FaultClass
    component: str
    side: Side | None = None
    likelihood: float  # of this part among all that could explain the same signs, 0 to 1
    reason: str  # one sentence a person can act on
    evidence: tuple[dict[str, Any], ...] = ()  # Any: each kind of evidence has its own figures
    ruled_out: tuple[RuledOut, ...] = ()
    ambiguous_with: tuple[str, ...] = ()
    ranks_waiting: int | None = None  # held up by the part; None: everybody else
    lost_share: float | None = None  # of the job's time, 0 to 1; None: the stage cannot tell
    since_ns: int | None = None  # when it began, where the stage knows better than the look
    cap: float = 1.0  # no verdict is surer than this: a transport or algorithm on which the method was never proven
    is_certain: bool = False  # true of a hang or an error: needs no second look to be told
    may_isolate: bool = False  # would justify draining a node, were it sure enough
