"""The ledger of parts: what a GPU, a NIC, a cable, a switch port or a host did before."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from api.auth import Reader
from api.paging import USUAL, Cursor, Limit, Page, add_link, cut_sorted, read_cursor
from api.parts import parts_of
from api.reading.ledger import find_part, list_parts
from api.reading.parts import PartHistory, PartSummary

router = APIRouter(prefix="/api/v1", dependencies=[Reader], tags=["parts"])

PartKind = Literal["gpu", "host", "link", "nic", "nvlink", "pcie", "port", "switch"]


@router.get("/parts", summary="List parts with a history")
def parts(
    request: Request,
    response: Response,
    kind: PartKind | None = None,
    flagged: Annotated[bool, Query(description="only parts with a flag, such as one that was sent back")] = False,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> Page[PartSummary]:
    """Return every part that was named, isolated, confirmed or told of with an error in the last 90 days, by name."""
    services = parts_of(request)
    after = read_cursor(cursor, str)
    found = list_parts(services.store, services.control, services.second_ns(), kind)
    wanted = [each for each in found if each.flags or not flagged]
    return add_link(request, response, cut_sorted(wanted, limit, after, lambda each: (each.component,)))


@router.get("/parts/{component:path}", summary="Read the history of a part")
def part(
    request: Request,
    component: Annotated[str, Path(max_length=300, description="kind:name, such as nic:h3/eth1 or gpu:GPU-1a2b…")],
) -> PartHistory:
    """Return the incidents, events, isolations and outcomes of one part; a GPU goes by its place or its UUID."""
    services = parts_of(request)
    return find_part(services.store, services.control, component, services.second_ns())
