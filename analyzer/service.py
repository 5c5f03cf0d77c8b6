"""The shell around the stages: finds closed windows, looks at them, writes incidents, one analyzer at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from analyzer.incidents import close_all, resume
from analyzer.pipeline import Followed, FollowOptions, Who, evaluate_window
from analyzer.windows.jobs import JobSpan, find_jobs, read_roster
from analyzer.windows.silence import HostReport, find_reports, judge_window
from analyzer.windows.window import Window, plan_evaluations, window_at
from lockstep.clock import NS_PER_S
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import add_detail_requests, list_incidents, open_incidents, save_incidents
from lockstep.state.leases import Lease
from lockstep.store.engine import Embedded
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from lockstep.verdict import Incident

_log = structlog.get_logger("analyzer")

# One process holds the embedded store and does everything else too; beyond this a server carries the reduction.
EMBEDDED_RANKS = 512
_LOOKBACK_NS = 120 * NS_PER_S  # how far a fresh analyzer goes back to learn what is usual

Announce = Callable[[Incident], None]
_JobKey = tuple[str, int]  # job, attempt


@dataclass(frozen=True)
class ServiceOptions:
    """How the analyzer follows jobs, and when a host that says nothing is silent."""

    silence_ns: int = 15 * NS_PER_S
    follow: FollowOptions = field(default_factory=FollowOptions)


@dataclass
class _Job:
    followed: Followed
    reported_until_ns: int  # up to here the incidents have been told, perhaps by a process before this one
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
        """Take every evaluation that is due, save what changed under the lease, return the evaluations taken."""
        if lease.generation != self._generation:
            self._take_over(lease.generation)
        spans = {(span.job, span.attempt): span for span in find_jobs(self._store, now_ns - _LOOKBACK_NS)}
        evaluations = sum(self._follow(key, span, lease, now_ns) for key, span in spans.items())
        self._close_ended([key for key in self._jobs if key not in spans], lease, now_ns)
        return evaluations

    def _take_over(self, generation: int) -> None:
        """Begin from the open incidents: since we last held the lease, somebody else may have changed them."""
        found: dict[_JobKey, list[Incident]] = {}
        for incident in open_incidents(self._control):
            found.setdefault((incident.job, incident.attempt), []).append(incident)
        self._jobs = {key: _adopt(incidents) for key, incidents in found.items()}
        self._generation = generation

    def _follow(self, key: _JobKey, span: JobSpan, lease: Lease, now_ns: int) -> int:
        roster = read_roster(self._store, span.job, span.attempt)
        if key not in self._jobs:
            self._jobs[key] = self._meet(span)
            if roster.ranks > EMBEDDED_RANKS and isinstance(self._store.address, Embedded):
                message = "job is too large for the embedded store; use a server"
                _log.warning(message, job=span.job, ranks=roster.ranks)
        job = self._jobs[key]
        job.last_ns = max(job.last_ns, span.last_ns)
        # A host that never reported gets as long as others, from the job's first row.
        missing = HostReport(watermark_ns=0, last_seen_ns=span.first_ns)
        known = find_reports(self._store, roster.hosts, now_ns - _LOOKBACK_NS)
        reports = dict.fromkeys(roster.hosts, missing) | known
        done = 0
        if job.done_until_ns is None:
            job.done_until_ns = max(span.first_ns, now_ns - _LOOKBACK_NS)
        for end_ns in plan_evaluations(job.done_until_ns, now_ns, self._options.follow.evaluations):
            window = window_at(end_ns, span.first_ns, job.followed.stages.period_ns, self._options.follow.evaluations)
            closing = judge_window(end_ns, roster.hosts, reports, now_ns, self._options.silence_ns)
            if not closing.closed:
                break
            self._evaluate(job, span, window, (roster, closing.silent, known, self._topology), lease)
            done += 1
        return done

    def _evaluate(self, job: _Job, span: JobSpan, window: Window, who: Who, lease: Lease) -> None:
        is_reported = window.end_ns <= job.reported_until_ns
        outcome = evaluate_window(
            self._store, span, window, job.followed, who, self._options.follow, is_reported=is_reported
        )
        self._save(outcome.changed, lease)
        token = f"steps/{span.job}/{span.attempt}/{window.end_ns}"
        self._store.insert(TABLE_BY_NAME["steps"], outcome.judgement.steps, token=token)
        add_detail_requests(self._control, *outcome.requests, now_ns=window.end_ns)
        job.followed = outcome.followed  # only now: had saving failed, the evaluation would be counted twice
        job.done_until_ns = window.end_ns

    def _meet(self, span: JobSpan) -> _Job:
        past = [known for known in list_incidents(self._control, job=span.job) if known.attempt == span.attempt]
        reported_until_ns = max((known.updated_ns for known in past), default=0)
        return _Job(Followed(), reported_until_ns, span.last_ns)

    def _close_ended(self, missing: list[_JobKey], lease: Lease, now_ns: int) -> None:
        for key in missing:
            if now_ns - self._jobs[key].last_ns > self._options.follow.tracking.forget_ns:
                _, closed = close_all(self._jobs[key].followed.faults, now_ns, self._jobs[key].last_ns)
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
    reported_until_ns = max(incident.updated_ns for incident in incidents)
    return _Job(Followed(faults=resume(incidents)), reported_until_ns, last_ns=reported_until_ns)
