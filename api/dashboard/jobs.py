"""Pages about one job: its steps and ranks, its delay matrix, and who arrives late."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from analyzer.windows.window import Window
from api.dashboard.pages import call, job_call, page_router, render
from api.dashboard.pictures import find_latest, find_slowest
from api.dependencies import Parts, check_range, parts_of
from api.views.jobs import find_job, list_jobs, list_steps
from api.views.matrix import Lags, Matrix, read_lags, read_matrix
from api.views.ranks import Closed, find_closed, list_communicators, list_ranks, newest_attempt
from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent
from lockstep.state.incidents import list_incidents

router = page_router()

_STEPS = 1_000  # of the curve
_RANKS = 2_048  # rows of the table; the API gives all
_SLOWEST = 20
_LATEST = 20
_INCIDENTS = 20
_KNOWN_JOBS = 5_000
_STRIP_NS = 300 * NS_PER_S  # of arrivals, where no time is asked for
_LONGEST_NS = 86_400 * NS_PER_S

Timestamp = Annotated[int | None, Query(ge=0, description="nanoseconds, UNIX time")]


@dataclass(frozen=True)
class Choice:
    """Which job a page is about, and which others could be chosen."""

    job: str | None
    jobs: list[str]
    first_ns: int = 0  # when the job was first heard of


@router.get("/job")
def job(request: Request, job: str) -> HTMLResponse:
    """Return one job: how it is, its steps, its ranks, its incidents."""
    parts = parts_of(request)
    now_ns = parts.second_ns()
    found = find_job(parts.store, parts.control, job, now_ns)
    steps = [step for step in list_steps(parts.store, job, _STEPS) if step.attempt == found.attempt]
    try:
        ranks = list_ranks(parts.store, job, found.attempt, now_ns)[:_RANKS]
    except NotPresent:
        ranks = []  # an old job, of which only roll-ups are left
    incidents = list_incidents(parts.control, job=job, limit=_INCIDENTS)
    curve = {
        "s": [step.end_ns // NS_PER_S for step in reversed(steps)],
        "step_s": [round(step.step_s, 6) for step in reversed(steps)],
        "faults": [[each.verdict.since_ns / NS_PER_S, (each.closed_ns or now_ns) / NS_PER_S] for each in incidents],
    }
    calls = tuple(job_call(job, what) for what in ("steps", "ranks", "communicators"))
    return render(
        request,
        "job.html",
        "overview",
        job,
        calls,
        job=found,
        steps=steps,
        ranks=ranks,
        incidents=incidents,
        curve=curve,
    )


@router.get("/matrix")
def matrix(
    request: Request,
    job: str | None = None,
    comm: str | None = None,
    from_ns: Timestamp = None,
    to_ns: Timestamp = None,
) -> HTMLResponse:
    """Return the delay matrix of a job's last closed window, or of the time that is asked for."""
    parts = parts_of(request)
    choice = choose_job(parts, job)
    if choice.job is None:
        return render(request, "no_job.html", "matrix", "Delay matrix", (call("/jobs"),), what="delay matrix")
    closed = find_shown(parts, choice, from_ns, to_ns, 0)
    number = int(comm) if comm and comm.isdecimal() else None
    found = read_matrix(parts.store, choice.job, closed.attempt, closed.roster, closed.window, number, closed.silent)
    asked = {"comm": number, "from_ns": from_ns, "to_ns": to_ns}
    return render(
        request,
        "matrix.html",
        "matrix",
        f"Delay matrix of {choice.job}",
        (job_call(choice.job, "matrix", **asked),),
        choice=choice,
        matrix=found,
        cells=_columns(found),
        slowest=find_slowest(found, _SLOWEST),
        comms=list_communicators(parts.store, choice.job, closed.attempt, 500),
        is_now=from_ns is None and to_ns is None,
    )


@router.get("/lags")
def lags(
    request: Request, job: str | None = None, from_ns: Timestamp = None, to_ns: Timestamp = None
) -> HTMLResponse:
    """Return how late each rank came to its collectives, over the last minutes or the time that is asked for."""
    parts = parts_of(request)
    choice = choose_job(parts, job)
    if choice.job is None:
        return render(request, "no_job.html", "lags", "Arrivals", (call("/jobs"),), what="arrivals")
    closed = find_shown(parts, choice, from_ns, to_ns, _STRIP_NS)
    found = read_lags(parts.store, choice.job, closed.attempt, closed.roster, closed.window, columns=150)
    return render(
        request,
        "lags.html",
        "lags",
        f"Arrivals of {choice.job}",
        (job_call(choice.job, "lags", from_ns=from_ns, to_ns=to_ns),),
        choice=choice,
        lags=found,
        strip=_strip(found),
        latest=find_latest(found, _LATEST),
        is_now=from_ns is None and to_ns is None,
    )


def choose_job(parts: Parts, wanted: str | None) -> Choice:
    """Return the job that is asked for, else the one that spoke last; None where there is none."""
    known = list_jobs(parts.store, parts.control, parts.second_ns(), limit=_KNOWN_JOBS)
    newest = sorted(known, key=lambda each: (not each.incidents, -each.last_ns))
    names = list(dict.fromkeys(each.job for each in newest))
    job = wanted or (names[0] if names else None)
    return Choice(job, names, min((each.first_ns for each in newest if each.job == job), default=0))


def find_shown(parts: Parts, choice: Choice, from_ns: int | None, to_ns: int | None, length_ns: int) -> Closed:
    """Return the stretch to show: the one asked for, else the last closed window, made so long if the job is."""
    job = choice.job or ""
    attempt = newest_attempt(parts.store, job)
    closed = find_closed(parts.store, job, attempt, parts.second_ns())
    end_ns = to_ns if to_ns is not None else closed.window.end_ns
    start_ns = (
        from_ns if from_ns is not None else min(closed.window.start_ns, max(end_ns - length_ns, choice.first_ns))
    )
    check_range(start_ns, end_ns, _LONGEST_NS)
    return Closed(job, attempt, Window(start_ns, end_ns), closed.roster, closed.silent)


def _columns(found: Matrix) -> dict[str, object]:
    """Return what the heat map is drawn from."""
    return {
        "names": [f"{seat.rank} · {seat.place}" for seat in found.ranks],
        "src": found.cells.src,
        "dst": found.cells.dst,
        "ms": found.cells.ms,
        "usual": found.usual_ms,
        "unit": found.unit,
    }


def _strip(found: Lags) -> dict[str, object]:
    return {
        "names": [f"rank {seat.rank}, {seat.place}" for seat in found.ranks],
        "hosts": [seat.host for seat in found.ranks],
        "s": [timestamp // NS_PER_S for timestamp in found.times_ns],
        "lag_ms": found.lag_ms,
    }
