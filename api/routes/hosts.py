"""Machines: agents with version, lag and drops; hosts; GPUs and NICs with their last readings."""

from fastapi import APIRouter, Request, Response

from api.asking import HostName, SinceS, Wanted
from api.auth import Reader
from api.paging import USUAL, Cursor, Limit, Page, add_link, cut_page, cut_sorted, read_cursor
from api.parts import parts_of
from api.reading.agents import AgentView, list_agents
from api.reading.devices import GpuView, NicView, list_gpus, list_nics
from api.reading.hosts import HostDetail, HostView, find_host, list_hosts

router = APIRouter(prefix="/api/v1", dependencies=[Reader], tags=["hosts"])

_HOUR_S = 3600


@router.get("/agents", summary="List agents")
def agents(
    request: Request, response: Response, since_s: SinceS = _HOUR_S, limit: Limit = USUAL, cursor: Cursor = None
) -> Page[AgentView]:
    """Return the collectors that were heard of, by host, with version, lag and what each lost."""
    parts = parts_of(request)
    after = read_cursor(cursor, str)
    found = list_agents(parts.store, parts.second_ns(), limit + 1, after, since_s)
    return add_link(request, response, cut_page(found, limit, lambda each: (each.host,)))


@router.get("/hosts", summary="List hosts")
def hosts(
    request: Request, response: Response, job: Wanted = None, limit: Limit = USUAL, cursor: Cursor = None
) -> Page[HostView]:
    """Return hosts by name with what runs there, the state of the agent, and open incidents that name them."""
    parts = parts_of(request)
    after = read_cursor(cursor, str)
    found = list_hosts(parts.store, parts.control, parts.topology, parts.second_ns())
    wanted = [each for each in found if job is None or job in each.jobs]
    return add_link(request, response, cut_sorted(wanted, limit, after, lambda each: (each.host,)))


@router.get("/hosts/{host}", summary="Read a host")
def host(request: Request, host: HostName) -> HostDetail:
    """Return a host with the last readings of its GPUs and NICs."""
    parts = parts_of(request)
    return find_host(parts.store, parts.control, parts.topology, host, parts.second_ns())


@router.get("/gpus", summary="List GPUs")
def gpus(
    request: Request,
    response: Response,
    host: Wanted = None,
    since_s: SinceS = _HOUR_S,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> Page[GpuView]:
    """Return GPUs by host and index, each with its last reading."""
    parts = parts_of(request)
    after = read_cursor(cursor, str, int)
    found = list_gpus(parts.store, parts.second_ns(), limit + 1, after, host, since_s)
    return add_link(request, response, cut_page(found, limit, lambda each: (each.host, each.gpu)))


@router.get("/nics", summary="List NICs")
def nics(
    request: Request,
    response: Response,
    host: Wanted = None,
    since_s: SinceS = _HOUR_S,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> Page[NicView]:
    """Return NICs by host and name, each with its last reading and its load over the last minute."""
    parts = parts_of(request)
    after = read_cursor(cursor, str, str)
    found = list_nics(parts.store, parts.second_ns(), limit + 1, after, host, since_s)
    return add_link(request, response, cut_page(found, limit, lambda each: (each.host, each.nic)))
