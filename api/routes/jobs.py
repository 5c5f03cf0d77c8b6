"""Jobs: how each is, its ranks, steps and communicators, its delay matrix and who arrives late."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Window
from api.auth import Reader
from api.parts import Held, Parts, parts_of
from api.query import Attempt, Comm, JobName, KnownParameters, Page, Paged, Timestamp, Wanted, read_comm, read_window
from api.views.jobs import Condition, Job, TrainingStep, find_job, list_jobs, list_steps
from api.views.matrix import MOST_COLUMNS, Lags, Matrix, MatrixCache, read_lags, read_matrix
from api.views.ranks import Communicator, Rank, find_closed, list_communicators, list_ranks, newest_attempt
from lockstep.clock import NS_PER_S

router = APIRouter(prefix="/api/v1", dependencies=[Reader, KnownParameters], tags=["jobs"])

_LONGEST_NS = 7 * 86_400 * NS_PER_S  # a matrix of a week comes out of the roll-up by minutes
_LONGEST_LAGS_NS = 6 * 3600 * NS_PER_S  # lags come out of seconds
_LAGS_NS = 300 * NS_PER_S  # shown where nothing else is asked for


@router.get("/jobs", summary="List jobs")
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


@router.get("/jobs/{job:path}/steps", summary="List training steps of a job")
def steps(parts: Held, page: Paged, job: JobName) -> Page[TrainingStep]:
    """Return training steps, the newest first, with the slowest rank of each."""
    found = list_steps(parts.store, job, page.limit + 1, page.after(int, int))
    return page.cut(found, lambda each: (each.attempt, each.step))


@router.get("/jobs/{job:path}/ranks", summary="List ranks of a job")
def ranks(parts: Held, page: Paged, job: JobName, attempt: Attempt = None) -> Page[Rank]:
    """Return the ranks of an attempt with host, GPU and what each waits for now."""
    after = page.after(int)
    number = newest_attempt(parts.store, job, attempt)
    found = list_ranks(parts.store, job, number, parts.second_ns())
    return page.cut_sorted(found, after, lambda each: (each.rank,))


@router.get("/jobs/{job:path}/communicators", summary="List communicators of a job")
def communicators(parts: Held, page: Paged, job: JobName, attempt: Attempt = None) -> Page[Communicator]:
    """Return the communicators of an attempt by id."""
    after = page.after(str)
    number = newest_attempt(parts.store, job, attempt)
    found = list_communicators(parts.store, job, number, page.limit + 1, after and (read_comm(str(after[0])) or 0,))
    return page.cut(found, lambda each: (each.comm,))


@router.get("/jobs/{job:path}/matrix", summary="Read the delay matrix of a job", response_model=Matrix)
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


@router.get("/jobs/{job:path}/lags", summary="Read who arrives late in a job")
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


@router.get("/jobs/{job:path}", summary="Read a job")  # last: a job's id may hold slashes
def job(parts: Held, job: JobName) -> Job:
    """Return the newest attempt of a job."""
    return find_job(parts.store, parts.control, job, parts.second_ns())


def _past_matrix(parts: Parts, job: str, attempt: int | None, comm: int | None, window: Window) -> bytes:
    number = newest_attempt(parts.store, job, attempt)
    roster = read_roster(parts.store, job, number)
    return read_matrix(parts.store, job, number, roster, window, comm).model_dump_json().encode()
