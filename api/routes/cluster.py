"""The cluster over REST: agents, hosts, GPUs, NICs, parts, topology, checkpoints, planned paths, and jobs."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Window
from api.auth import Agent, Reader, require_agent, require_reader
from api.dependencies import (
    Attempt,
    Comm,
    Held,
    HostName,
    JobName,
    KnownParameters,
    Page,
    Paged,
    Parts,
    SinceS,
    Timestamp,
    Wanted,
    add_link,
    parts_of,
    read_comm,
    read_window,
)
from api.views.fabric import FabricView, read_fabric
from api.views.hosts import (
    AgentView,
    GpuView,
    HostDetail,
    HostView,
    NicView,
    find_host,
    list_agents,
    list_gpus,
    list_hosts,
    list_nics,
)
from api.views.jobs import (
    Checkpoints,
    Condition,
    Job,
    TrainingStep,
    find_job,
    list_jobs,
    list_steps,
    read_checkpoints,
)
from api.views.ledger import PartHistory, PartSummary, find_part, list_parts
from api.views.matrix import MOST_COLUMNS, Lags, Matrix, MatrixCache, read_lags, read_matrix
from api.views.ranks import Communicator, Rank, find_closed, list_communicators, list_ranks, newest_attempt
from lockstep.clock import NS_PER_S
from lockstep.errors import NotAllowed, NotPresent
from lockstep.host_paths import HostPaths, PathCount, dump_plan
from lockstep.state.fabric import list_path_counts, list_path_plans, newest_path_plan, paths_of_host
from lockstep.state.fabric import save_path_count as save_count

router = APIRouter(prefix="/api/v1", dependencies=[Reader, KnownParameters])
paths_router = APIRouter(prefix="/api/v1/paths", dependencies=[KnownParameters])
jobs_router = APIRouter(prefix="/api/v1", dependencies=[Reader, KnownParameters], tags=["jobs"])

Json = dict[str, Any]
PartKind = Literal["gpu", "host", "link", "nic", "nvlink", "pcie", "port", "switch"]
_HOUR_S = 3600
_LONGEST_NS = 7 * 86_400 * NS_PER_S  # a matrix of a week comes out of the roll-up by minutes
_LONGEST_LAGS_NS = 6 * 3600 * NS_PER_S  # lags come out of seconds
_LAGS_NS = 300 * NS_PER_S  # shown where nothing else is asked for


@router.get("/agents", tags=["hosts"], summary="List agents")
def agents(parts: Held, page: Paged, since_s: SinceS = _HOUR_S) -> Page[AgentView]:
    """Return the collectors that were seen, by host, with version, lag and what each lost."""
    after = page.after(str)
    found = list_agents(parts.store, parts.second_ns(), page.limit + 1, after, since_s)
    return page.cut(found, lambda each: (each.host,))


@router.get("/hosts", tags=["hosts"], summary="List hosts")
def hosts(parts: Held, page: Paged, job: Wanted = None) -> Page[HostView]:
    """Return hosts by name with what runs there, the state of the agent, and open incidents that name them."""
    after = page.after(str)
    found = list_hosts(parts.store, parts.control, parts.topology, parts.second_ns())
    wanted = [each for each in found if job is None or job in each.jobs]
    return page.cut_sorted(wanted, after, lambda each: (each.host,))


@router.get("/hosts/{host}", tags=["hosts"], summary="Read a host")
def host(parts: Held, host: HostName) -> HostDetail:
    """Return a host with the last readings of its GPUs and NICs."""
    return find_host(parts.store, parts.control, parts.topology, host, parts.second_ns())


@router.get("/gpus", tags=["hosts"], summary="List GPUs")
def gpus(parts: Held, page: Paged, host: Wanted = None, since_s: SinceS = _HOUR_S) -> Page[GpuView]:
    """Return GPUs by host and index, each with its last reading."""
    after = page.after(str, int)
    found = list_gpus(parts.store, parts.second_ns(), page.limit + 1, after, host, since_s)
    return page.cut(found, lambda each: (each.host, each.gpu))


@router.get("/nics", tags=["hosts"], summary="List NICs")
def nics(parts: Held, page: Paged, host: Wanted = None, since_s: SinceS = _HOUR_S) -> Page[NicView]:
    """Return NICs by host and name, each with its last reading and its load over the last minute."""
    after = page.after(str, str)
    found = list_nics(parts.store, parts.second_ns(), page.limit + 1, after, host, since_s)
    return page.cut(found, lambda each: (each.host, each.nic))


@router.get("/parts", tags=["parts"], summary="List parts with a history")
def parts(
    services: Held,
    page: Paged,
    kind: PartKind | None = None,
    flagged: Annotated[bool, Query(description="only parts with a flag, such as one that was sent back")] = False,
) -> Page[PartSummary]:
    """Return every part that was named, isolated, confirmed or with an error in the last 90 days, by name."""
    after = page.after(str)
    found = list_parts(services.store, services.control, services.second_ns(), kind)
    wanted = [each for each in found if each.flags or not flagged]
    return page.cut_sorted(wanted, after, lambda each: (each.component,))


@router.get("/parts/{component:path}", tags=["parts"], summary="Read the history of a part")
def part(
    services: Held,
    component: Annotated[str, Path(max_length=300, description="kind:name, such as nic:h3/eth1 or gpu:GPU-1a2b…")],
) -> PartHistory:
    """Return the incidents, events, isolations and outcomes of one part; a GPU goes by its place or its UUID."""
    return find_part(services.store, services.control, component, services.second_ns())


@router.get("/topology", tags=["topology"], summary="Read the topology with loads and suspects")
def topology(parts: Held) -> FabricView:
    """Return all nodes and links: rates of the last two minutes, planned flows, and open incidents that name them."""
    return read_fabric(parts.store, parts.control, parts.topology, parts.second_ns())


@router.get("/checkpoints", tags=["checkpoints"], summary="List checkpoints of a job")
def checkpoints(
    request: Request, page: Paged, job: Annotated[str, Query(min_length=1, max_length=300, pattern=r"^[^\x00]*$")]
) -> Checkpoints:
    """Return the checkpoints in the folder that planner.checkpoints names, the newest first, each with its state."""
    parts = parts_of(request)
    after = page.after(int, int, int, str)
    newest = list_steps(parts.store, job, 1)
    step = newest[0].step if newest else None
    found = read_checkpoints(request.app.state.checkpoints, job, parts.clock.now_ns(), page.limit, after, step)
    add_link(request, page.response, found)
    return found


def require_host_or_reader(request: Request, host: str) -> None:
    """Let through who may read everything, and the agent of that very host."""
    try:
        require_reader(request)
    except NotAllowed:
        if require_agent(request).host != host:
            raise


@paths_router.get("", dependencies=[Reader])
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


@paths_router.get("/history", dependencies=[Reader])
def history(parts: Held, limit: Annotated[int, Query(ge=1, le=500)] = 100) -> Json:
    """Return the newest plans first, with their reasons."""
    return {"items": [plan.model_dump() for plan in list_path_plans(parts.control, limit)]}


@paths_router.get("/hosts/{host}", dependencies=[Depends(require_host_or_reader)], response_model=HostPaths)
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


@paths_router.post("/hosts/{host}/count", status_code=204)
def count(parts: Held, host: str, path_count: PathCount, agent: Agent) -> None:
    """Take from a host's agent how many connections keep to their plan."""
    if agent.host != host:
        raise NotAllowed(f"the agent of {agent.host} does not speak for {host}", slug="wrong-host", status=403)
    save_count(parts.control, host, path_count, parts.clock.now_ns())


@jobs_router.get("/jobs", summary="List jobs")
def jobs(
    parts: Held,
    page: Paged,
    job: Wanted = None,
    condition: Annotated[list[Condition] | None, Query(description="only jobs that are so; may be repeated")] = None,
) -> Page[Job]:
    """Return attempts of jobs by name and number, each with its condition, newest step and open incidents."""
    after = page.after(str, int)
    found = list_jobs(parts.store, parts.control, parts.second_ns(), page.limit + 1, after, job, condition or ())
    return page.cut(found, lambda each: (each.job, each.attempt))


@jobs_router.get("/jobs/{job:path}/steps", summary="List training steps of a job")
def steps(parts: Held, page: Paged, job: JobName) -> Page[TrainingStep]:
    """Return training steps, the newest first, with the slowest rank of each."""
    found = list_steps(parts.store, job, page.limit + 1, page.after(int, int))
    return page.cut(found, lambda each: (each.attempt, each.step))


@jobs_router.get("/jobs/{job:path}/ranks", summary="List ranks of a job")
def ranks(parts: Held, page: Paged, job: JobName, attempt: Attempt = None) -> Page[Rank]:
    """Return the ranks of an attempt with host, GPU and what each waits for now."""
    after = page.after(int)
    number = newest_attempt(parts.store, job, attempt)
    found = list_ranks(parts.store, job, number, parts.second_ns())
    return page.cut_sorted(found, after, lambda each: (each.rank,))


@jobs_router.get("/jobs/{job:path}/communicators", summary="List communicators of a job")
def communicators(parts: Held, page: Paged, job: JobName, attempt: Attempt = None) -> Page[Communicator]:
    """Return the communicators of an attempt by id."""
    after = page.after(str)
    number = newest_attempt(parts.store, job, attempt)
    found = list_communicators(parts.store, job, number, page.limit + 1, after and (read_comm(str(after[0])) or 0,))
    return page.cut(found, lambda each: (each.comm,))


@jobs_router.get("/jobs/{job:path}/matrix", summary="Read the delay matrix of a job", response_model=Matrix)
async def matrix(
    request: Request,
    job: JobName,
    attempt: Attempt = None,
    comm: Comm = None,
    from_ns: Timestamp = None,
    to_ns: Timestamp = None,
) -> Response:
    """Return what a MiB takes from rank to rank: in the last closed window, or from `from_ns` to `to_ns`.

    The matrix is sparse and columnar: `cells.src` and `cells.dst` are places in `ranks`. The ETag is another one with
    each window, so that a poll of the same window costs nothing.
    """
    parts = parts_of(request)
    window, number = read_window(from_ns, to_ns, _LONGEST_NS), read_comm(comm)
    if window is not None:
        past = await run_in_threadpool(_past_matrix, parts, job, attempt, number, window)
        return Response(past, media_type="application/json")
    cache: MatrixCache = request.app.state.matrices
    shown = cache.find_fresh(job, attempt, number)
    if shown is None:
        shown = await run_in_threadpool(cache.show, job, attempt, number)
    headers = {"ETag": shown.etag, "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == shown.etag:
        return Response(status_code=304, headers=headers)
    return Response(shown.body, media_type="application/json", headers=headers)


@jobs_router.get("/jobs/{job:path}/lags", summary="Read who arrives late in a job")
def lags(
    parts: Held,
    job: JobName,
    attempt: Attempt = None,
    from_ns: Timestamp = None,
    to_ns: Timestamp = None,
    columns: Annotated[int, Query(ge=1, le=MOST_COLUMNS, description="stretches of time to cut it into")] = 60,
) -> Lags:
    """Return by how much each rank came to its collectives after the first; of the last five minutes, or as asked."""
    window = read_window(from_ns, to_ns, _LONGEST_LAGS_NS)
    number = newest_attempt(parts.store, job, attempt)
    if window is None:
        closed = find_closed(parts.store, job, number, parts.second_ns())
        window = Window(max(closed.window.end_ns - _LAGS_NS, 0), closed.window.end_ns)
    return read_lags(parts.store, job, number, read_roster(parts.store, job, number), window, columns)


@jobs_router.get("/jobs/{job:path}", summary="Read a job")  # last: a job's id may hold slashes
def job(parts: Held, job: JobName) -> Job:
    """Return the newest attempt of a job."""
    return find_job(parts.store, parts.control, job, parts.second_ns())


def _past_matrix(parts: Parts, job: str, attempt: int | None, comm: int | None, window: Window) -> bytes:
    number = newest_attempt(parts.store, job, attempt)
    roster = read_roster(parts.store, job, number)
    return read_matrix(parts.store, job, number, roster, window, comm).model_dump_json().encode()
