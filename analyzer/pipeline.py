"""The questions in their order: one evaluation of a job in, findings and what each stage remembers out.

Steps come first, because everything is measured in them. Hangs come before slowness: while a job stands still nobody
is slow. Stragglers and slow pairs are asked independently, since both may be there at once; what hits everybody is
asked last, and only when nobody in particular was found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from analyzer.delay_matrix.building import build_matrix
from analyzer.delay_matrix.delays import PairOptions
from analyzer.delay_matrix.matrix import DelayMatrix, PairMemory
from analyzer.delay_matrix.reading import read_pairs
from analyzer.evidence.observations import NO_EVIDENCE, Evidence
from analyzer.evidence.reading import read_evidence
from analyzer.hang.facts import HangMemory, HangOptions
from analyzer.hang.hangs import find_hangs
from analyzer.hang.reading import read_progress
from analyzer.impact import Progress
from analyzer.incidents import JobState, TrackingOptions, track
from analyzer.localize.detail_requests import propose_detail_requests, propose_sampling
from analyzer.localize.faults import FaultOptions, find_faults
from analyzer.steps.history import StepHistory, is_stale
from analyzer.steps.steps import GlobalOptions, StepMemory, StepOptions, StepReport, find_global, find_steps
from analyzer.steps.traffic import Pace, read_operations, read_pace
from analyzer.straggler.memory import StragglerMemory
from analyzer.straggler.reading import read_straggler_facts
from analyzer.straggler.starving import find_late_proxies
from analyzer.straggler.stragglers import StragglerOptions, find_stragglers, is_slower
from analyzer.testimony import doubt, read_second_claims
from analyzer.windows.jobs import JobSpan, Roster
from analyzer.windows.outage import find_outages, name_outage
from analyzer.windows.silence import HostReport
from analyzer.windows.window import Context, EvaluationOptions, Finding, Window
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex
from lockstep.verdict import Incident


@dataclass(frozen=True, slots=True)
class AnalyzerOptions:
    """All thresholds of all stages; their reasons stand beside them."""

    steps: StepOptions = field(default_factory=StepOptions)
    hangs: HangOptions = field(default_factory=HangOptions)
    straggler: StragglerOptions = field(default_factory=StragglerOptions)
    pairs: PairOptions = field(default_factory=PairOptions)
    faults: FaultOptions = field(default_factory=FaultOptions)
    everybody: GlobalOptions = field(default_factory=GlobalOptions)


@dataclass(frozen=True)
class StageMemory:
    """What the stages remember of a job between evaluations."""

    steps: StepMemory = field(default_factory=StepMemory)
    hangs: HangMemory = field(default_factory=HangMemory)
    straggler: StragglerMemory = field(default_factory=StragglerMemory)
    pairs: PairMemory = field(default_factory=PairMemory)

    @property
    def period_ns(self) -> int | None:
        return self.steps.period_ns


@dataclass(frozen=True)
class Judgement:
    """What one evaluation says of a job."""

    findings: tuple[Finding, ...] | None  # None: nothing could be judged, not even that a fault is over
    steps: pa.Table  # rows of steps that were found in the traffic
    matrix: DelayMatrix | None = None
    silent_hosts: frozenset[str] = frozenset()  # hosts of which no operation is known, while others did some
    suspects: frozenset[str] = frozenset()  # hosts of late ranks that are not told yet; all where nobody is known
    is_standstill: bool = False  # the job hangs
    is_unexplained: bool = False  # its steps are longer than usual, and no part was found that makes them so

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
    """Evaluate a job once; the same evaluation with the same memory gives the same judgement.

    A job is explained when looks before this one found a part that makes it slow.
    """
    report, steps = find_steps(read_operations(store, context), memory.steps, context, options.steps)
    context = replace(context, period_ns=steps.period_ns)
    memory = replace(memory, steps=steps)
    progress = read_progress(store, context, memory.hangs, options.hangs)
    hangs, hang_memory = find_hangs(progress, memory.hangs, context, options.hangs)
    memory = replace(memory, hangs=replace(hang_memory, until_ns=context.window.end_ns))
    if hangs:
        return Judgement(tuple(hangs), report.rows, is_standstill=True), memory
    judgement, memory = _judge_pace(store, context, memory, report, options)
    if judgement.findings or is_explained:
        return judgement, memory
    unseen = replace(context, silent=context.silent | judgement.silent_hosts)
    slower = find_global(memory.steps, unseen, options.everybody, judgement.suspects)
    begin_ns = _blamed_since_ns(judgement.matrix, context.window)
    lasting = tuple(finding for finding in slower if finding.since_ns is None or finding.since_ns <= begin_ns)
    # More samples may cost the rows that steps are cut from: while none is seen, none are asked for because of steps.
    is_seen = any(not finding.is_stale for finding in slower)
    is_unexplained = is_seen or is_slower(memory.straggler, context, options.straggler)
    return replace(judgement, findings=lasting or judgement.findings, is_unexplained=is_unexplained), memory


def _blamed_since_ns(matrix: DelayMatrix | None, window: Window) -> int:
    """Return since when all must have been slow for all to be blamed.

    All that was judged has to be slow. Parts, where any are seen, get a second window and as many samples as accuse a
    pair to show themselves.
    """
    if matrix is None:
        return window.start_ns
    return min(2 * window.start_ns - window.end_ns, matrix.told_since_ns or window.start_ns)


def _judge_pace(
    store: Store, context: Context, memory: StageMemory, report: StepReport, options: AnalyzerOptions
) -> tuple[Judgement, StageMemory]:
    """Ask who is slow in a job that moves."""
    pairs = read_pairs(store, context)
    matrix, pair_memory = build_matrix(pairs, memory.pairs, context, options.pairs)
    slow = (matrix.slow_senders, matrix.slow_hosts) if matrix else ()
    facts = read_straggler_facts(store, context, *slow)
    stragglers, straggler_memory = find_stragglers(facts, memory.straggler, context, options.straggler)
    memory = replace(memory, straggler=straggler_memory, pairs=pair_memory)
    found = list(stragglers)
    if matrix is not None:
        # Pairs of a host that is late as a whole, or whose proxy threads are, look slow because nobody serves them.
        late = {finding.component for finding in stragglers}
        late_hosts = frozenset(name for kind, _, name in (each.partition(":") for each in late) if kind == "host")
        late_proxies = find_late_proxies(facts.flushes, options.straggler.starving)
        matrix = replace(matrix, starved=late_hosts.union(each.host for each in late_proxies))
        faults = find_faults(matrix, _read_evidence(store, matrix, context), context, options.faults)
        found += [fault for fault in faults if fault.component not in late]  # why it is late is known better
    is_blind = not pairs.waits.num_rows and not len(facts.operations) and not report.rows.num_rows
    judgement = Judgement(
        findings=None if is_blind and not found else tuple(_once(found)),
        steps=report.rows,
        matrix=matrix,
        silent_hosts=_find_silent_hosts(facts.operations.process, context),
        suspects=_find_suspects(facts.operations.process, straggler_memory, context),
    )
    return judgement, memory


def _find_suspects(process: np.ndarray, memory: StragglerMemory, context: Context) -> frozenset[str]:
    """Return the hosts of ranks that were late, be it in too few steps to say so; all where no rank was compared."""
    if not len(process):
        return context.roster.hosts
    return frozenset(context.roster.host_of[sorted(memory.straggling_since)].tolist())


def _read_evidence(store: Store, matrix: DelayMatrix, context: Context) -> Evidence:
    """Return what else is known of the parts; they tilt a choice, so they are read when there is one to make."""
    is_slow_inside = matrix.inner is not None and bool(matrix.inner.slow.any())
    is_needed = bool(matrix.slow.any()) or bool(matrix.starved) or is_slow_inside
    return read_evidence(store, context) if is_needed else NO_EVIDENCE


def _find_silent_hosts(process: np.ndarray, context: Context) -> frozenset[str]:
    """Return the hosts of which no operation is known, though their collectors may say that all is told."""
    hosts = context.roster.host_of
    return (
        context.roster.hosts - set(hosts[np.unique(process[process >= 0])].tolist()) if len(process) else frozenset()
    )


def _once(found: Sequence[Finding]) -> list[Finding]:
    """Return each part once, as the stage that is surest of it says it: two may see the same host."""
    best: dict[tuple[str, str | None], Finding] = {}
    for finding in sorted(found, key=lambda finding: -finding.likelihood):
        best.setdefault((finding.component, finding.side), finding)
    return list(best.values())


# takes part, says nothing, reported what last, is cabled how
Who = tuple[Roster, frozenset[str], Mapping[str, HostReport], TopologyIndex | None]


@dataclass(frozen=True)
class FollowOptions:
    """How often to look, what the stages are told, and when findings become incidents."""

    evaluations: EvaluationOptions = field(default_factory=EvaluationOptions)
    analyzer: AnalyzerOptions = field(default_factory=AnalyzerOptions)
    tracking: TrackingOptions = field(default_factory=TrackingOptions)


@dataclass(frozen=True)
class Followed:
    """What is remembered of a job between evaluations."""

    faults: JobState = field(default_factory=JobState)
    stages: StageMemory = field(default_factory=StageMemory)
    fresh_ns: int = 0  # up to here looks have judged
    is_in_doubt: bool = False  # a part was just seen for the first time, or steps grew and nobody knows why


@dataclass(frozen=True)
class Outcome:
    """What one evaluation gave."""

    followed: Followed
    changed: list[Incident]
    judgement: Judgement
    context: Context
    requests: tuple[DetailRequest, ...] = ()  # what would settle the doubts in what was told


def evaluate_window(
    store: Store,
    span: JobSpan,
    window: Window,
    known: Followed,
    who: Who,
    options: FollowOptions,
    *,
    is_reported: bool = False,
    is_early: bool = False,
) -> Outcome:
    """Look at a job: read, judge, and follow its incidents.

    An evaluation whose incidents were told before, by another process, only learns from what it sees. An early one
    learns nothing, since the next one sees the same seconds: it only follows incidents.
    """
    roster, silent, reports, topology = who
    context = Context(
        job=span.job,
        attempt=span.attempt,
        window=window,
        fresh_ns=known.fresh_ns if window.start_ns < known.fresh_ns < window.end_ns else window.start_ns,
        roster=roster,
        topology=topology,
        silent=silent,
        reports=reports,
        period_ns=known.stages.period_ns,
        is_early=is_early,
    )
    outages = find_outages(context)
    context = replace(context, lost=frozenset().union(*(outage.hosts for outage in outages)))
    is_explained = known.faults.names_a_part(options.tracking.clear_evaluations)
    judgement, stages = judge(store, context, known.stages, options.analyzer, is_explained=is_explained)
    if judgement.findings:
        judgement = replace(judgement, findings=doubt(judgement.findings, read_second_claims(store, context)))
    followed = known if is_early else replace(known, stages=stages, fresh_ns=window.end_ns)
    if is_early:
        judgement = replace(judgement, steps=judgement.steps.slice(0, 0))
    if is_reported:
        return Outcome(followed, [], judgement, context)
    progress = _read_progress_made(store, context, stages.steps.history, judgement, known.faults)
    lost = [name_outage(outage, context) for outage in outages]
    context = replace(context, idle=judgement.silent_hosts)
    faults, changed = track(known.faults, judgement.findings, context, progress, options.tracking, lost)
    requests = tuple(propose_detail_requests(faults.open_findings, context))
    requests += tuple(propose_sampling(context)) if judgement.is_unexplained else ()
    is_in_doubt = faults.awaits_second(options.tracking.confirm_evaluations)
    is_in_doubt |= judgement.is_unexplained and not faults.open
    return Outcome(replace(followed, faults=faults, is_in_doubt=is_in_doubt), changed, judgement, context, requests)


def _read_progress_made(
    store: Store, context: Context, steps: StepHistory, judgement: Judgement, faults: JobState
) -> Progress:
    """Return how the job goes on; operations are counted where a fault's cost cannot be told by steps."""
    stale = is_stale(steps, context.window)
    is_asked = stale and not judgement.is_standstill and bool(judgement.findings or faults.open)
    return Progress(steps, stale, read_pace(store, context) if is_asked else Pace())
