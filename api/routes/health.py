"""Is it alive, can it work, which version: for probes, without a token. What it counts and can do: with one."""

from collections.abc import Callable

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from api.auth import Reader, Scraper
from api.problems import install_problems
from lockstep import __version__
from lockstep.errors import LockstepError

Readiness = Callable[[], None]  # raises LockstepError with the reason why it cannot work

router = APIRouter()


@router.get("/healthz", response_class=PlainTextResponse)
async def alive() -> str:  # needs no thread: all may be taken by readers
    return "ok\n"


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/readyz")
def ready(request: Request) -> Response:
    try:
        request.app.state.check_ready()
    except LockstepError as error:
        return JSONResponse({"ready": False, "reason": str(error)}, 503)
    parts = getattr(request.app.state, "parts", None)  # a service apart knows nothing of the analysis
    behind = parts.analysis() if parts else ""
    return JSONResponse({"ready": True} | ({"analysis": behind} if behind else {}))


@router.get("/metrics", dependencies=[Scraper], response_class=PlainTextResponse)
def metrics(request: Request) -> Response:
    """Return all counters and gauges in Prometheus's text format."""
    return Response(b"".join(map(generate_latest, request.app.state.registries)), media_type=CONTENT_TYPE_LATEST)


@router.get("/openapi.json", dependencies=[Reader], include_in_schema=False)
def description(request: Request) -> JSONResponse:
    """Return what the API can do, for programs that write clients."""
    return JSONResponse(request.app.openapi())


def health_app(check_ready: Readiness, registries: list[CollectorRegistry]) -> FastAPI:
    """Return an app with nothing but these, for services that serve nothing else."""
    app = FastAPI(title="Lockstep", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.check_ready = check_ready
    app.state.registries = registries
    install_problems(app)
    app.get("/healthz", response_class=PlainTextResponse)(alive)
    app.get("/version")(version)
    app.get("/readyz")(ready)
    app.get("/metrics")(metrics)  # without a token: such a service listens on loopback, and counts only itself
    return app
