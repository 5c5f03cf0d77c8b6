"""The shell around the stages: finds closed windows, reads their facts, writes incidents, one analyzer at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field

from analyzer.incidents import JobState, TrackingOptions, close_all, resume, track
from analyzer.pipeline import AnalyzerOptions, judge
from analyzer.reading import JobSpan, find_jobs, find_members, find_reports, read_facts
from analyzer.windows import Window, judge_window, split_windows
from lockstep.clock import NS_PER_S
from lockstep.control.database import ControlDatabase
from lockstep.control.incidents import open_incidents, save_incidents
from lockstep.control.leases import Lease
from lockstep.incident import Incident
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex

_LOOK_BACK_NS = 120 * NS_PER_S  # how far a fresh analyzer goes back to learn the usual pace

Announce = Callable[[Incident], None]


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
    done_until_ns: int
    last_ns: int


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
        self._jobs: dict[tuple[str, int], _Job] = {}

    def run_once(self, lease: Lease, now_ns: int) -> int:
        """Analyse every window that has closed, save what changed under the lease, return the windows done."""
        spans = find_jobs(self._store, now_ns - _LOOK_BACK_NS)
        windows = sum(self._follow(span, lease, now_ns) for span in spans)
        self._close_ended(lease, now_ns)
        return windows

    def _follow(self, span: JobSpan, lease: Lease, now_ns: int) -> int:
        job = self._jobs.setdefault((span.job, span.attempt), self._meet(span))
        job.last_ns = max(job.last_ns, span.last_ns)
        hosts, ranks = find_members(self._store, span)
        reports = find_reports(self._store, hosts, now_ns - _LOOK_BACK_NS)
        done = 0
        for window in split_windows(job.done_until_ns, now_ns, self._options.window_ns):
            closing = judge_window(window, hosts, reports, now_ns, self._options.silence_ns)
            if not closing.closed:
                break
            self._analyse(job, span, window, hosts, closing.silent, ranks, lease)
            done += 1
        return done

    def _meet(self, span: JobSpan) -> _Job:
        known = [incident for incident in open_incidents(self._control, span.job) if incident.attempt == span.attempt]
        return _Job(resume(known), done_until_ns=span.first_ns, last_ns=span.last_ns)

    def _analyse(
        self,
        job: _Job,
        span: JobSpan,
        window: Window,
        hosts: frozenset[str],
        silent: frozenset[str],
        ranks: int,
        lease: Lease,
    ) -> None:
        facts = read_facts(self._store, span, window, hosts, silent, ranks)
        verdicts = judge(facts, self._topology, job.state.usual_pace, self._options.analyzer)
        job.state, changed = track(job.state, verdicts, facts, self._options.tracking)
        self._save(changed, lease)
        job.done_until_ns = window.end_ns

    def _close_ended(self, lease: Lease, now_ns: int) -> None:
        for job in self._jobs.values():
            if job.state.open and now_ns - job.last_ns > self._options.tracking.forget_ns:
                job.state, closed = close_all(job.state, now_ns)
                self._save(closed, lease)

    def _save(self, incidents: list[Incident], lease: Lease) -> None:
        if not incidents:
            return
        save_incidents(self._control, incidents, lease)
        for incident in incidents:
            self._announce(incident)


def diagnose(store: Store, topology: TopologyIndex | None, options: ServiceOptions) -> list[Incident]:
    """Return the incidents in a store that holds one finished capture; nobody will send more, so all is closed."""
    found: dict[str, Incident] = {}
    for span in find_jobs(store, 0):
        hosts, ranks = find_members(store, span)
        state = JobState()
        for window in split_windows(span.first_ns, span.last_ns + NS_PER_S, options.window_ns):
            facts = read_facts(store, span, window, hosts, frozenset(), ranks)
            verdicts = judge(facts, topology, state.usual_pace, options.analyzer)
            state, changed = track(state, verdicts, facts, options.tracking)
            found |= {incident.id: incident for incident in changed}
    return sorted(found.values(), key=lambda incident: (incident.opened_ns, incident.id))
