"""A job's table of work by node counts: what its site says, else what was seen, and a model between and below that.

The unit is GPU-equivalents: a job on the most nodes on which it was seen does as much work in a second as it has GPUs
there, and on fewer nodes that share of it which its steps per second have. The global batch stays the same when a job
moves, so its steps compare; the steps of two jobs do not, and floating-point operations are not in the telemetry, so
a GPU at the pace of its own job counts the same in all jobs. What a job is worth beyond that is its weight.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.recovery.allocation.megatron import Machine, Transformer, model_throughput
from planner.recovery.allocation.throughput import Sample, calibrate, tabulate
from planner.recovery.facts import Layout

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
    is_told: bool = False  # the site's own figures, in a unit of its own
    reason: str = "nothing is known of its work by nodes"


def find_rates(runs: Sequence[Run], troubled: Sequence[Stretch], known: Known, held: int, gpus: int) -> Rates:
    """Return the table of a job that holds so many nodes and GPUs now; empty where nothing is known.

    `troubled` are the times of its incidents: steps that touch them say nothing of the pace.
    """
    if known.throughput:
        counts = ", ".join(map(str, sorted(known.throughput)))
        return Rates(dict(known.throughput), is_told=True, reason=f"told by the settings for {counts} nodes")
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
