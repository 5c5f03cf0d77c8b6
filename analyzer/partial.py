"""Captures that hold little: with only steps, when the job slowed and recovered; with only probes, which links."""

from analyzer.context import Context
from analyzer.finding import Finding
from analyzer.incidents import close, open_incident
from analyzer.jobs import JobSpan
from analyzer.probing.flows import read_flows
from analyzer.probing.links import judge_flows
from analyzer.roster import Roster
from analyzer.steps.slowdowns import Stretch, find_stretches
from analyzer.verdicts import GradingOptions
from analyzer.windows import Window
from lockstep.incident import Incident
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex

_STEPS = """
SELECT world_rank, step, start_ns, end_ns, source FROM steps WHERE job = {job:String} AND attempt = {attempt:UInt16}
ORDER BY step, world_rank
"""
_PROBED = "SELECT count() AS sent, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns FROM probes"
_RECOVERED = "its steps are as short as before, or changed to another level"


def judge_steps(store: Store, span: JobSpan, roster: Roster, options: GradingOptions) -> list[Incident]:
    """Return an incident for each stretch in which the steps of a job took longer than usual."""
    rows = store.query(_STEPS, {"job": span.job, "attempt": span.attempt})
    return [_of_stretch(stretch, span, roster, options) for stretch in find_stretches(rows, span.job)]


def judge_probes(store: Store, topology: TopologyIndex, job: str, options: GradingOptions) -> list[Incident]:
    """Return an incident for each link or switch that loses or delays probes; the job is whose capture it is."""
    (probed,) = store.query(_PROBED).to_pylist()
    if not probed["sent"]:
        return []
    window = Window(probed["first_ns"], probed["last_ns"] + 1)
    context = Context(job, 0, window, window.start_ns, Roster.empty(), topology)
    findings = judge_flows(read_flows(store, window), topology)
    return [open_incident(finding, window.start_ns, context, None, options) for finding in findings]


def _of_stretch(stretch: Stretch, span: JobSpan, roster: Roster, options: GradingOptions) -> Incident:
    since_ns = stretch.finding.since_ns or span.first_ns
    window = Window(since_ns, stretch.until_ns)
    context = Context(span.job, span.attempt, window, since_ns, roster, None)
    incident = open_incident(stretch.finding, since_ns, context, _ratio(stretch.finding), options)
    return close(incident, stretch.until_ns, _RECOVERED) if stretch.is_over else incident


def _ratio(finding: Finding) -> float | None:
    return None if finding.lost_share is None else 1 / max(1 - finding.lost_share, 1e-9)
