"""The questions in their order: one look at a job in, findings and what each stage remembers out.

Steps come first, because everything is measured in them. Hangs come before slowness: while a job stands still nobody
is slow. Late ranks and slow wires are asked independently, since both may be there at once; what hits everybody is
asked last, and only when nobody in particular was found.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from analyzer.context import Context
from analyzer.faults.faults import FaultOptions, find_faults
from analyzer.finding import Finding
from analyzer.hangs.facts import HangMemory, HangOptions
from analyzer.hangs.reading import read_progress
from analyzer.hangs.stage import find_hangs
from analyzer.lateness.late import LatenessMemory, LatenessOptions, find_late
from analyzer.lateness.reading import read_lateness
from analyzer.signs.reading import read_signs
from analyzer.signs.signs import NO_SIGNS, Signs
from analyzer.steps.everybody import GlobalOptions, find_global
from analyzer.steps.stage import StepMemory, StepOptions, StepReport, find_steps
from analyzer.steps.traffic import read_operations
from analyzer.wires.building import build_matrix
from analyzer.wires.judging import WireOptions
from analyzer.wires.matrix import DelayMatrix
from analyzer.wires.memory import WireMemory
from analyzer.wires.reading import read_wires
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store


@dataclass(frozen=True, slots=True)
class AnalyzerOptions:
    """All thresholds of all stages; their reasons stand beside them."""

    steps: StepOptions = field(default_factory=StepOptions)
    hangs: HangOptions = field(default_factory=HangOptions)
    lateness: LatenessOptions = field(default_factory=LatenessOptions)
    wires: WireOptions = field(default_factory=WireOptions)
    faults: FaultOptions = field(default_factory=FaultOptions)
    everybody: GlobalOptions = field(default_factory=GlobalOptions)


@dataclass(frozen=True)
class StageMemory:
    """What the stages remember of a job between looks."""

    steps: StepMemory = field(default_factory=StepMemory)
    hangs: HangMemory = field(default_factory=HangMemory)
    lateness: LatenessMemory = field(default_factory=LatenessMemory)
    wires: WireMemory = field(default_factory=WireMemory)

    @property
    def period_ns(self) -> int | None:
        return self.steps.period_ns


@dataclass(frozen=True)
class Judgement:
    """What one look says of a job."""

    findings: tuple[Finding, ...] | None  # None: nothing could be judged, not even that a fault is over
    steps: pa.Table  # rows of steps that were found in the traffic
    matrix: DelayMatrix | None = None
    mute: frozenset[str] = frozenset()  # hosts of which no operation is known, while others did some
    is_standstill: bool = False  # the job hangs

    @property
    def step_times(self) -> list[tuple[int, float]]:
        """Return the end of each new step of one rank, and its seconds."""
        rows = self.steps
        first = rows["world_rank"][0].as_py() if rows.num_rows else None
        return [
            (row["end_ns"], (row["end_ns"] - row["start_ns"]) / NS_PER_S)
            for row in rows.to_pylist()
            if row["world_rank"] == first
        ]


def judge(
    store: Store, context: Context, memory: StageMemory, options: AnalyzerOptions, *, is_explained: bool = False
) -> tuple[Judgement, StageMemory]:
    """Look once at a job; the same look with the same memory gives the same judgement.

    A job is explained when looks before this one found a part that makes it slow.
    """
    report, steps = find_steps(read_operations(store, context), memory.steps, context, options.steps)
    context = replace(context, period_ns=steps.period_ns)
    memory = replace(memory, steps=steps)
    hangs, standing = find_hangs(read_progress(store, context), memory.hangs, context, options.hangs)
    memory = replace(memory, hangs=standing)
    if hangs:
        return Judgement(tuple(hangs), report.rows, is_standstill=True), memory
    judgement, memory = _judge_pace(store, context, memory, report, options)
    if judgement.findings or is_explained:
        return judgement, memory
    unseen = replace(context, silent=context.silent | judgement.mute)
    slower = find_global(memory.steps, unseen, options.everybody)
    lasting = tuple(finding for finding in slower if _fills(context, finding))
    return replace(judgement, findings=lasting or judgement.findings), memory


def _judge_pace(
    store: Store, context: Context, memory: StageMemory, report: StepReport, options: AnalyzerOptions
) -> tuple[Judgement, StageMemory]:
    """Ask who is slow in a job that moves."""
    lateness = read_lateness(store, context)
    late, late_memory = find_late(lateness, memory.lateness, context, options.lateness)
    wires = read_wires(store, context)
    matrix, wire_memory = build_matrix(wires, memory.wires, context, options.wires)
    memory = replace(memory, lateness=late_memory, wires=wire_memory)
    found = list(late)
    if matrix is not None:
        matrix = replace(matrix, starved=matrix.starved | _late_hosts(late))
        found += find_faults(matrix, _read_signs(store, matrix, context), context, options.faults)
    is_blind = not wires.waits.num_rows and not len(lateness.operations) and not report.rows.num_rows
    judgement = Judgement(
        findings=None if is_blind and not found else tuple(_once(found)),
        steps=report.rows,
        matrix=matrix,
        mute=_find_mute(lateness.operations.process, context),
    )
    return judgement, memory


def _fills(context: Context, finding: Finding) -> bool:
    """Return whether all of a look is slow: parts get one such look to show themselves before all are said to be."""
    return finding.since_ns is None or finding.since_ns <= context.window.start_ns


def _read_signs(store: Store, matrix: DelayMatrix, context: Context) -> Signs:
    """Return what else is known of the parts; they tilt a choice, so they are read when there is one to make."""
    is_hot_inside = matrix.inner is not None and bool(matrix.inner.hot.any())
    is_needed = bool(matrix.hot.any()) or bool(matrix.starved) or is_hot_inside
    return read_signs(store, context) if is_needed else NO_SIGNS


def _find_mute(heard: np.ndarray, context: Context) -> frozenset[str]:
    """Return the hosts of which no operation is known, though their collectors may say that all is told."""
    hosts = context.roster.host_of
    return context.roster.hosts - set(hosts[np.unique(heard[heard >= 0])].tolist()) if len(heard) else frozenset()


def _late_hosts(late: Sequence[Finding]) -> frozenset[str]:
    """Return the hosts that are late as a whole: their wires look slow because nobody serves them."""
    names = (finding.component.partition(":") for finding in late)
    return frozenset(name for kind, _, name in names if kind == "host")


def _once(found: Sequence[Finding]) -> list[Finding]:
    """Return each part once, as the stage that is surest of it says it: two may see the same host."""
    best: dict[tuple[str, str | None], Finding] = {}
    for finding in sorted(found, key=lambda finding: -finding.likelihood):
        best.setdefault((finding.component, finding.side), finding)
    return list(best.values())
