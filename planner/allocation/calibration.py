"""A job's table of work by node counts: what its site says, else what was seen, and a model between and below that.

The unit is GPU-equivalents: a job on the most nodes on which it was seen does as much work in a second as it has GPUs
there, and on fewer nodes that share of it which its steps per second have. The global batch stays the same when a job
moves, so its steps compare; the steps of two jobs do not, and floating-point operations are not in the telemetry, so
a GPU at the pace of its own job counts the same in all jobs. What a job is worth beyond that is its weight.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.clock import NS_PER_S
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import list_incidents
from lockstep.store.store import Store
from planner.allocation.throughput import Machine, Sample, Transformer, calibrate, model_throughput, tabulate
from planner.context import Layout

Stretch = tuple[int, int]  # from, to, in nanoseconds


@dataclass(frozen=True)
class Run:
    """The pace of one attempt on the nodes that it had, piece by piece."""

    nodes: int
    gpus: int
    begin_ns: np.ndarray
    end_ns: np.ndarray
    per_s: np.ndarray  # steps, or what stands for them, in each piece


@dataclass(frozen=True, slots=True)
class Known:
    """What a site says of a job, from which a model follows."""

    throughput: Mapping[int, float] = field(default_factory=dict)
    layout: Layout | None = None
    transformer: Transformer | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """Work a second by nodes, and where each figure is from."""

    by_nodes: Mapping[int, float] = field(default_factory=dict)
    seen: frozenset[int] = frozenset()  # counts whose figure is the median of what telemetry saw
    is_configured: bool = False  # the site's own figures, in a unit of its own
    reason: str = "nothing is known of its work by nodes"


def find_rates(runs: Sequence[Run], troubled: Sequence[Stretch], known: Known, held: int, gpus: int) -> Rates:
    """Return the table of a job that holds so many nodes and GPUs now; empty where nothing is known.

    `troubled` are the times of its incidents: steps that touch them say nothing of the pace.
    """
    if known.throughput:
        counts = ", ".join(map(str, sorted(known.throughput)))
        return Rates(dict(known.throughput), is_configured=True, reason=f"set in the settings for {counts} nodes")
    samples = [sample for run in runs for sample in find_pace(run, troubled)]
    most = max([held, *(run.nodes for run in runs)], default=0)
    gpus_each = max(gpus // held if held else 0, *(run.gpus // run.nodes for run in runs if run.nodes), 1)
    seen = {sample.nodes for sample in samples}
    if most < 1 or not (seen or known.layout or known.transformer):
        return Rates()
    model, shape = _model(known, gpus_each, range(1, most + 1))
    return _join(samples, model, shape, gpus_each, most)


def find_pace(run: Run, troubled: Sequence[Stretch]) -> list[Sample]:
    """Return the steps per second of an attempt, one sample for each piece that no incident touches."""
    is_calm = np.isfinite(run.per_s) & (run.per_s > 0)
    for since_ns, until_ns in troubled:
        is_calm &= (run.end_ns <= since_ns) | (run.begin_ns >= until_ns)
    return [Sample(run.nodes, float(pace)) for pace in run.per_s[is_calm]]


def in_gpus(by_nodes: Mapping[int, float], held: int, gpus: int) -> dict[int, float]:
    """Return a table in another unit in GPU-equivalents: at the count that a job holds it is worth its GPUs.

    >>> in_gpus({2: 30.0, 4: 50.0}, held=4, gpus=32)
    {2: 19.2, 4: 32.0}
    """
    at = by_nodes.get(held) or 0.0
    return {count: rate * gpus / at for count, rate in by_nodes.items()} if at > 0 else dict(by_nodes)


def _model(known: Known, gpus_each: int, counts: Iterable[int]) -> tuple[dict[int, float], str]:
    """Return relative work by nodes, and the model's name in words."""
    if known.transformer:
        table = model_throughput(known.transformer, Machine(gpus=gpus_each), counts)
        return dict(zip(table.counts, table.rates, strict=True)), "the model of a transformer of its size"
    if known.layout:
        return _shape(known.layout, gpus_each, counts), f"the shape of a pipeline of {known.layout.stages} stages"
    return {count: float(count) for count in counts}, "proportion to the nodes"


def _shape(layout: Layout, gpus_each: int, counts: Iterable[int]) -> dict[int, float]:
    """Return steps per unit of time with whole replicas that share one batch, bubble included."""
    whole = (layout.micro_batches or 4 * layout.stages) * layout.replicas
    replicas = {count: count * gpus_each // (layout.tensor * layout.stages) for count in counts}
    return {
        count: 1 / (math.ceil(whole / each) + layout.stages - 1)
        for count, each in replicas.items()
        if 0 < each <= layout.replicas
    }


def _join(samples: Sequence[Sample], model: Mapping[int, float], shape: str, gpus_each: int, most: int) -> Rates:
    """Return the model bent through what was seen, in GPU-equivalents."""
    alone = tabulate(in_gpus(model, max(model, default=most), max(model, default=most) * gpus_each))
    bare = calibrate(samples, 1.0, alone)
    if not bare.measured:
        return Rates(dict(zip(alone.counts, alone.rates, strict=True)), reason=_say([], alone.counts, shape))
    widest = max(bare.measured)
    table = calibrate(samples, widest * gpus_each / bare.at(widest), alone)
    rates = dict(zip(table.counts, table.rates, strict=True))
    return Rates(rates, table.measured, reason=_say(sorted(table.measured), table.counts, shape))


def _say(seen: Sequence[int], counts: Sequence[int], shape: str) -> str:
    others = [count for count in counts if count not in seen]
    modelled = f"{shape} for {_name(others)} nodes" if others else ""
    if not seen:
        return f"nothing was seen of its pace: {modelled}"
    measured = f"measured on {_name(seen)} nodes"
    return f"{measured}, {modelled}, bent to go through it" if others else measured


def _name(counts: Sequence[int]) -> str:
    """Return counts in few words.

    >>> _name([1, 2, 3, 5])
    '1-3, 5'
    """
    spans: list[list[int]] = []
    for count in counts:
        if spans and count == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], count]
        else:
            spans.append([count])
    return ", ".join("-".join(map(str, span)) for span in spans)


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
            found = [each for name in names for each in list_incidents(self._control, job=name)]
            ill = [(min(each.verdict.since_ns, each.opened_ns), each.closed_ns or now_ns) for each in found]
            fresh = find_rates(runs, ill, known, held, gpus)
            rates = rates if _is_alike(rates, fresh) else fresh
            self._kept[key] = (now_ns, rates)
        return rates


def read_runs(store: Store, names: Sequence[str], now_ns: int) -> list[Run]:
    """Return the pace of each attempt by its steps; where no attempt has any, by seconds of its traffic.

    An attempt runs on one set of nodes, so each attempt of a job, also under the names it had before a restart, is
    one point of its table. Where no steps are stored, the operations that move the most bytes stand for steps: a
    gradient is summed in as many buckets on few nodes as on many, so that their rate is in proportion to the steps.
    """
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
