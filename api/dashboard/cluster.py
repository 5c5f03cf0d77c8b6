"""Pages about the whole: the overview, agents, parts, the scorecard, the fabric, and settings."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from api.auth import Admin
from api.dashboard.pages import PageRoute, call, find_viewer, page_of, page_router, render
from api.dashboard.pictures import draw_fabric, draw_sparkline
from api.dependencies import Cursor, Parts, parts_of, read_cursor, write_cursor
from api.routes import decisions, webhooks
from api.routes.decisions import Downtime, Scorecard
from api.views.fabric import FabricView, LinkView, read_fabric
from api.views.hosts import AgentView, list_agents
from api.views.jobs import Job, list_jobs, list_steps
from api.views.ledger import find_part, list_parts
from lockstep.config import Settings, list_settings
from lockstep.decision import Decision
from lockstep.errors import NotPresent, StoreError
from lockstep.execution import Isolated
from lockstep.host_paths import PathSummary
from lockstep.state.decisions import list_decisions, list_isolated, list_outcomes
from lockstep.state.fabric import list_path_plans
from lockstep.state.incidents import list_incidents, open_incidents
from lockstep.verdict import Grade, Incident, Severity

router = page_router()
tests = APIRouter(route_class=PageRoute, include_in_schema=False)

_KNOWN_JOBS = 5_000  # attempts among which the newest are found
_MOST_JOBS = 50  # what fits a page; the others are found by their incidents
_CURVES = 20  # each is a question to the store, every time the page asks
_MOST_AGENTS = 500
_STEPS = 200  # of a curve
_CLOSED = 5
_ON_A_PAGE = 500
_DAY_S = 86_400
_RECENT = 100
_PLANS = 20
_FULLEST = 24

UNSET = "not set"
HIDDEN = "set, and not shown"
# What is, or may hold, a secret; receivers are listed by themselves, without theirs.
_PRIVATE = ("token", "password", "secret", "key", "controller_options", "command", "targets")
_IN_QUERY = re.compile(r"(?<=[?&])([^=&#]*=)[^&#]*")


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
    return _render_overview(request, "overview.html")


@router.get("/live")
def live(request: Request) -> HTMLResponse:
    """Return the part of the overview that changes."""
    return _render_overview(request, "overview_live.html")


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


@router.get("/agents")
def agents(request: Request, cursor: Cursor = None) -> HTMLResponse:
    """Return the agents that were agents reporting within a day."""
    parts = parts_of(request)
    after = read_cursor(cursor, str)
    found = list_agents(parts.store, parts.second_ns(), _ON_A_PAGE + 1, after, since_s=_DAY_S)
    shown = found[:_ON_A_PAGE]
    following = page_of("/agents", cursor=write_cursor((shown[-1].host,))) if len(found) > _ON_A_PAGE else None
    return render(
        request,
        "agents.html",
        "agents",
        "Agents",
        (call("/agents"),),
        agents=shown,
        following=following,
        versions=sorted({agent.version for agent in shown}),
    )


@router.get("/parts")
def parts(request: Request, component: str | None = None) -> HTMLResponse:
    """Return all parts with a history, the most suspect first, or the history of one."""
    held = parts_of(request)
    if not component:
        found = list_parts(held.store, held.control, held.second_ns())
        worst = sorted(found, key=lambda it: (-len(it.flags), -it.confirmed, -it.incidents, -it.severe_events))
        return render(request, "parts.html", "parts", "Parts", (call("/parts"),), parts=worst)
    try:
        part = find_part(held.store, held.control, component, held.second_ns())
    except NotPresent:
        part = None  # without a history: that is an answer, not an error
    asked = (call(f"/parts/{quote(component)}"),)
    return render(request, "part.html", "parts", component, asked, component=component, part=part)


@router.get("/scorecard")
def scorecard(request: Request) -> HTMLResponse:
    """Return what the advice was worth, and what each fault cost."""
    parts = parts_of(request)
    rows, made = decisions.downtime(parts)["items"], list_decisions(parts.control, limit=500)
    return render(
        request,
        "scorecard.html",
        "scorecard",
        "Scorecard",
        (call("/scorecard"), call("/downtime")),
        score=Scorecard.model_validate(decisions.scorecard(parts)),
        downtimes=[Downtime.model_validate({key: row[key] for key in row if key != "total_s"}) for row in rows],
        incidents=list_incidents(parts.control, limit=_RECENT),
        outcomes=list_outcomes(parts.control),
        advice={each.incident: each for each in reversed(made) if each.action != "none"},
    )


@dataclass(frozen=True)
class TopologyView:
    """What the page shows."""

    fabric: FabricView
    picture: Markup
    planned: Markup | None  # connections of the plan in force, against the most on one link; None: there is no plan
    most_planned: int  # connections on one link
    links: Sequence[LinkView]  # the suspects, then the fullest
    plans: Sequence[PathSummary]  # the newest first
    incidents: Sequence[Incident]


@router.get("/topology")
def topology(request: Request) -> HTMLResponse:
    """Return the fabric with loads and suspects, or that none is known."""
    parts = parts_of(request)
    calls = (call("/topology"), call("/paths"), call("/paths/history"))
    try:
        fabric = read_fabric(parts.store, parts.control, parts.topology, parts.second_ns())
    except NotPresent as absence:
        return render(request, "no_topology.html", "topology", "Topology", calls, sentence=str(absence))
    most_planned = max((link.planned_flows for link in fabric.links), default=0)
    shares = {link.id: link.planned_flows / max(most_planned, 1) for link in fabric.links}
    view = TopologyView(
        fabric=fabric,
        picture=draw_fabric(fabric, {link.id: link.load for link in fabric.links if link.load is not None}),
        planned=draw_fabric(fabric, shares) if fabric.path_plan is not None and most_planned else None,
        most_planned=most_planned,
        links=sorted(fabric.links, key=lambda link: (not link.suspects, link.up, -(link.load or 0)))[:_FULLEST],
        plans=list_path_plans(parts.control, _PLANS),
        incidents=open_incidents(parts.control),
    )
    return render(request, "topology.html", "topology", "Topology", calls, view=view)


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting as it holds."""

    section: str
    key: str
    variable: str
    value: str
    is_default: bool
    meaning: str


@router.get("/settings")
def settings(request: Request) -> HTMLResponse:
    """Return every setting with its value, and the receivers of alerts."""
    return _render_settings(request, note="")


@tests.post("/settings/receivers/{name}/test")
def test_receiver(request: Request, name: webhooks.Name, admin: Admin) -> HTMLResponse:
    """Send a test to a receiver, and show the page with what it said."""
    tested = webhooks.test(parts_of(request), name, admin)
    how = "took the test" if tested.delivered else "did not take the test"
    return _render_settings(request, note=f"{name} {how}: {tested.said}")


def show_settings(held: Settings) -> list[Shown]:
    """Return all settings in the order of their sections; what may be a secret is named and not shown."""
    values, shown = held.model_dump(mode="json"), list[Shown]()
    for setting in list_settings():
        *section, key = setting.path
        value = values[section[0]][key] if section else values[key]
        live = getattr(getattr(held, section[0]), key) if section else getattr(held, key)
        name, is_default = section[0] if section else "general", live == setting.default
        shown.append(Shown(name, key, setting.variable, _text(key, value), is_default, setting.meaning))
    return shown


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


def _render_overview(request: Request, template: str) -> HTMLResponse:
    parts = parts_of(request)
    calls = (call("/incidents", state="open"), call("/jobs"), call("/agents"))
    return render(request, template, "overview", "Overview", calls, view=gather(parts))


def _render_settings(request: Request, note: str) -> HTMLResponse:
    return render(
        request,
        "settings.html",
        "settings",
        "Settings",
        (call("/policies"), call("/webhooks")),
        settings=show_settings(parts_of(request).settings),
        receivers=webhooks.targets(parts_of(request)).items,
        viewer=find_viewer(request),
        note=note,
    )


def _text(key: str, value: object) -> str:
    if value in (None, "", [], {}):
        return UNSET
    is_file = key.endswith("_file") or key == "tls_key"  # where a secret lies is no secret
    if not is_file and any(word in key for word in _PRIVATE):
        return HIDDEN
    shown = _cleaned(value)
    return shown if isinstance(shown, str) else json.dumps(shown)


def _cleaned(value: object) -> object:
    """Return the value with every URL in it without what may be a password."""
    if isinstance(value, dict):
        return {name: _cleaned(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    return _without_password(value) if isinstance(value, str) else value


def _without_password(text: str) -> str:
    """Return a URL without user and password, also where they are parameters of it.

    >>> _without_password("postgresql://ada:secret@db/lockstep")
    'postgresql://…@db/lockstep'
    >>> _without_password("postgresql://db/lockstep?user=ada&password=secret")
    'postgresql://db/lockstep?user=…&password=…'
    """
    scheme, mark, rest = text.partition("://")
    user, at, address = rest.rpartition("@")
    shown = f"{scheme}://…@{address}" if mark and at and user else text
    return _IN_QUERY.sub(r"\1…", shown) if mark else text
