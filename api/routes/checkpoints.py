"""Checkpoints of a job, and what going back to the last good one would take."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.auth import Reader
from api.paging import USUAL, Cursor, Limit, add_link, read_cursor
from api.parts import parts_of
from api.reading.checkpoints import Checkpoints, read_checkpoints
from api.reading.steps import list_steps

router = APIRouter(prefix="/api/v1", dependencies=[Reader], tags=["checkpoints"])


@router.get("/checkpoints", summary="List checkpoints of a job")
def checkpoints(
    request: Request,
    response: Response,
    job: Annotated[str, Query(min_length=1, max_length=300, pattern=r"^[^\x00]*$")],
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> Checkpoints:
    """Return the checkpoints in the folder that planner.checkpoints names, the newest first, each with its state."""
    parts = parts_of(request)
    after = read_cursor(cursor, int, int, int, str)
    newest = list_steps(parts.store, job, 1)
    step = newest[0].step if newest else None
    found = read_checkpoints(request.app.state.checkpoints, job, parts.clock.now_ns(), limit, after, step)
    add_link(request, response, found)
    return found
