"""The shell around the stages: finds closed windows, looks at them, writes incidents, one analyzer for each shard."""

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic_ns, thread_time_ns

import pyarrow as pa
import structlog

from analyzer.hang.facts import HangOptions
from analyzer.incidents import close_all, resume
from analyzer.pipeline import Followed, FollowOptions, Outcome, evaluate_window
from analyzer.plugin_cost import lower_dear_jobs
from analyzer.windows.jobs import JobKey, JobSpan, Roster, choose_followed, find_jobs, read_roster
from analyzer.windows.silence import HostReport, find_reports, judge_window
from analyzer.windows.window import EvaluationOptions, Window, early_end, plan_evaluations, window_at
from lockstep.clock import NS_PER_S
from lockstep.errors import ControlAway, LeaseLost, LockstepError, StoreAway
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import (
    Analysis,
    add_detail_requests,
    list_incidents,
    note_analysis,
    note_jobs,
    open_incidents,
    save_incidents,
)
from lockstep.state.leases import ALL_JOBS, Lease, Shard
from lockstep.store.engine import Embedded
from lockstep.store.store import Store
from lockstep.store.together import read_together
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from lockstep.verdict import Incident

_log = structlog.get_logger("analyzer")

# One process holds the embedded store and does everything else too; beyond this a server carries the reduction.
EMBEDDED_RANKS = 512
_LOOKBACK_NS = 120 * NS_PER_S  # how far a fresh analyzer goes back to learn what is usual
_MOST_BEHIND_NS = 30 * NS_PER_S  # what is due of a job; further back, and to report in time is worth more
_WEIGH_NS = 10 * NS_PER_S  # as often as ranks say what they cost
_PAUSE_HOPS = 5  # between two runs: longer, and we were stopped, or too slow
_BEHIND_HOPS = 1.5  # between two runs: longer, and jobs have more due than can be done

_BUDGET_NS = 2 * NS_PER_S  # of CPU for an evaluation, beside the store: beyond, a job has the share of its hosts
_LONGEST_REST_NS = 60 * NS_PER_S  # of a job that took more, or could not be evaluated
_AT_ONCE = 50  # jobs evaluated together, half as many statements as for two halves: two or three seconds
_MOST_EARLY = 8  # jobs in doubt that are evaluated once more in between: as dear as a sixth of a turn
_OF_ALL = (ControlAway, LeaseLost, StoreAway)  # troubles that are no job's own

Announce = Callable[[Incident], None]


@dataclass(frozen=True)
class ServiceOptions:
    """How the analyzer follows jobs, and when a host that says nothing is silent."""

    silence_ns: int = 15 * NS_PER_S
    follow: FollowOptions = field(default_factory=FollowOptions)
    shard: Shard = ALL_JOBS


@dataclass
class _Job:
    followed: Followed
    reported_until_ns: int  # up to here the incidents have been told, perhaps by a process before this one
    last_ns: int
    hosts: int = 1
    done_until_ns: int | None = None  # None: not seen sending yet
    early_until_ns: int = 0  # up to here it was evaluated between two others
    rests_until_ns: int = 0  # others go first until then
    failures: int = 0  # in a row
    trouble: str | None = None  # why it cannot be evaluated

    def is_resting(self, now_ns: int) -> bool:
        return 0 < self.rests_until_ns - now_ns <= _LONGEST_REST_NS  # a clock that was set back holds no job


@dataclass
class _Backlog:
    """What is due of a job, and who takes part in it."""

    job: _Job
    span: JobSpan
    roster: Roster
    reports: dict[str, HostReport]
    due: list[tuple[int, frozenset[str]]]  # the end of each evaluation, and who is silent about it
    is_early: bool = False  # what is due lies between two others

    def take_next(self, options: EvaluationOptions) -> tuple[Window, frozenset[str]]:
        """Return the window of the next evaluation, and who is silent about it."""
        end_ns, silent = self.due.pop(0)
        return window_at(end_ns, self.span.first_ns, self.job.followed.stages.period_ns, options), silent

    def is_idle(self, window: Window, silent: frozenset[str], hangs: HangOptions) -> bool:
        """Return whether nothing can have changed: it ended too long ago to hang, all report, nothing is wrong."""
        followed = self.job.followed
        reach_ns = hangs.patience_ns(followed.stages.period_ns, NS_PER_S) + hangs.quiet_ns
        ended_ns = min(window.start_ns, window.end_ns - reach_ns)
        return self.span.last_ns < ended_ns and not silent and not followed.faults.sightings


class AnalyzerService:
    """Follows every job of its shard that sends telemetry; `run_once` does what is due and returns."""

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
        self._jobs: dict[JobKey, _Job] = {}
        self._generation: int | None = None
        self._ran_ns: int | None = None
        self._is_behind = False
        self._attentive_since_ns = 0  # hosts are silent at the earliest some time after this
        self._leaving = threading.Event()
        self._found = 0  # jobs in the last run
        self._weighed_ns = 0  # when we looked last what jobs pay for their detail
        self.skipped = 0  # evaluations that were left out because we were behind

    def stop(self) -> None:
        """Begin no more evaluations."""
        self._leaving.set()

    def run_once(self, lease: Lease, now_ns: int) -> int:
        """Take every evaluation that is due, save what changed under the lease, return the evaluations taken.

        Jobs take turns, an evaluation each, so that a job with many due holds up nobody; those of one turn read
        together. A job that cannot be evaluated, or takes too long, rests while the others go on. Where turns take as
        long as what is due reaches back, the rest of it is left for a run that knows what came meanwhile.
        """
        began_ns = monotonic_ns()
        if lease.generation != self._generation:
            self._take_over(lease.generation)
        self._note_pause(now_ns)
        shard = self._options.shard
        found = find_jobs(self._store, now_ns - _LOOKBACK_NS)
        spans = {(span.job, span.attempt): span for span in found if shard.has(span.job)}
        skipped = self.skipped
        backlogs = [backlog for backlog in self._plan(spans, now_ns) if backlog.due]
        early = [backlog for backlog in backlogs if backlog.is_early]
        backlogs = [backlog for backlog in backlogs if backlog not in early[_MOST_EARLY:]]
        if self.skipped > skipped:
            _log.warning("evaluations skipped, the analysis was behind", skipped=self.skipped - skipped)
        evaluations, failed = 0, list[Exception]()
        while backlogs and monotonic_ns() - began_ns < _MOST_BEHIND_NS:
            for first in range(0, len(backlogs), _AT_ONCE):
                if self._leaving.is_set():
                    return evaluations  # what is due still is at the next start
                evaluations += self._evaluate(backlogs[first : first + _AT_ONCE], lease, now_ns, failed)
            backlogs = [backlog for backlog in backlogs if backlog.due]
        self._close_ended([key for key in self._jobs if key not in spans], lease, now_ns)
        followed = {key[0]: self._jobs[key].done_until_ns for key in sorted(spans.keys() & self._jobs.keys())}
        note_jobs(self._control, {job: until_ns for job, until_ns in followed.items() if until_ns is not None}, shard)
        if failed:
            raise failed[0]
        if not shard.index and now_ns - self._weighed_ns >= _WEIGH_NS:  # of all jobs
            self._weighed_ns = now_ns
            add_detail_requests(self._control, *lower_dear_jobs(self._store, now_ns), now_ns=now_ns)
        note_analysis(self._control, Analysis(now_ns, self.skipped), shard)
        if troubled := [f"{key[0]} ({job.trouble})" for key, job in self._jobs.items() if job.trouble]:
            raise LockstepError(f"{len(troubled)} of {len(self._jobs)} jobs cannot be evaluated: {troubled[0]}")
        return evaluations

    def _take_over(self, generation: int) -> None:
        """Begin from the open incidents: since we last held the lease, somebody else may have changed them."""
        found: dict[JobKey, list[Incident]] = {}
        for incident in open_incidents(self._control):
            if self._options.shard.has(incident.job):
                found.setdefault((incident.job, incident.attempt), []).append(incident)
        self._jobs = {key: _adopt(incidents) for key, incidents in found.items()}
        self._generation = generation

    def _note_pause(self, now_ns: int) -> None:
        """Remember since when we have kept up: what hosts sent meanwhile may not have reached the store yet."""
        hops = 0.0 if self._ran_ns is None else (now_ns - self._ran_ns) / self._options.follow.evaluations.hop_ns
        if hops > _PAUSE_HOPS:
            self._attentive_since_ns = now_ns
        self._is_behind, self._ran_ns = hops > _BEHIND_HOPS, now_ns

    def _plan(self, spans: Mapping[JobKey, JobSpan], now_ns: int) -> list[_Backlog]:
        """Return what is due of each job, and who takes part in it."""

        def read_who(store: Store, span: JobSpan) -> tuple[Roster, dict[str, HostReport]]:
            roster = read_roster(store, span.job, span.attempt)
            return roster, find_reports(store, roster.hosts, now_ns - _LOOKBACK_NS)

        awake = {key: span for key, span in spans.items() if not self._meet(key, span).is_resting(now_ns)}
        asked = read_together(self._store, [partial(read_who, span=span) for span in awake.values()])
        known = {}
        for key, who in zip(awake, asked, strict=True):
            try:
                known[key] = who.result()
            except Exception as error:  # noqa: BLE001  # of one job
                self._set_aside(key[0], self._jobs[key], error, now_ns)
        oldest_first = sorted(known, key=lambda key: spans[key].first_ns)
        followed = choose_followed({key: known[key][0].hosts for key in oldest_first})
        if len(followed) < len(known) != self._found:
            _log.warning("more jobs than hosts can run are not followed", jobs=len(known), followed=len(followed))
        self._found = len(known)
        return [self._plan_job(key, spans[key], *known[key], now_ns) for key in followed]

    def _plan_job(
        self, key: JobKey, span: JobSpan, roster: Roster, known: dict[str, HostReport], now_ns: int
    ) -> _Backlog:
        job = self._jobs[key]
        job.last_ns, job.hosts = max(job.last_ns, span.last_ns), max(len(roster.hosts), 1)
        is_new = job.done_until_ns is None
        if is_new and roster.ranks > EMBEDDED_RANKS and isinstance(self._store.address, Embedded):
            message = "job is too large for the embedded store; use a server"
            _log.warning(message, job=span.job, ranks=roster.ranks)
        if job.done_until_ns is None:
            job.done_until_ns = max(span.first_ns, now_ns - _LOOKBACK_NS)
        # A host that never reported gets as long as others, from the job's first row; none is silent because we were
        # away or behind.
        missing = HostReport(watermark_ns=0, last_seen_ns=max(span.first_ns, self._attentive_since_ns))
        reports = {
            host: replace(report, last_seen_ns=max(report.last_seen_ns, self._attentive_since_ns))
            for host, report in known.items()
        }
        reports = dict.fromkeys(roster.hosts, missing) | reports
        due = self._find_due(job.done_until_ns, roster, reports, now_ns)
        # Windows overlap: of a job in which nothing is wrong the newest tells as much as all that are due.
        is_calm = self._is_behind and not job.followed.faults.sightings
        if not is_new and due and (is_calm or due[-1][0] - job.done_until_ns > _MOST_BEHIND_NS):
            self.skipped += len(due) - 1
            due = due[-1:]
        early = [] if due else self._find_early(job, roster, reports, now_ns)
        return _Backlog(job, span, roster, known, due or early, is_early=bool(early))

    def _find_early(
        self, job: _Job, roster: Roster, reports: Mapping[str, HostReport], now_ns: int
    ) -> list[tuple[int, frozenset[str]]]:
        """Return the same of one between two, where a doubt waits for it and we keep up."""
        options, done_ns = self._options.follow.evaluations, job.done_until_ns
        if done_ns is None or self._is_behind or not job.followed.is_in_doubt:
            return []
        (next_ns,) = plan_evaluations(done_ns, done_ns + options.hop_ns, options)
        end_ns = early_end(done_ns, next_ns, options)
        if end_ns is None or end_ns <= job.early_until_ns:
            return []
        closing = judge_window(end_ns, roster.hosts, reports, now_ns, self._options.silence_ns)
        return [(end_ns, closing.silent)] if closing.closed else []

    def _find_due(
        self, done_until_ns: int, roster: Roster, reports: Mapping[str, HostReport], now_ns: int
    ) -> list[tuple[int, frozenset[str]]]:
        """Return the end of each evaluation whose window is closed, and who is silent about it."""
        due = []
        for end_ns in plan_evaluations(done_until_ns, now_ns, self._options.follow.evaluations):
            closing = judge_window(end_ns, roster.hosts, reports, now_ns, self._options.silence_ns)
            if not closing.closed:
                break
            due.append((end_ns, closing.silent))
        return due

    def _evaluate(self, backlogs: list[_Backlog], lease: Lease, now_ns: int, failed: list[Exception]) -> int:
        """Take the next evaluation of some jobs; one that fails comes again, and keeps no other from being saved."""
        planned = []
        for backlog in backlogs:
            window, silent = backlog.take_next(self._options.follow.evaluations)
            if backlog.is_idle(window, silent, self._options.follow.analyzer.hangs):
                backlog.job.done_until_ns = window.end_ns
            else:
                planned.append((backlog, window, silent))
        works = [partial(self._evaluate_one, plan=plan) for plan in planned]
        outcomes = read_together(self._store, works, self._leaving.is_set)
        if self._leaving.is_set():
            return 0  # all of them are due again at the next start
        kept = []
        for (backlog, window, _), outcome in zip(planned, outcomes, strict=True):
            try:
                found, spent_ns = outcome.result()
                self._save(found.changed, lease)
                add_detail_requests(self._control, *found.requests, now_ns=window.end_ns)
                kept.append((backlog, window, found))
                self._keep_budget(backlog, spent_ns, now_ns)
            except _OF_ALL as error:  # raised when all have had their turn
                failed.append(error)
                backlog.due = []
            except Exception as error:  # noqa: BLE001  # of one job
                self._set_aside(backlog.span.job, backlog.job, error, now_ns)
                backlog.due = []
        self._keep(kept)
        return len(planned)

    def _set_aside(self, name: str, job: _Job, error: Exception, now_ns: int) -> None:
        """Let a job rest that cannot be evaluated; it is told by `run_once` until it can."""
        if isinstance(error, _OF_ALL):
            raise error
        trouble = f"{type(error).__name__}: {error}"
        if trouble != job.trouble:
            _log.error("job cannot be evaluated", job=name, error=trouble, exc_info=error)
        job.trouble, job.failures = trouble, job.failures + 1
        job.rests_until_ns = now_ns + min(NS_PER_S << min(job.failures, 8), _LONGEST_REST_NS)

    def _keep_budget(self, backlog: _Backlog, spent_ns: int, now_ns: int) -> None:
        """Let a job rest that took more than its budget, so that others have as much time for each of their hosts.

        Nobody can invent hosts: each has its own token. So a large job is not held back by a few small ones.
        """
        backlog.job.trouble, backlog.job.failures = None, 0
        hosts = sum(job.hosts for job in self._jobs.values())
        rest_ns = min(spent_ns * (hosts - backlog.job.hosts) // backlog.job.hosts, _LONGEST_REST_NS)
        if spent_ns > _BUDGET_NS and rest_ns:
            seconds = {"took_s": spent_ns / NS_PER_S, "rests_s": rest_ns / NS_PER_S}
            _log.warning("job rests, its evaluation took long", job=backlog.span.job, **seconds)
            backlog.job.rests_until_ns, backlog.due = now_ns + rest_ns, []

    def _evaluate_one(self, store: Store, plan: tuple[_Backlog, Window, frozenset[str]]) -> tuple[Outcome, int]:
        """Return what an evaluation gave, and the CPU time that it took beside the store's."""
        backlog, window, silent = plan
        began_ns = thread_time_ns()
        who = (backlog.roster, silent, backlog.reports, self._topology)
        told = {"is_reported": window.end_ns <= backlog.job.reported_until_ns, "is_early": backlog.is_early}
        found = evaluate_window(store, backlog.span, window, backlog.job.followed, who, self._options.follow, **told)
        return found, thread_time_ns() - began_ns

    def _keep(self, kept: list[tuple[_Backlog, Window, Outcome]]) -> None:
        """Store the steps that were found, and go on from there."""
        if not kept:
            return
        ends = sorted(f"{backlog.span.job}/{backlog.span.attempt}/{window.end_ns}" for backlog, window, _ in kept)
        token = "steps/" + hashlib.sha256("\n".join(ends).encode()).hexdigest()
        steps = pa.concat_tables([outcome.judgement.steps for *_, outcome in kept])
        self._store.insert(TABLE_BY_NAME["steps"], steps, token=token)
        for backlog, window, outcome in kept:
            # Only now: had saving failed, the evaluation would be counted twice.
            backlog.job.followed = outcome.followed
            if backlog.is_early:
                backlog.job.early_until_ns = window.end_ns
            else:
                backlog.job.done_until_ns = window.end_ns

    def _meet(self, key: JobKey, span: JobSpan) -> _Job:
        """Return what is known of a job, from its past incidents where it is new."""
        if key not in self._jobs:
            past = [known for known in list_incidents(self._control, job=span.job) if known.attempt == span.attempt]
            reported_until_ns = max((known.updated_ns for known in past), default=0)
            self._jobs[key] = _Job(Followed(), reported_until_ns, span.last_ns)
        return self._jobs[key]

    def _close_ended(self, missing: list[JobKey], lease: Lease, now_ns: int) -> None:
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
