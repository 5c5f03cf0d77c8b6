"""The overview: how each job is, which incidents are open, and whether Lockstep itself is well."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from fastapi import Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from api.dashboard.pages import call, page_router, render
from api.dashboard.pictures import draw_sparkline
from api.parts import Parts, parts_of
from api.views.hosts import AgentView, list_agents
from api.views.jobs import Job, list_jobs, list_steps
from lockstep.decision import Decision
from lockstep.errors import StoreError
from lockstep.execution import Isolated
from lockstep.state.decisions import list_decisions, list_isolated
from lockstep.state.incidents import list_incidents, open_incidents
from lockstep.verdict import Grade, Incident, Severity

router = page_router()

_KNOWN_JOBS = 5_000  # attempts among which the newest are found
_MOST_JOBS = 50  # what fits a page; the others are found by their incidents
_CURVES = 20  # each is a question to the store, every time the page asks
_MOST_AGENTS = 500
_STEPS = 200  # of a curve
_CLOSED = 5


@dataclass(frozen=True)
class JobRow:
    """A job and the curve of its step times."""

    job: Job
    curve: Markup


@dataclass(frozen=True)
class Telemetry:
    """What the store tells, or why it does not."""

    jobs: Sequence[JobRow] = ()
    agents: Sequence[AgentView] = ()
    trouble: str = ""

    @property
    def silent(self) -> list[str]:
        return [agent.host for agent in self.agents if agent.is_silent]

    @property
    def missing(self) -> list[str]:
        """Return which sources give no readings, a sentence each."""
        return [each for agent in self.agents if not agent.is_silent for each in agent.missing]

    @property
    def dropped(self) -> int:
        return sum(agent.dropped_lately for agent in self.agents)


@dataclass(frozen=True)
class Overview:
    """All that the first page shows."""

    incidents: Sequence[Incident]
    closed: Sequence[Incident]
    waiting: Sequence[Decision]  # for a person's yes
    isolated: Sequence[Isolated]
    telemetry: Telemetry

    @property
    def waits_on(self) -> dict[str, Decision]:
        """Return the decisions that wait for a person, by their incident."""
        return {decision.incident: decision for decision in self.waiting}


@router.get("/")
def overview(request: Request) -> HTMLResponse:
    return _render(request, "overview.html")


@router.get("/live")
def live(request: Request) -> HTMLResponse:
    """Return the part of the overview that changes."""
    return _render(request, "overview_live.html")


def gather(parts: Parts) -> Overview:
    """Return what the first page shows; a store that is away takes the jobs with it and nothing else."""
    control, now_ns = parts.control, parts.second_ns()
    opened = sorted(open_incidents(control), key=_urgency)
    newest = {incident.id: list_decisions(control, incident=incident.id, limit=1) for incident in opened}
    waiting = [found[0] for found in newest.values() if found and found[0].mode == "propose"]
    return Overview(
        incidents=opened,
        closed=list_incidents(control, state="closed", limit=_CLOSED),
        waiting=[decision for decision in waiting if decision.action != "none" and decision.expires_ns > now_ns],
        isolated=[each for each in list_isolated(control) if each.state != "returned"],
        telemetry=_read_telemetry(parts, opened, now_ns),
    )


def _urgency(incident: Incident) -> tuple[bool, int, int, int]:
    """Return its place: jobs that stand still first, then by severity, then what is surer, then the newest."""
    verdict = incident.verdict
    severity, grade = get_args(Severity).index(verdict.severity), get_args(Grade).index(verdict.grade)
    return not verdict.stands_still, severity, grade, -incident.opened_ns


def _read_telemetry(parts: Parts, incidents: Sequence[Incident], now_ns: int) -> Telemetry:
    try:
        known = list_jobs(parts.store, parts.control, now_ns, limit=_KNOWN_JOBS)
        jobs = sorted(known, key=lambda job: (job.condition == "ended", not job.incidents, -job.last_ns))[:_MOST_JOBS]
        drawn = [job for job in jobs if job.condition != "ended"][:_CURVES]
        curves = {(job.job, job.attempt): _curve(parts, job, incidents, now_ns) for job in drawn}
        rows = [JobRow(job, curves.get((job.job, job.attempt), Markup(""))) for job in jobs]
        return Telemetry(rows, list_agents(parts.store, now_ns, limit=_MOST_AGENTS))
    except StoreError as error:
        return Telemetry(trouble=str(error))


def _curve(parts: Parts, job: Job, incidents: Sequence[Incident], now_ns: int) -> Markup:
    steps = [step for step in list_steps(parts.store, job.job, _STEPS) if step.attempt == job.attempt]
    points = [(step.end_ns, step.step_s) for step in reversed(steps)]
    faults = [(incident.verdict.since_ns, now_ns) for incident in incidents if incident.id in job.incidents]
    longest = max((seconds for _, seconds in points), default=0.0)
    return draw_sparkline(points, faults, f"step times of the last {len(points)} steps, up to {longest:.2f} s")


def _render(request: Request, template: str) -> HTMLResponse:
    parts = parts_of(request)
    calls = (call("/incidents", state="open"), call("/jobs"), call("/agents"))
    return render(request, template, "overview", "Overview", calls, view=gather(parts))
