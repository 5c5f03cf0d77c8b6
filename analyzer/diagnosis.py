"""A finished capture from its beginning to its end: nobody will send more, so all of it is closed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzer.following import Followed, FollowOptions, Outcome, take_look
from analyzer.jobs import JobSpan, find_activity, find_jobs, find_moments, find_reports
from analyzer.looks import LookOptions, window_at
from analyzer.partial import judge_probes, judge_steps
from analyzer.roster import Roster, read_roster
from analyzer.windows import HostReport, Window
from analyzer.wires.matrix import DelayMatrix
from lockstep.incident import Incident
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex

Watch = Callable[[int, int], None]  # looks taken, looks in all


@dataclass(frozen=True)
class Description:
    """What a report shows of a capture."""

    incidents: tuple[Incident, ...]
    matrix: DelayMatrix | None = None  # of the look that shows most
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
    return Description(tuple(incidents), _hottest(matrices), step_times)


def _describe_job(
    store: Store, span: JobSpan, topology: TopologyIndex | None, options: FollowOptions, watch: Watch
) -> Description:
    roster = read_roster(store, span.job, span.attempt)
    if span.tables == {"steps"}:
        return Description(tuple(judge_steps(store, span, roster, options.tracking.grading)))
    found: dict[str, Incident] = {}
    matrices: list[DelayMatrix] = []
    step_times: list[tuple[int, float]] = []
    for outcome in _looks(store, span, roster, topology, options, watch):
        found |= {incident.id: incident for incident in outcome.changed}
        matrices += [outcome.judgement.matrix] if outcome.judgement.matrix else []
        step_times += outcome.judgement.step_times
    return Description(tuple(found.values()), _hottest(matrices), step_times)


def _hottest(matrices: Sequence[DelayMatrix]) -> DelayMatrix | None:
    """Return the matrix that shows most: the excess of all its slow wires together is the largest."""
    return max(matrices, key=lambda matrix: float(np.log(matrix.ratio[matrix.hot]).sum()), default=None)


def _looks(
    store: Store,
    span: JobSpan,
    roster: Roster,
    topology: TopologyIndex | None,
    options: FollowOptions,
    watch: Watch,
) -> Iterator[Outcome]:
    reports = find_reports(store, roster.hosts, 0)
    brief = _brief_windows(store, span, options.looks)
    ends = [window.end_ns for window in brief] or _plan(store, span, options.looks)
    options = _for_few_looks(options, 1 if brief else len(ends))
    due = len(ends)
    followed = Followed()
    for number in range(due):
        period_ns = followed.stages.period_ns
        window = brief[number] if brief else window_at(ends[number], span.first_ns, period_ns, options.looks)
        who = (roster, _silent(roster.hosts, reports, window.end_ns), topology)
        outcome = take_look(store, span, window, followed, who, options)
        followed = outcome.followed
        watch(number + 1, due)
        yield outcome
        if brief and outcome.judgement.is_standstill:
            return  # what else it shows was on the way to it


def _plan(store: Store, span: JobSpan, options: LookOptions) -> list[int]:
    """Return the ends of the looks."""
    moments = find_moments(store, span, options.hop_ns)
    return sorted({min(moment, span.last_ns + 1) for moment in moments})


def _brief_windows(store: Store, span: JobSpan, options: LookOptions) -> list[Window]:
    """Return the looks at a capture that one look can hold; none for a longer one.

    First to its end, for what hangs; then where something was done, and its last third once more: a recording is made
    when something has begun, and over all of it a fault of its last steps is thinned out.
    """
    if span.last_ns - span.first_ns > options.shortest_ns:
        return []
    first_ns, last_ns = find_activity(store, span)
    third_ns = (last_ns - first_ns) // 3
    windows = (Window(first_ns, last_ns + 1), Window(last_ns - third_ns, last_ns + 1))
    return [Window(first_ns, span.last_ns + 1), *(window for window in windows if third_ns > 0)]


def _silent(hosts: frozenset[str], reports: Mapping[str, HostReport], end_ns: int) -> frozenset[str]:
    """Return the hosts whose reports never reached that moment; nobody, where the capture has no heartbeats."""
    latest = max((report.watermark_ns for report in reports.values()), default=0)
    wanted = min(end_ns, latest)
    return frozenset(host for host in hosts if reports and _watermark(reports, host) < wanted)


def _watermark(reports: Mapping[str, HostReport], host: str) -> int:
    return reports[host].watermark_ns if host in reports else 0


def _for_few_looks(options: FollowOptions, looks: int) -> FollowOptions:
    """Return options under which one look is enough where a capture has room for few: no second one will come."""
    if looks > options.tracking.confirm_looks:
        return options
    return replace(options, tracking=replace(options.tracking, confirm_looks=1))
