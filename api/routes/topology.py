"""The topology as it is now: links with their loads, and what is suspected."""

from fastapi import APIRouter, Request

from api.auth import Reader
from api.parts import parts_of
from api.reading.fabric import FabricView, read_fabric

router = APIRouter(prefix="/api/v1", dependencies=[Reader], tags=["topology"])


@router.get("/topology", summary="Read the topology with loads and suspects")
def topology(request: Request) -> FabricView:
    """Return all nodes and links: rates of the last two minutes, planned flows, and open incidents that name them."""
    parts = parts_of(request)
    return read_fabric(parts.store, parts.control, parts.topology, parts.second_ns())
