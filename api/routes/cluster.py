"""The cluster over REST: agents, hosts, GPUs, NICs, the ledger of parts, the topology and checkpoints."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request

from api.auth import Reader
from api.parts import Held, parts_of
from api.query import HostName, KnownParameters, Page, Paged, SinceS, Wanted, add_link
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
from api.views.jobs import Checkpoints, list_steps, read_checkpoints
from api.views.ledger import PartHistory, PartSummary, find_part, list_parts

router = APIRouter(prefix="/api/v1", dependencies=[Reader, KnownParameters])

_HOUR_S = 3600


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


PartKind = Literal["gpu", "host", "link", "nic", "nvlink", "pcie", "port", "switch"]


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
