"""create_app: where the web process is put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from api.board import Board
from api.dashboard.static_files import make_static
from api.feed import ChangeFeed
from api.metrics import SystemMetrics
from api.oidc import make_verifier
from api.openapi import install_openapi
from api.parts import Parts
from api.problems import install_problems
from api.protection import install_protection
from api.readiness import RememberedCheck
from api.reads import install_reads
from api.routes import (
    audit,
    decisions,
    health,
    incidents,
    ingest,
    intake,
    page,
    paths,
    policies,
    session,
    silences,
    stream,
    tokens,
    webhooks,
)
from api.store_slots import GuardedStore
from lockstep import __version__
from lockstep.errors import StoreAway
from lockstep.store.migrations import check_migrated


def create_app(parts: Parts) -> FastAPI:
    """Return the app over these parts; the gateway runs for as long as the app does."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        parts.gateway.start()
        following = asyncio.create_task(app.state.feed.run())
        try:
            yield
        finally:
            app.state.feed.close()
            await following
            await run_in_threadpool(app.state.operations.close)
            await run_in_threadpool(parts.gateway.close)

    # Pages about the API would load scripts from elsewhere; its description is a route with a rule like all others.
    app = FastAPI(
        title="Lockstep", version=__version__, lifespan=life, docs_url=None, redoc_url=None, openapi_url=None
    )
    parts = replace(parts, store=GuardedStore(parts.store))
    app.state.parts = parts
    app.state.board = Board(parts.control, parts.clock)
    app.state.oidc = make_verifier(parts.settings.api, parts.clock)
    app.state.check_ready = RememberedCheck(lambda: _check_ready(parts), parts.clock).check
    metrics = SystemMetrics(parts)
    app.state.feed = ChangeFeed(
        parts.control,
        parts.settings.api.max_listeners,
        metrics.watch,
        before_telling=lambda: app.state.incident_pages.forget(),
    )
    app.state.registries = [parts.gateway.metrics.registry, metrics.registry]
    install_problems(app)
    install_protection(app, parts)
    # The stream comes before incidents: its path looks like one of theirs. Those come early: everybody asks for them.
    for module in (stream, incidents, session, tokens, policies, audit):
        app.include_router(module.router)
    for module in (ingest, intake, decisions, paths, webhooks, silences, health, page):
        app.include_router(module.router)
    install_reads(app, parts)
    app.mount("/static", make_static())
    install_openapi(app)
    return app


def _check_ready(parts: Parts) -> None:
    check_migrated(parts.store, parts.layout)
    with parts.control.read():
        pass
    if parts.gateway.trouble:
        raise StoreAway(parts.gateway.trouble)
