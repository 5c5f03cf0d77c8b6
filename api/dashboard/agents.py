"""The agents: which version each has, how far it lags, what it lost, and what it costs."""

from fastapi import Request
from fastapi.responses import HTMLResponse

from api.dashboard.addresses import call, page_of
from api.dashboard.page_route import page_router
from api.dashboard.rendering import render
from api.paging import Cursor, read_cursor, write_cursor
from api.parts import parts_of
from api.reading.agents import list_agents

router = page_router()

_ON_A_PAGE = 500
_DAY_S = 86_400


@router.get("/agents")
def agents(request: Request, cursor: Cursor = None) -> HTMLResponse:
    """Return the agents that were heard from within a day."""
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
