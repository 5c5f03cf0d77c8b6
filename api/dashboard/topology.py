"""The fabric: which cables carry how much, which are suspected, and what the path plan makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from api.dashboard.addresses import call
from api.dashboard.page_route import page_router
from api.dashboard.pictures.fabric import draw_fabric
from api.dashboard.rendering import render
from api.parts import parts_of
from api.reading.fabric import FabricView, LinkView, read_fabric
from lockstep.control.incidents import open_incidents
from lockstep.control.path_plans import list_path_plans
from lockstep.errors import NotPresent
from lockstep.host_paths import PathSummary
from lockstep.incident import Incident

router = page_router()

_PLANS = 20
_FULLEST = 24


@dataclass(frozen=True)
class TopologyView:
    """What the page shows."""

    fabric: FabricView
    picture: Markup
    planned: Markup | None  # connections of the plan in force; None: there is no plan
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
    view = TopologyView(
        fabric=fabric,
        picture=draw_fabric(fabric, {link.id: link.load for link in fabric.links if link.load is not None}),
        planned=draw_planned(fabric),
        most_planned=most_planned(fabric),
        links=sorted(fabric.links, key=lambda link: (not link.suspects, link.up, -(link.load or 0)))[:_FULLEST],
        plans=list_path_plans(parts.control, _PLANS),
        incidents=open_incidents(parts.control),
    )
    return render(request, "topology.html", "topology", "Topology", calls, view=view)


def draw_planned(fabric: FabricView) -> Markup | None:
    """Return the fabric coloured by how many connections the plan leads over each link, against the most."""
    most = most_planned(fabric)
    if fabric.path_plan is None or not most:
        return None
    return draw_fabric(fabric, {link.id: link.planned_flows / most for link in fabric.links})


def most_planned(fabric: FabricView) -> int:
    """Return the most connections that the plan leads over one link."""
    return max((link.planned_flows for link in fabric.links), default=0)
