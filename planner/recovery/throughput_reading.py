"""Reads how fast jobs went on the node counts on which they ran: steps that were told or found, else their traffic.

An attempt runs on one set of nodes, so each attempt of a job, also under the names it had before a restart, is one
point of its table. Where no steps are stored, the operations that move the most bytes stand for steps: a gradient is
summed in as many buckets on few nodes as on many, so that their rate is in proportion to the steps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.clock import NS_PER_S
from lockstep.control.database import ControlDatabase
from lockstep.control.incidents import list_incidents
from lockstep.store.store import Store
from planner.recovery.allocation.calibration import Known, Rates, Run, Stretch, find_rates

_ATTEMPTS = """
SELECT job, attempt, uniqExact(host) AS nodes, uniqExact(host, gpu) AS gpus FROM comms
WHERE job IN {jobs:Array(String)} GROUP BY job, attempt ORDER BY job, attempt
"""
# All ranks take the same steps, so a few tell the pace; the analyzer writes those of a few only. What was told
# in-band goes before what was found: of an attempt with both, only the former is a step for sure.
_STEPS = """
SELECT job, attempt, source, step, min(start_ns) AS begin_ns FROM steps
WHERE job IN {jobs:Array(String)} AND start_ns >= {start:Int64}
    AND (source = 'period' OR world_rank < 8)
GROUP BY job, attempt, source, step
ORDER BY job, attempt, source DESC, step DESC LIMIT {most:UInt32} BY job, attempt, source
"""
_SECONDS = """
SELECT job, attempt, ts_ns, sum(n) / uniqExact(comm, rank) AS operations FROM op_stats
INNER JOIN (
    SELECT job, attempt, argMax((func, size_class), moved) AS dominant FROM (
        SELECT job, attempt, func, size_class, sum(bytes) AS moved FROM op_stats
        WHERE job IN {jobs:Array(String)} AND ts_ns >= {start:Int64} GROUP BY job, attempt, func, size_class
    ) GROUP BY job, attempt
) AS whole USING (job, attempt)
WHERE job IN {jobs:Array(String)} AND ts_ns >= {start:Int64} AND (func, size_class) = dominant
GROUP BY job, attempt, ts_ns ORDER BY job, attempt, ts_ns DESC LIMIT {most:UInt32} BY job, attempt
"""
_BACK_S = 14 * 86_400.0  # a job that ran differently before is another job by now
_TRAFFIC_BACK_S = 86_400.0  # every rank has rows for every second: a day of them is much
_MOST_STEPS = 256  # of an attempt: a median of more is no better
_KEEP_S = 60.0  # a table for; paces change slowly, and the store has other work
_ALIKE = 0.02  # of a rate: a median of steps is no steadier

Attempt = tuple[str, int]
Row = dict[str, Any]  # Any: values have the types of their columns


class PaceReader:
    """Answers with the table of a job, read again once a minute."""

    def __init__(self, store: Store | None, control: ControlDatabase) -> None:
        self._store, self._control = store, control
        self._kept: dict[tuple[str, ...], tuple[int, Rates]] = {}

    def rates_of(self, names: Sequence[str], known: Known, held: int, gpus: int, now_ns: int) -> Rates:
        """Return the table of a job by all names it has had, the newest first."""
        key = (*names, str(held))
        read_ns, rates = self._kept.get(key, (0, Rates()))
        if now_ns - read_ns >= _KEEP_S * NS_PER_S:
            runs = [] if self._store is None or known.throughput else read_runs(self._store, names, now_ns)
            fresh = find_rates(runs, self._find_troubled(names, now_ns), known, held, gpus)
            rates = rates if _is_alike(rates, fresh) else fresh
            self._kept[key] = (now_ns, rates)
        return rates

    def _find_troubled(self, names: Sequence[str], now_ns: int) -> list[Stretch]:
        found = [each for name in names for each in list_incidents(self._control, job=name)]
        return [(min(each.verdict.since_ns, each.opened_ns), each.closed_ns or now_ns) for each in found]


def read_runs(store: Store, names: Sequence[str], now_ns: int) -> list[Run]:
    """Return the pace of each attempt by its steps; where no attempt has any, by seconds of its traffic."""
    window = {"jobs": list(names), "start": max(now_ns - int(_BACK_S * NS_PER_S), 0), "most": _MOST_STEPS}
    rows = store.query(_ATTEMPTS, {"jobs": list(names)}).to_pylist()
    sizes = {(row["job"], row["attempt"]): (int(row["nodes"]), int(row["gpus"])) for row in rows}
    steps = store.query(_STEPS, window).to_pylist()
    if not steps:
        window["start"] = max(now_ns - int(_TRAFFIC_BACK_S * NS_PER_S), 0)
        seconds = _by_attempt(store.query(_SECONDS, window).to_pylist())
        return [_run_of_seconds(*sizes[key], each) for key, each in seconds.items() if key in sizes]
    return [_run_of_steps(*sizes[key], each) for key, each in _by_attempt(steps).items() if key in sizes]


def _is_alike(before: Rates, after: Rates) -> bool:
    """Return whether a table says the same as the one before, so that plans made with it stay good."""
    if before.by_nodes.keys() != after.by_nodes.keys() or before.reason != after.reason:
        return False
    return all(abs(before.by_nodes[count] - rate) <= _ALIKE * rate for count, rate in after.by_nodes.items())


def _by_attempt(rows: Sequence[Row]) -> dict[Attempt, list[Row]]:
    """Return the rows of each attempt; of two sources only those of the one that comes first."""
    found: dict[Attempt, list[Row]] = {}
    for row in rows:
        mine = found.setdefault((row["job"], row["attempt"]), [])
        if not mine or mine[0].get("source") == row.get("source"):
            mine.append(row)
    return found


def _run_of_steps(nodes: int, gpus: int, rows: Sequence[Row]) -> Run:
    """Return the pieces from the begin of one step to that of the next."""
    ordered = sorted(rows, key=lambda row: int(row["step"]))
    number = np.array([row["step"] for row in ordered], np.int64)
    start_ns = np.array([row["begin_ns"] for row in ordered], np.int64)
    begin_ns, end_ns = start_ns[:-1], start_ns[1:]
    is_next = (np.diff(number) == 1) & (end_ns > begin_ns)
    begin_ns, end_ns = begin_ns[is_next], end_ns[is_next]
    return Run(nodes, gpus, begin_ns, end_ns, NS_PER_S / (end_ns - begin_ns))


def _run_of_seconds(nodes: int, gpus: int, rows: Sequence[Row]) -> Run:
    begin_ns = np.array([row["ts_ns"] for row in rows], np.int64)
    return Run(nodes, gpus, begin_ns, begin_ns + NS_PER_S, np.array([row["operations"] for row in rows], float))
