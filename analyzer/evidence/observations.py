"""Evidence: what is known of parts beside delays, as bounded log odds that tilt a choice and never make it alone."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.windows.columns import filled
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.verdict import Side

MOST = (
    3.0  # all evidence together makes a part at most twenty times likelier: counters are wrong in ways we do not know
)


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation about one part."""

    component: str
    weight: float  # logarithm of how much likelier it is seen when the part is at fault than when it is not
    facts: dict[str, Any]  # Any: each kind of evidence has its own figures
    side: Side | None = None  # the direction that it speaks of; None: both
    is_down: bool = False  # the part carries nothing at all


@dataclass(frozen=True)
class Evidence:
    """All evidence of one evaluation, by component."""

    by_component: dict[str, tuple[Observation, ...]] = field(default_factory=dict)

    def log_odds(self, component: str, side: Side | None = None) -> float:
        """Return the weight of all evidence of a part, for one direction or for any; 0 where there is none."""
        total = sum(observation.weight for observation in self._of(component, side))
        return min(max(total, -MOST), MOST)

    def describe(self, component: str, side: Side | None = None) -> tuple[dict[str, Any], ...]:
        """Return what was seen of a part, the weightiest first."""
        evidence = sorted(self._of(component, side), key=lambda observation: -abs(observation.weight))
        return tuple({**observation.facts, "weight": round(observation.weight, 2)} for observation in evidence)

    @cached_property
    def down(self) -> frozenset[str]:
        """Return the parts that carry nothing at all; what they did before, others have to do."""
        evidence = (observation for each in self.by_component.values() for observation in each)
        return frozenset(observation.component for observation in evidence if observation.is_down)

    def _of(self, component: str, side: Side | None) -> Iterator[Observation]:
        evidence = self.by_component.get(component, ())
        return (
            observation for observation in evidence if None in (side, observation.side) or observation.side == side
        )


NO_EVIDENCE = Evidence()


def gather_evidence(evidence: Iterable[Observation]) -> Evidence:
    """Return the evidence by component."""
    found: dict[str, list[Observation]] = {}
    for observation in evidence:
        found.setdefault(observation.component, []).append(observation)
    return Evidence({component: tuple(each) for component, each in found.items()})


# Switch ports are read every ten seconds, so that an evaluation of a few seconds may hold no reading at all.
SLACK_NS = 15 * NS_PER_S
BACK_NS = 75 * NS_PER_S  # from here to SLACK_NS before the evaluation is what was usual
_LEAST = 10  # what grows by less is a hiccup of a healthy link
_TIMES_BEFORE = 3.0  # a counter that runs at the same pace since long says nothing new
_TIMES_PEERS = 10.0  # what grows everywhere is how this fabric works, not a fault
_FEWEST_PEERS = 4  # fewer, and the median is one of the suspects itself


@dataclass(frozen=True)
class Growth:
    """What one counter did on each port, GPU or host, in parallel arrays."""

    now: np.ndarray  # by how much it grew in the evaluation, and shortly before
    strength: np.ndarray  # 0: as everywhere; 0.5: more than elsewhere; 1: more than elsewhere, and than before


def timestamps(context: Context, slack_ns: int = SLACK_NS) -> dict[str, int]:
    """Return the parameters of a query for readings: where usual ends and now begins, the window, the outer ends."""
    start = context.window.start_ns
    return {"back": start - BACK_NS, "turn": start - slack_ns, "start": start, "end": context.window.end_ns}


def readings_sql(counters: Sequence[str]) -> str:
    """Return the columns of a query that hold some counters at four moments: the ends of what was usual, and of now.

    All of them in one tuple a moment: an engine takes longer to plan a query of fifty columns than to answer it.
    """
    row = f"tuple({', '.join(f'toInt64(ifNull({counter}, 0))' for counter in counters)})"
    earlier, later = "ts_ns < {turn:Int64}", "ts_ns >= {turn:Int64}"
    return (
        f"argMax({row}, ts_ns) AS last, argMinIf({row}, ts_ns, {later}) AS first_now, "
        f"argMaxIf({row}, ts_ns, {earlier}) AS last_before, argMinIf({row}, ts_ns, {earlier}) AS first"
    )


SPANS_SQL = (
    "greatest(max(ts_ns) - maxIf(ts_ns, ts_ns < {turn:Int64}), 0) AS now_ns, "
    "maxIf(ts_ns, ts_ns < {turn:Int64}) - minIf(ts_ns, ts_ns < {turn:Int64}) AS before_ns, "
    "countIf(ts_ns < {turn:Int64}) AS readings_before"
)


def read_growth(rows: pa.Table, counter: int, least: float = _LEAST) -> Growth:
    """Return how a counter grew in each row, as `readings_sql` and `SPANS_SQL` asked for it; the first one is 0."""
    now, before = count_growth(rows, counter)
    now_ns, before_ns = numbers(rows, "now_ns"), numbers(rows, "before_ns")
    usual = np.divide(before * now_ns, before_ns, out=np.zeros(len(now)), where=before_ns > 0)
    is_new = (numbers(rows, "readings_before") > 1) & (now > _TIMES_BEFORE * usual + least)
    peers = float(np.median(now)) if len(now) >= _FEWEST_PEERS else 0.0
    stands_out = (now >= least) & (now > _TIMES_PEERS * peers)
    return Growth(now, np.where(stands_out, np.where(is_new, 1.0, 0.5), 0.0))


def count_growth(rows: pa.Table, counter: int) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much a counter grew now, and in what was usual.

    The growth now counts from the last reading before it, where there is one. A counter that begins anew, as after a
    reboot, has not grown.
    """
    last, first_now, last_before, first = (
        np.asarray(pc.struct_field(rows[timestamp].combine_chunks(), counter)).astype(np.float64)
        for timestamp in ("last", "first_now", "last_before", "first")
    )
    since = np.where(numbers(rows, "readings_before") > 0, last_before, first_now)
    return np.maximum(last - since, 0.0), np.maximum(last_before - first, 0.0)


def numbers(rows: pa.Table, column: str) -> np.ndarray:
    """Return a column as numbers, 0 for what is unknown."""
    column_numbers: np.ndarray = filled(rows[column], 0).astype(np.float64)
    return column_numbers
