"""Is it alive, can it work, which version: for probes, without a token. What it counts and can do: with one.

What Prometheus reads of the whole system is incidents, what was done about them, and a gauge or two for each job.
Nothing of it has a rank, a sequence number or a size in its labels; jobs are capped, and lose their gauges when they
end.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from api.alerts.service import QueueFigures, read_queue
from api.auth import Reader, Scraper
from api.dependencies import Parts
from api.problems import install_problems
from api.sharing import TtlCache
from lockstep import __version__
from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.errors import LockstepError
from lockstep.execution import OUT_OF_SERVICE, Execution
from lockstep.state.decisions import list_isolated
from lockstep.state.documents import read_document
from lockstep.state.incidents import Analysis, Change, get_incident, open_incidents, read_analysis, read_jobs
from lockstep.verdict import Incident

Readiness = Callable[[], None]  # raises LockstepError with the reason why it cannot work

router = APIRouter()

_log = structlog.get_logger("metrics")

FRESH_S = 5.0  # scrapers that come together share one reading
ENDED_S = 300  # a job without a step for this long has ended, hangs, or tells us nothing
_MOST_REMEMBERED = 2_000  # executions that were counted already
_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_STEP_TIMES = """
SELECT job, quantileExact(0.5)(longest) / 1e9 AS step_s, max(last) AS last_ns FROM (
    SELECT job, max(end_ns - start_ns) AS longest, max(end_ns) AS last FROM steps
    WHERE start_ns >= {since:Int64} GROUP BY job, attempt, step
) GROUP BY job ORDER BY last_ns DESC, job LIMIT {most:UInt64}
"""


@router.get("/healthz", response_class=PlainTextResponse)
async def alive() -> str:  # needs no thread: all may be taken by readers
    return "ok\n"


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/readyz")
def ready(request: Request) -> Response:
    try:
        request.app.state.check_ready()
    except LockstepError as error:
        return JSONResponse({"ready": False, "reason": str(error)}, 503)
    parts = getattr(request.app.state, "parts", None)  # a service apart knows nothing of the analysis
    behind = parts.analysis() if parts else ""
    return JSONResponse({"ready": True} | ({"analysis": behind} if behind else {}))


@router.get("/metrics", dependencies=[Scraper], response_class=PlainTextResponse)
def metrics(request: Request) -> Response:
    """Return all counters and gauges in Prometheus's text format."""
    return Response(b"".join(map(generate_latest, request.app.state.registries)), media_type=CONTENT_TYPE_LATEST)


@router.get("/openapi.json", dependencies=[Reader], include_in_schema=False)
def description(request: Request) -> JSONResponse:
    """Return what the API can do, for programs that write clients."""
    return JSONResponse(request.app.openapi())


def health_app(check_ready: Readiness, registries: list[CollectorRegistry]) -> FastAPI:
    """Return an app with nothing but these, for services that serve nothing else."""
    app = FastAPI(title="Lockstep", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.check_ready = check_ready
    app.state.registries = registries
    install_problems(app)
    app.get("/healthz", response_class=PlainTextResponse)(alive)
    app.get("/version")(version)
    app.get("/readyz")(ready)
    app.get("/metrics")(metrics)  # without a token: such a service listens on loopback, and counts only itself
    return app


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What was there at one moment."""

    by_class: Tally[str] = field(default_factory=Tally)
    by_job: Tally[str] = field(default_factory=Tally)
    step_s: dict[str, float] = field(default_factory=dict)
    nodes_out: int | None = None
    analysis: Analysis | None = None
    judged_ns: dict[str, int] = field(default_factory=dict)  # by job
    queue: QueueFigures = field(default_factory=QueueFigures)
    failed: tuple[str, ...] = ()


class SystemMetrics(Collector):
    """Counts what changes as the feed tells it, and looks at what is there when it is asked."""

    def __init__(self, parts: Parts) -> None:
        self.registry = CollectorRegistry()
        self._parts = parts
        self._snapshots: TtlCache[_Snapshot] = TtlCache(parts.clock, fresh_s=FRESH_S)
        self._counted: dict[str, None] = {}  # executions in the order in which they ended
        counter = partial(Counter, registry=self.registry)
        seconds = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        self._verdicts = counter("lockstep_verdicts", "Incidents opened since the start", ["class"])
        self._detection = seconds("lockstep_detection_seconds", "From the begin of a fault to its incident")
        self._quarantine = seconds("lockstep_quarantine_seconds", "From an incident to its part out of service")
        self._decisions = counter("lockstep_decisions", "Decisions made or renewed", ["action", "mode"])
        self._actions = counter("lockstep_actions", "Actions carried out, by how they ended", ["action", "result"])
        self.registry.register(parts.delivered.counter)
        self.registry.register(parts.delivered.seconds)
        self.registry.register(self)

    def watch(self, changes: Sequence[Change], known: int) -> None:
        """Count what is new in these changes; everything up to `known` was counted before."""
        for change in changes:
            if change.kind == "incident" and change.first > known:
                opened = read_document(Incident, change.document)
                self._verdicts.labels(opened.verdict.fault_class).inc()
                self._detection.observe(max(0, opened.opened_ns - opened.verdict.since_ns) / NS_PER_S)
            elif change.kind == "decision":
                made = read_document(Decision, change.document)
                self._decisions.labels(made.action, made.mode).inc()
            elif change.kind == "execution":
                self._count_execution(read_document(Execution, change.document))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Give the gauges of this moment; what cannot be read is left out, and said to be."""
        snapshot = self._snapshots.get("all", self._read)
        yield _gauge("lockstep_build_info", "The version that runs", ["version"], [((__version__,), 1)])
        yield _gauge("lockstep_incidents_open", "Faults that last", ["class"], _by_one(snapshot.by_class))
        yield _gauge("lockstep_job_incidents", "The same by job", ["job"], _by_one(snapshot.by_job))
        steps = (((job,), seconds) for job, seconds in sorted(snapshot.step_s.items()))
        yield _gauge("lockstep_job_step_seconds", "Median training step of the last minutes", ["job"], steps)
        yield _gauge("lockstep_nodes_out", "Nodes that we took out of service", [], _alone(snapshot.nodes_out))
        yield from self._of_analysis(snapshot.analysis, snapshot.judged_ns)
        yield from _of_queue(snapshot.queue)
        unread = [((source,), float(source in snapshot.failed)) for source in ("control", "store")]
        yield _gauge("lockstep_metrics_unread", "1 where gauges are missing because it was away", ["source"], unread)

    def _of_analysis(self, analysis: Analysis | None, judged_ns: Mapping[str, int]) -> Iterator[GaugeMetricFamily]:
        now_ns = self._parts.clock.now_ns()
        behind_s = max(now_ns - analysis.until_ns, 0) / NS_PER_S if analysis else None
        yield _gauge("lockstep_analysis_behind_seconds", "Since what was judged last", [], _alone(behind_s))
        by_job = (((job,), max(now_ns - until_ns, 0) / NS_PER_S) for job, until_ns in sorted(judged_ns.items()))
        yield _gauge("lockstep_job_analysis_behind_seconds", "The same by job, the furthest behind", ["job"], by_job)
        skipped = analysis.skipped if analysis else None
        yield _gauge("lockstep_analysis_skipped", "Evaluations left out because it was behind", [], _alone(skipped))

    def _count_execution(self, run: Execution) -> None:
        if run.ended_ns is None or run.decision in self._counted:
            return
        self._counted[run.decision] = None
        if len(self._counted) > _MOST_REMEMBERED:
            del self._counted[next(iter(self._counted))]
        self._actions.labels(run.action, run.state).inc()
        isolated = [step.ended_ns for step in run.steps if step.act == "isolate" and step.state == "done"]
        if ended_ns := max(filter(None, isolated), default=None):
            opened_ns = get_incident(self._parts.control, run.incident).opened_ns
            self._quarantine.observe(max(0, ended_ns - opened_ns) / NS_PER_S)

    def _read(self) -> _Snapshot:
        failed, snapshot = list[str](), _Snapshot()
        for source, ask in (("control", self._ask_control), ("store", self._ask_store)):
            try:
                snapshot = ask(snapshot)
            except LockstepError as error:
                failed.append(source)
                _log.warning("metrics are incomplete", reason=str(error))
        return replace(snapshot, failed=tuple(failed))

    def _ask_control(self, snapshot: _Snapshot) -> _Snapshot:
        control, settings = self._parts.control, self._parts.settings
        incidents = open_incidents(control)
        by_job = Tally(incident.job for incident in incidents)
        return replace(
            snapshot,
            by_class=Tally(incident.verdict.fault_class for incident in incidents),
            by_job=Tally(dict(by_job.most_common(settings.api.metrics_jobs))),
            nodes_out=sum(each.state in OUT_OF_SERVICE for each in list_isolated(control)),
            analysis=read_analysis(control),
            judged_ns=read_jobs(control, settings.api.metrics_jobs),
            queue=read_queue(settings.alerts, control, self._parts.clock.now_ns()),
        )

    def _ask_store(self, snapshot: _Snapshot) -> _Snapshot:
        since = max(0, self._parts.clock.now_ns() - ENDED_S * NS_PER_S)
        asked = {"since": since, "most": self._parts.settings.api.metrics_jobs}
        rows = self._parts.store.query(_STEP_TIMES, asked).to_pylist()
        return replace(snapshot, step_s={row["job"]: row["step_s"] for row in rows})


def _of_queue(queue: QueueFigures) -> Iterator[GaugeMetricFamily]:
    messages = sorted(queue.messages.items())
    yield _gauge("lockstep_alert_queue_messages", "Alerts that were not delivered", ["kind", "state"], messages)
    yield _gauge("lockstep_alert_queue_oldest_seconds", "How long one has waited", [], _alone(queue.oldest_s))
    failures = [((each.kind, each.name), each.failures) for each in queue.receivers]
    yield _gauge("lockstep_receiver_failures", "Tries in vain since the last success", ["kind", "target"], failures)
    gone = [((each.kind, each.name), each.is_disabled) for each in queue.receivers]
    yield _gauge("lockstep_receiver_disabled", "1: it said that it is gone", ["kind", "target"], gone)


def _alone(value: float | None) -> Iterable[tuple[tuple[str, ...], float]]:
    """Return the only value of a gauge, or none where it could not be asked for."""
    return [] if value is None else [((), value)]


def _by_one(tally: Mapping[str, int]) -> Iterable[tuple[tuple[str, ...], float]]:
    return (((name,), count) for name, count in sorted(tally.items()))


def _gauge(
    name: str, help_text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for at, value in values:
        family.add_metric(at, value)
    return family
