"""How much work a job does in a second on so many nodes: measured where it ran, a model's shape where it did not.

The unit of work is the same for all jobs of a cluster, such as floating-point operations, so that weights compare
jobs and not units. Counts that are not in a table are those on which the job cannot run.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np

from lockstep.errors import BadInput

_FEWEST_SAMPLES = 3  # of a count: the median of fewer can be one stray step, such as one with a checkpoint in it


@dataclass(frozen=True)
class Throughput:
    """Work per second by node count; each count once, upwards, none below one node."""

    counts: tuple[int, ...]
    rates: tuple[float, ...]
    measured: frozenset[int] = frozenset()  # the counts that were seen; the others come from a model

    def __post_init__(self) -> None:
        """Refuse a table that contradicts itself."""
        ordered = tuple(sorted(set(self.counts)))
        if len(self.counts) != len(self.rates) or ordered != self.counts or (ordered and ordered[0] < 1):
            raise BadInput(f"a throughput table needs one rate for each count, counts upwards from 1: {self.counts}")
        if not all(np.isfinite(rate) and rate >= 0 for rate in self.rates):
            raise BadInput(f"a throughput table holds rates that are no numbers of 0 or more: {self.rates}")

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return counts and rates as arrays."""
        return np.array(self.counts, np.int64), np.array(self.rates, float)

    def at(self, count: int) -> float:
        """Return the work per second on so many nodes; 0 where the job cannot run on that many."""
        index = bisect_left(self.counts, count)
        return self.rates[index] if index < len(self.counts) and self.counts[index] == count else 0.0


class Sample(NamedTuple):
    """What telemetry saw: steps (or tokens) per second of a job on so many nodes."""

    nodes: int
    per_s: float


def tabulate(rates: Mapping[int, float], measured: Iterable[int] = ()) -> Throughput:
    """Return the table of rates by count.

    >>> tabulate({2: 1.9, 1: 1.0}).at(2)
    1.9
    """
    counts = tuple(sorted(rates))
    return Throughput(counts, tuple(float(rates[count]) for count in counts), frozenset(measured))


def calibrate(samples: Sequence[Sample], work_each: float, model: Throughput) -> Throughput:
    """Return a table with the median of what was seen, and between those counts the model bent to go through them.

    `work_each` is the work of one step (or token), in the unit of the model. What the job does over what the model
    says is taken as a ratio that changes linearly with the logarithm of the count, and as that of the nearest count
    seen outside of them. A count that the model holds impossible counts as possible once it was seen.
    """
    by_count: dict[int, list[float]] = {}
    for sample in samples:
        by_count.setdefault(sample.nodes, []).append(sample.per_s)
    seen = {
        count: work_each * median(values)
        for count, values in sorted(by_count.items())
        if len(values) >= _FEWEST_SAMPLES
    }
    anchors = [count for count in seen if model.at(count) > 0]
    if not anchors:
        return tabulate(dict(zip(model.counts, model.rates, strict=True)) | seen, seen)
    ratio = np.interp(
        np.log(model.counts), np.log(anchors), [seen[count] / model.at(count) for count in anchors]
    )  # np.interp holds the outermost values beyond the ends
    bent = dict(zip(model.counts, (np.array(model.rates) * ratio).tolist(), strict=True))
    return tabulate(bent | seen, seen)


_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Transformer:
    """A model and its batch."""

    parameters: float
    layers: int
    hidden: int
    sequence: int  # tokens
    global_batch: int  # sequences
    micro_batch: int = 1  # sequences

    @property
    def tokens(self) -> int:
        return self.global_batch * self.sequence

    @property
    def flop(self) -> float:
        """Return the work of one step: 6 operations per parameter and token, and the attention scores besides.

        Narayanan et al., arXiv 2104.04473, without the recomputation of activations.
        """
        return self.tokens * (6.0 * self.parameters + 12.0 * self.layers * self.hidden * self.sequence)


@dataclass(frozen=True, slots=True)
class Machine:
    """A node: what its GPUs and wires do at best, and how much of it a kernel gets."""

    gpus: int = 8
    flops: float = 312e12  # of a GPU, dense bf16; this and the next two are an A100-80G's, as in Unicron's testbed
    memory_gib: float = 80.0
    nvlink_bytes_s: float = 300e9  # of a GPU, one direction
    nic_bytes_s: float = 12.5e9  # of a GPU: four NICs of 200 Gbit/s among eight
    efficiency: float = 0.55  # of flops that large matrix products reach; calibrate() puts it right
    memory_share: float = 0.9  # what buffers and fragments leave


@dataclass(frozen=True, slots=True)
class Layout:
    """How a job is cut into pieces."""

    tp: int
    pp: int
    dp: int
    micro_batches: int  # of each replica in a step


def model_throughput(model: Transformer, machine: Machine, counts: Iterable[int]) -> Throughput:
    """Return floating-point operations per second on each count; those on which the model cannot run are left out.

    For each count the best of tensor (TP), pipeline (PP) and data parallelism (DP) is looked for: TP inside a node,
    PP that divides the layers, DP that divides the batch into whole micro-batches. The step is the compute, drawn out
    by the bubble of the 1F1B schedule, (P - 1) / M, and by what the collectives cannot hide. It is a model for the
    shape of the curve; calibrate() puts it through what was seen.
    """
    best = {count: best_layout(model, machine, count) for count in counts}
    return tabulate({count: model.flop / found[1] for count, found in best.items() if found})


def best_layout(model: Transformer, machine: Machine, nodes: int) -> tuple[Layout, float] | None:
    """Return the fastest layout on so many nodes and the seconds of its step; None: it fits in no way."""
    fitting = [one for one in _list_layouts(model, machine, nodes) if _fits(model, machine, one)]
    timed = [(_step_s(model, machine, one), one.tp, one.pp, one) for one in fitting]
    if not timed:
        return None
    seconds, _, _, layout = min(timed, key=lambda one: one[:3])
    return layout, seconds


def _list_layouts(model: Transformer, machine: Machine, nodes: int) -> Iterator[Layout]:
    gpus = nodes * machine.gpus
    for tp in (1, 2, 4, 8):
        for pp in range(1, model.layers + 1):
            dp, odd = divmod(gpus, tp * pp)
            if odd or tp > machine.gpus or model.layers % pp or model.global_batch % (max(dp, 1) * model.micro_batch):
                continue
            yield Layout(tp, pp, dp, model.global_batch // (dp * model.micro_batch))


def _fits(model: Transformer, machine: Machine, layout: Layout) -> bool:
    """Return whether the fullest GPU, one of the first stage, has room.

    A parameter takes 2 + 4 bytes for weight and gradient and 12 for Adam's state, which DP ranks share; a layer's
    activations take 34 s b h bytes over TP (Korthikanti et al., arXiv 2205.05198, selective recomputation), for as
    many micro-batches as there are stages.
    """
    state = model.parameters / (layout.tp * layout.pp) * (6.0 + 12.0 / layout.dp)
    of_layer = 34.0 * model.sequence * model.micro_batch * model.hidden / layout.tp
    activations = of_layer * model.layers / layout.pp * min(layout.pp, layout.micro_batches)
    return state + activations <= machine.memory_gib * machine.memory_share * _GIB


def _step_s(model: Transformer, machine: Machine, layout: Layout) -> float:
    gpus = layout.tp * layout.pp * layout.dp
    compute_s = model.flop / (gpus * machine.flops * machine.efficiency)
    # Four all-reduces per layer and micro-batch inside a node, ring: each GPU moves 2 (t - 1) / t of the bytes.
    activation = 2.0 * model.micro_batch * model.sequence * model.hidden
    ring = 2.0 * (layout.tp - 1) / layout.tp
    tensor_s = 4 * activation * ring * model.layers / layout.pp * layout.micro_batches / machine.nvlink_bytes_s
    in_pipeline_s = (compute_s + tensor_s) * (1 + (layout.pp - 1) / layout.micro_batches)
    # Gradients of 4 bytes once a step between replicas; what overlaps with the last backward is not counted on.
    gradient = 4.0 * model.parameters / (layout.tp * layout.pp)
    return in_pipeline_s + gradient * 2.0 * (layout.dp - 1) / layout.dp / machine.nic_bytes_s
