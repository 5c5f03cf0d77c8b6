"""A finished capture from its beginning to its end: nobody will send more, so all of it is closed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from analyzer.delay_matrix.matrix import DelayMatrix
from analyzer.evidence.probe_routes import read_flows
from analyzer.evidence.probes import judge_flows
from analyzer.impact import Account
from analyzer.pipeline import Followed, FollowOptions, Outcome, evaluate_window
from analyzer.steps.stretches import Stretch, find_stretches
from analyzer.verdicts import GradingOptions, close, open_incident
from analyzer.windows.jobs import (
    JobSpan,
    Roster,
    find_active_hops,
    find_activity,
    find_jobs,
    read_roster,
)
from analyzer.windows.silence import find_reports, find_silent
from analyzer.windows.window import Context, EvaluationOptions, Window, early_end, hop_at, window_at
from lockstep.store.store import Store
from lockstep.store.together import ReadAhead
from lockstep.topology import TopologyIndex
from lockstep.verdict import Incident

_STEPS = """
SELECT world_rank, step, start_ns, end_ns, source FROM steps WHERE job = {job:String} AND attempt = {attempt:UInt16}
ORDER BY step, world_rank
"""
_PROBED = "SELECT count() AS sent, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns FROM probes"
_MOST_AHEAD = 16  # windows that are read at once
_MOST_RANKS = 4096  # in all of them: rows are held against each window, which costs more than to plan a statement
_RECOVERED = "its steps are as short as before, or changed to another level"


def judge_steps(store: Store, span: JobSpan, roster: Roster, options: GradingOptions) -> list[Incident]:
    """Return an incident for each stretch in which the steps of a job took longer than usual."""
    rows = store.query(_STEPS, {"job": span.job, "attempt": span.attempt})
    return judge_step_rows(rows, span, roster, options)


def judge_step_rows(rows: pa.Table, span: JobSpan, roster: Roster, options: GradingOptions) -> list[Incident]:
    """Return the same for rows of `steps` of one attempt."""
    return [_of_stretch(stretch, span, roster, options) for stretch in find_stretches(rows, span.job)]


def judge_probes(store: Store, topology: TopologyIndex, job: str, options: GradingOptions) -> list[Incident]:
    """Return an incident for each link or switch that loses or delays probes; the job is whose capture it is."""
    (probed,) = store.query(_PROBED).to_pylist()
    if not probed["sent"]:
        return []
    window = Window(probed["first_ns"], probed["last_ns"] + 1)
    context = Context(job, 0, window, window.start_ns, Roster.empty(), topology)
    findings = judge_flows(read_flows(store, window), topology)
    unknown = Account(window.start_ns, window.end_ns, window.start_ns)
    return [open_incident(finding, window.start_ns, context, unknown, options) for finding in findings]


def _of_stretch(stretch: Stretch, span: JobSpan, roster: Roster, options: GradingOptions) -> Incident:
    since_ns = stretch.finding.since_ns or span.first_ns
    window = Window(since_ns, stretch.until_ns)
    context = Context(span.job, span.attempt, window, since_ns, roster, None)
    lost, ratio = float(stretch.lost_ns), 1 / max(1 - (stretch.finding.lost_share or 0.0), 1e-9)
    known = {"usual_ns": stretch.usual_ns, "by_steps_ns": lost, "lost_ns": lost, "ratio": ratio, "peak": ratio}
    account = Account(since_ns, stretch.until_ns, stretch.until_ns, **known)
    incident = open_incident(stretch.finding, since_ns, context, account, options)
    return close(incident, stretch.until_ns, _RECOVERED) if stretch.is_over else incident


Watch = Callable[[int, int], None]  # looks taken, looks in all


@dataclass(frozen=True)
class Description:
    """What a report shows of a capture."""

    incidents: tuple[Incident, ...]
    matrix: DelayMatrix | None = None  # of the evaluation that shows most
    step_times: Sequence[tuple[int, float]] = ()  # end of each step and its seconds


def diagnose(store: Store, topology: TopologyIndex | None, options: FollowOptions, job: str = "") -> list[Incident]:
    """Return the incidents in a store that holds one finished capture of a job."""
    return list(describe(store, topology, options, job).incidents)


def describe(
    store: Store,
    topology: TopologyIndex | None,
    options: FollowOptions,
    job: str = "",
    watch: Watch = lambda done, due: None,
) -> Description:
    """Return the incidents in a store that holds one finished capture, and what a report shows beside them.

    The name of the job is for captures of probes alone, which do not tell it.
    """
    spans = find_jobs(store, 0)
    parts = [_describe_job(store, span, topology, options, watch) for span in spans]
    if not spans and topology:
        parts = [Description(tuple(judge_probes(store, topology, job, options.tracking.grading)))]
    incidents = sorted(
        (incident for part in parts for incident in part.incidents),
        key=lambda incident: (incident.opened_ns, incident.id),
    )
    matrices = [part.matrix for part in parts if part.matrix]
    step_times = [step for part in parts for step in part.step_times]
    return Description(tuple(incidents), _slowest(matrices), step_times)


def _describe_job(
    store: Store, span: JobSpan, topology: TopologyIndex | None, options: FollowOptions, watch: Watch
) -> Description:
    roster = read_roster(store, span.job, span.attempt)
    if span.tables == {"steps"}:
        return Description(tuple(judge_steps(store, span, roster, options.tracking.grading)))
    found: dict[str, Incident] = {}
    matrices: list[DelayMatrix] = []
    step_times: list[tuple[int, float]] = []
    for outcome in _evaluate_windows(store, span, roster, topology, options, watch):
        found |= {incident.id: incident for incident in outcome.changed}
        matrices += [outcome.judgement.matrix] if outcome.judgement.matrix else []
        step_times += outcome.judgement.step_times
    return Description(tuple(found.values()), _slowest(matrices), step_times)


def _slowest(matrices: Sequence[DelayMatrix]) -> DelayMatrix | None:
    """Return the matrix that shows most: the excess of all its slow pairs together is the largest."""
    return max(matrices, key=lambda matrix: float(np.log(matrix.ratio[matrix.slow]).sum()), default=None)


def _evaluate_windows(
    store: Store,
    span: JobSpan,
    roster: Roster,
    topology: TopologyIndex | None,
    options: FollowOptions,
    watch: Watch,
) -> Iterator[Outcome]:
    reports = find_reports(store, roster.hosts, 0)
    brief = _brief_windows(store, span, options.evaluations)
    hops = [] if brief else find_active_hops(store, span, options.evaluations.hop_ns)
    ends = sorted({min(hop_ns, span.last_ns + 1) for hop_ns in hops})
    options = _for_few_evaluations(options, 1 if brief else len(ends))
    due, done_ns, followed = len(brief or ends), span.first_ns, Followed()
    ahead, most = ReadAhead(store), min(max(_MOST_RANKS // max(len(roster), 1), 1), _MOST_AHEAD)
    while windows := brief or list(
        islice(_follow(ends, done_ns, span, followed.stages.period_ns, options.evaluations), most)
    ):
        window = windows[0]
        ahead.move([(window.start_ns, window.end_ns) for window in windows])
        who = (roster, find_silent(roster.hosts, reports, window.end_ns), reports, topology)
        if followed.is_in_doubt and (end_ns := early_end(done_ns, window.end_ns, options.evaluations)):
            early = window_at(end_ns, span.first_ns, followed.stages.period_ns, options.evaluations)
            outcome = evaluate_window(store, span, early, followed, who, options, is_early=True)
            followed = outcome.followed
            yield outcome
        outcome = evaluate_window(ahead, span, window, followed, who, options)
        followed, done_ns = outcome.followed, window.end_ns
        is_enough = bool(brief) and outcome.judgement.is_standstill  # what else it shows was on the way to it
        brief, ends = ([] if is_enough else brief[1:]), [end_ns for end_ns in ends if end_ns > done_ns]
        watch(due - len(brief or ends), due)
        yield outcome
    if followed.faults.is_pending:
        # The recording ends before the evaluation that would confirm it, so the newer half of the last one has to.
        half = Window(window.end_ns - (window.end_ns - window.start_ns) // 2, window.end_ns)
        yield evaluate_window(store, span, half, followed, who, options)


def _follow(
    ends: Sequence[int], done_ns: int, span: JobSpan, period_ns: int | None, options: EvaluationOptions
) -> Iterator[Window]:
    """Yield the next windows, as they are while the period stays the same."""
    for end_ns in ends:
        if end_ns == ends[-1] or end_ns - done_ns >= hop_at(end_ns, span.first_ns, period_ns, options):
            yield window_at(end_ns, span.first_ns, period_ns, options)
            done_ns = end_ns


def _brief_windows(store: Store, span: JobSpan, options: EvaluationOptions) -> list[Window]:
    """Return the evaluations of a capture that one evaluation can hold; none for a longer one.

    First to its end, for what hangs; then where something was done, and its last third once more: a recording is made
    when something has begun, and over all of it a fault of its last steps is thinned out.
    """
    if span.last_ns - span.first_ns > options.shortest_ns:
        return []
    first_ns, last_ns = find_activity(store, span)
    third_ns = (last_ns - first_ns) // 3
    windows = (Window(first_ns, last_ns + 1), Window(last_ns - third_ns, last_ns + 1))
    return [Window(first_ns, span.last_ns + 1), *(window for window in windows if third_ns > 0)]


def _for_few_evaluations(options: FollowOptions, evaluations: int) -> FollowOptions:
    """Return options under which one evaluation is enough where a capture has room for few: no second will come.

    Of many ranks one is late by chance in the few steps of such a capture: it has to be the last of all more often.
    """
    if evaluations > options.tracking.confirm_evaluations:
        return options
    stragglers = replace(options.analyzer.straggler, noisy_spread=0.0)
    return replace(
        options,
        tracking=replace(options.tracking, confirm_evaluations=1),
        analyzer=replace(options.analyzer, straggler=stragglers),
    )
