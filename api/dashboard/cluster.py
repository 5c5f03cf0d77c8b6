"""Pages about the cluster: agents, parts with a history, the scorecard and the fabric."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from api.dashboard.pages import call, page_of, page_router, render
from api.dashboard.pictures import draw_fabric
from api.parts import parts_of
from api.query import Cursor, read_cursor, write_cursor
from api.routes import decisions
from api.views.fabric import FabricView, LinkView, read_fabric
from api.views.hosts import list_agents
from api.views.ledger import find_part, list_parts
from lockstep.errors import NotPresent
from lockstep.host_paths import PathSummary
from lockstep.state.decisions import list_decisions, list_outcomes
from lockstep.state.fabric import list_path_plans
from lockstep.state.incidents import list_incidents, open_incidents
from lockstep.verdict import Incident
from planner.scorecard import Downtime, Scorecard

router = page_router()

_ON_A_PAGE = 500
_DAY_S = 86_400


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


_RECENT = 100


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


_PLANS = 20
_FULLEST = 24


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
