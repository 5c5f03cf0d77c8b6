"""Is it alive, can it work, which version, and what does it count: for probes, never behind a token."""

from collections.abc import Callable

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from api.problems import install_problems
from lockstep import __version__
from lockstep.errors import LockstepError

Readiness = Callable[[], None]  # raises LockstepError with the reason why it cannot work

router = APIRouter()


@router.get("/healthz", response_class=PlainTextResponse)
def alive() -> str:
    return "ok\n"


@router.get("/version")
def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/readyz")
def ready(request: Request) -> Response:
    try:
        request.app.state.check_ready()
    except LockstepError as error:
        return JSONResponse({"ready": False, "reason": str(error)}, 503)
    return JSONResponse({"ready": True})


@router.get("/metrics")
def metrics(request: Request) -> Response:
    registries: list[CollectorRegistry] = request.app.state.registries
    return Response(b"".join(map(generate_latest, registries)), media_type=CONTENT_TYPE_LATEST)


def health_app(check_ready: Readiness, registries: list[CollectorRegistry]) -> FastAPI:
    """Return an app with nothing but these, for services that serve nothing else."""
    app = FastAPI(title="Lockstep", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.check_ready = check_ready
    app.state.registries = registries
    install_problems(app)
    app.include_router(router)
    return app
