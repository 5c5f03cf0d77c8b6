"""The shell around the stages: finds closed windows, reads their facts, writes incidents, one analyzer at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from analyzer.facts import WindowFacts
from analyzer.incidents import JobState, TrackingOptions, close_all, learn_pace, resume, track
from analyzer.pipeline import AnalyzerOptions, judge
from analyzer.reading import JobSpan, find_jobs, find_members, find_reports, read_facts
from analyzer.windows import HostReport, judge_window, split_windows
from lockstep.clock import NS_PER_S
from lockstep.control.database import ControlDatabase
from lockstep.control.incidents import list_incidents, open_incidents, save_incidents
from lockstep.control.leases import Lease
from lockstep.incident import Incident
from lockstep.store.address import Embedded
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex

_log = structlog.get_logger("analyzer")

# One process holds the embedded store and does everything else too; beyond this a server carries the reduction.
EMBEDDED_RANKS = 512
_LOOK_BACK_NS = 120 * NS_PER_S  # how far a fresh analyzer goes back to learn the usual pace

Announce = Callable[[Incident], None]
_JobKey = tuple[str, int]  # job, attempt


@dataclass(frozen=True)
class ServiceOptions:
    """How the analyzer cuts time, and what its stages are told."""

    window_ns: int = 5 * NS_PER_S
    silence_ns: int = 15 * NS_PER_S
    analyzer: AnalyzerOptions = field(default_factory=AnalyzerOptions)
    tracking: TrackingOptions = field(default_factory=TrackingOptions)


@dataclass
class _Job:
    state: JobState
    told_until_ns: int  # up to here the incidents have been told, perhaps by a process before this one
    last_ns: int
    done_until_ns: int | None = None  # None: not seen sending yet


class AnalyzerService:
    """Follows every job that sends telemetry; `run_once` does what is due and returns."""

    def __init__(
        self,
        store: Store,
        control: ControlDatabase,
        topology: TopologyIndex | None,
        options: ServiceOptions,
        announce: Announce = lambda incident: None,
    ) -> None:
        self._store = store
        self._control = control
        self._topology = topology
        self._options = options
        self._announce = announce
        self._jobs: dict[_JobKey, _Job] = {}
        self._generation: int | None = None

    def run_once(self, lease: Lease, now_ns: int) -> int:
        """Analyse every window that has closed, save what changed under the lease, return the windows done."""
        if lease.generation != self._generation:
            self._take_over(lease.generation)
        spans = {(span.job, span.attempt): span for span in find_jobs(self._store, now_ns - _LOOK_BACK_NS)}
        windows = sum(self._follow(key, span, lease, now_ns) for key, span in spans.items())
        self._close_ended([key for key in self._jobs if key not in spans], lease, now_ns)
        return windows

    def _take_over(self, generation: int) -> None:
        """Begin from the open incidents: since we last held the lease, somebody else may have changed them."""
        found: dict[_JobKey, list[Incident]] = {}
        for incident in open_incidents(self._control):
            found.setdefault((incident.job, incident.attempt), []).append(incident)
        self._jobs = {key: _adopt(incidents) for key, incidents in found.items()}
        self._generation = generation

    def _follow(self, key: _JobKey, span: JobSpan, lease: Lease, now_ns: int) -> int:
        members = find_members(self._store, span)
        if key not in self._jobs:
            self._jobs[key] = self._meet(span)
            self._warn_when_large(span.job, members.ranks)
        job = self._jobs[key]
        job.last_ns = max(job.last_ns, span.last_ns)
        reports = self._hear(span, members.hosts, now_ns)
        done = 0
        if job.done_until_ns is None:
            job.done_until_ns = span.first_ns
        for window in split_windows(job.done_until_ns, now_ns, self._options.window_ns):
            closing = judge_window(window, members.hosts, reports, now_ns, self._options.silence_ns)
            if not closing.closed:
                break
            facts = read_facts(self._store, span, window, members, closing.silent)
            self._analyse(job, facts, lease)
            done += 1
        return done

    def _hear(self, span: JobSpan, hosts: frozenset[str], now_ns: int) -> dict[str, HostReport]:
        """Return a report of every host; one that never spoke gets as long as others, from the job's first row."""
        unheard = HostReport(watermark_ns=0, heard_ns=span.first_ns)
        return dict.fromkeys(hosts, unheard) | find_reports(self._store, hosts, now_ns - _LOOK_BACK_NS)

    def _meet(self, span: JobSpan) -> _Job:
        past = [known for known in list_incidents(self._control, job=span.job) if known.attempt == span.attempt]
        told_until_ns = max((known.updated_ns for known in past), default=0)
        return _Job(JobState(), told_until_ns, span.last_ns)

    def _warn_when_large(self, job: str, ranks: int) -> None:
        if ranks > EMBEDDED_RANKS and isinstance(self._store.address, Embedded):
            _log.warning("job is too large for the embedded store; use a server", job=job, ranks=ranks)

    def _analyse(self, job: _Job, facts: WindowFacts, lease: Lease) -> None:
        verdicts = judge(facts, self._topology, job.state.usual_pace, self._options.analyzer)
        if facts.window.end_ns <= job.told_until_ns:
            job.state = learn_pace(job.state, verdicts, facts, self._options.tracking)
        else:
            state, changed = track(job.state, verdicts, facts, self._options.tracking)
            self._save(changed, lease)
            job.state = state  # only now: had saving failed, the window would be counted twice
        job.done_until_ns = facts.window.end_ns

    def _close_ended(self, unheard: list[_JobKey], lease: Lease, now_ns: int) -> None:
        for key in unheard:
            if now_ns - self._jobs[key].last_ns > self._options.tracking.forget_ns:
                _, closed = close_all(self._jobs[key].state, now_ns)
                self._save(closed, lease)
                del self._jobs[key]

    def _save(self, incidents: list[Incident], lease: Lease) -> None:
        if not incidents:
            return
        save_incidents(self._control, incidents, lease)
        for incident in incidents:
            self._announce(incident)


def _adopt(incidents: list[Incident]) -> _Job:
    """Return a job whose open incidents were told before, here or by another process."""
    told_until_ns = max(incident.updated_ns for incident in incidents)
    return _Job(resume(incidents), told_until_ns, last_ns=told_until_ns)


def diagnose(store: Store, topology: TopologyIndex | None, options: ServiceOptions) -> list[Incident]:
    """Return the incidents in a store that holds one finished capture; nobody will send more, so all is closed."""
    found: dict[str, Incident] = {}
    for span in find_jobs(store, 0):
        members = find_members(store, span)
        state = JobState()
        for window in split_windows(span.first_ns, span.last_ns + NS_PER_S, options.window_ns):
            facts = read_facts(store, span, window, members, frozenset())
            verdicts = judge(facts, topology, state.usual_pace, options.analyzer)
            state, changed = track(state, verdicts, facts, options.tracking)
            found |= {incident.id: incident for incident in changed}
    return sorted(found.values(), key=lambda incident: (incident.opened_ns, incident.id))
