"""The path service: which path each connection of a host takes, and how many connections keep to theirs."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse

from api.auth import Agent, Reader, require_agent, require_reader
from api.parts import Held, parts_of
from api.query import KnownParameters
from lockstep.errors import NotAllowed, NotPresent
from lockstep.host_paths import HostPaths, PathCount, dump_plan
from lockstep.state.fabric import list_path_counts, list_path_plans, newest_path_plan, paths_of_host
from lockstep.state.fabric import save_path_count as save_count

router = APIRouter(prefix="/api/v1/paths", dependencies=[KnownParameters])

Json = dict[str, Any]


def require_host_or_reader(request: Request, host: str) -> None:
    """Let through who may read everything, and the agent of that very host."""
    try:
        require_reader(request)
    except NotAllowed:
        if require_agent(request).host != host:
            raise


@router.get("", dependencies=[Reader])
def plan_in_force(parts: Held) -> Json:
    """Return the plan in force in figures, with the share of connections that keep to it."""
    control = parts.control
    plan = newest_path_plan(control)
    if plan is None:
        raise NotPresent("there is no path plan so far")
    counts = list_path_counts(control)
    planned, enforced = (sum(getattr(count, name) for count in counts.values()) for name in ("planned", "enforced"))
    return plan.model_dump() | {
        "planned_connections": planned,
        "enforced_connections": enforced,
        "enforced_share": enforced / planned if planned else None,
        "hosts": {host: count.model_dump() for host, count in counts.items()},
    }


@router.get("/history", dependencies=[Reader])
def history(parts: Held, limit: Annotated[int, Query(ge=1, le=500)] = 100) -> Json:
    """Return the newest plans first, with their reasons."""
    return {"items": [plan.model_dump() for plan in list_path_plans(parts.control, limit)]}


@router.get("/hosts/{host}", dependencies=[Depends(require_host_or_reader)], response_model=HostPaths)
def host_paths(request: Request, host: str, form: Annotated[Literal["json", "file"], Query()] = "json") -> Response:
    """Return the paths of one host; `form=file` is what path_shim reads. The ETag is the number of the plan."""
    found = paths_of_host(parts_of(request).control, host)
    tag = f'"{found.generation}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers=headers)
    if form == "file":
        return PlainTextResponse(dump_plan(found.as_file()), headers=headers)
    return Response(found.model_dump_json(), media_type="application/json", headers=headers)


@router.post("/hosts/{host}/count", status_code=204)
def count(parts: Held, host: str, path_count: PathCount, agent: Agent) -> None:
    """Take from a host's agent how many connections keep to their plan."""
    if agent.host != host:
        raise NotAllowed(f"the agent of {agent.host} does not speak for {host}", slug="wrong-host", status=403)
    save_count(parts.control, host, path_count, parts.clock.now_ns())
