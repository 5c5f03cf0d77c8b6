"""create_app: where the web process is put together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from api.board import AgentBoard
from api.parts import Parts
from api.problems import install_problems
from api.routes import captures, decisions, health, incidents, ingest, intake, page, paths
from lockstep import __version__
from lockstep.errors import StoreAway
from lockstep.store.migrations import check_migrated


def create_app(parts: Parts) -> FastAPI:
    """Return the app over these parts; the gateway runs for as long as the app does."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        parts.gateway.start()
        try:
            yield
        finally:
            await run_in_threadpool(parts.gateway.close)

    app = FastAPI(
        title="Lockstep", version=__version__, lifespan=life, docs_url=None, redoc_url=None
    )  # both would load scripts from elsewhere
    app.state.parts = parts
    app.state.board = AgentBoard(parts.control, parts.clock)
    app.state.check_ready = lambda: _check_ready(parts)
    app.state.registries = [parts.gateway.metrics.registry]
    install_problems(app)
    app.add_middleware(ingest.IngestDoor)
    for module in (ingest, intake, incidents, decisions, captures, paths, health, page):
        app.include_router(module.router)
    return app


def _check_ready(parts: Parts) -> None:
    check_migrated(parts.store, parts.layout)
    with parts.control.read():
        pass
    if parts.gateway.trouble:
        raise StoreAway(parts.gateway.trouble)
