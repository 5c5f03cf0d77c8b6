"""create_app: where the web process is put together."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache, partial

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CollectorRegistry

from api.auth import TokenCache
from api.dashboard import cluster as cluster_pages
from api.dashboard import incidents as incident_pages
from api.dashboard import jobs as job_pages
from api.dashboard import what_if
from api.dashboard.pages import CachedFiles
from api.dependencies import Parts
from api.limits import BodyLimit, Buckets, RateLimit
from api.middleware import Disconnects, Idempotency, SecurityHeaders
from api.oidc import make_verifier
from api.problems import describe, install_problems
from api.routes import (
    admin,
    captures,
    cluster,
    decisions,
    health,
    incidents,
    ingest,
    session,
    stream,
    webhooks,
)
from api.routes.captures import Operations
from api.routes.health import SystemMetrics
from api.routes.incidents import IncidentFastPath
from api.routes.ingest import IngestFastPath
from api.routes.stream import ChangeFeed
from api.sharing import GuardedStore, StoreSlots, TtlCache
from api.views.incidents import IncidentPages
from api.views.matrix import MatrixCache
from lockstep import __version__
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import LockstepError, StoreAway
from lockstep.state.leases import check_held
from lockstep.store.migrations import check_migrated
from planner.assembly import open_folders

# The stream comes before incidents: its path looks like one of theirs. Those come early: everybody asks for them.
# Jobs come last: a job's id may hold slashes, so that its route takes whatever is left.
ROUTERS = (
    *(each.router for each in (stream, incidents, session, admin, ingest, decisions)),
    cluster.paths_router,
    *(each.router for each in (webhooks, health)),
    *(each.router for each in (cluster_pages, incident_pages, job_pages, what_if)),
    *(incident_pages.acts, cluster_pages.tests),
    *(captures.router, cluster.router, cluster.jobs_router),
)

_PATIENCE_S = 1.0


def install_protection(app: FastAPI, parts: Parts) -> None:
    """Add all middleware: the last that is added is met first."""
    disconnects = CollectorRegistry()
    app.state.registries.append(disconnects)
    app.add_middleware(StoreSlots, settings=parts.settings)
    app.add_middleware(Idempotency)
    app.add_middleware(IncidentFastPath)
    app.add_middleware(IngestFastPath)
    app.add_middleware(BodyLimit, settings=parts.settings)
    app.add_middleware(RateLimit, settings=parts.settings, clock=parts.clock)
    app.add_middleware(Disconnects, registry=disconnects)
    app.add_middleware(SecurityHeaders, is_tls=parts.settings.api.tls_cert is not None)


def remember_check(check: Callable[[], None], clock: Clock) -> Callable[[], None]:
    """Return a check whose answer holds for a second, or for five while a busy machine works out the next.

    It costs two databases, and everybody asks.
    """
    answers: TtlCache[tuple[LockstepError | None]] = TtlCache(clock, fresh_s=1, stale_s=5, patience_s=_PATIENCE_S)

    def ask() -> tuple[LockstepError | None]:
        try:
            check()
        except LockstepError as error:
            return (error,)
        return (None,)

    def checked() -> None:
        try:
            (trouble,) = answers.get("ready", ask)
        except TimeoutError:
            raise StoreAway("whoever asked before still waits for an answer") from None
        if trouble:
            raise trouble

    return checked


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
    # Routes are taken as they are: included routers would be worked out anew for each app, at its first request.
    app = FastAPI(
        title="Lockstep",
        version=__version__,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        routes=[route for router in ROUTERS for route in router.routes],
    )
    parts = replace(parts, store=GuardedStore(parts.store))
    app.state.parts = parts
    app.state.token_cache = TokenCache(parts.control, parts.clock)
    app.state.refused_logins = Buckets(per_s=1 / 60, burst_s=600)
    app.state.oidc = make_verifier(parts.settings.api, parts.clock)
    app.state.check_ready = remember_check(partial(_check_ready, parts), parts.clock)
    metrics = SystemMetrics(parts)
    app.state.feed = ChangeFeed(
        parts.control,
        parts.settings.api.max_listeners,
        metrics.watch,
        before_notify=lambda: app.state.incident_pages.forget(),
    )
    app.state.registries = [parts.gateway.metrics.registry, metrics.registry]
    install_problems(app)
    install_protection(app, parts)
    app.state.incident_pages = IncidentPages(parts.control, parts.clock)
    app.state.matrices = MatrixCache(parts.store, parts.clock)
    app.state.checkpoints = open_folders(parts.settings.planner, parts.control)
    app.state.operations = Operations(parts.clock)
    app.mount("/static", CachedFiles(packages=[("api", "static")]))
    app.openapi = cache(partial(describe, app))  # type: ignore[method-assign]  # FastAPI's own way of changing it
    return app


def _check_ready(parts: Parts) -> None:
    check_migrated(parts.store, parts.layout)
    check_held(parts.control, parts.duties, int(parts.settings.lease_s * NS_PER_S), parts.clock.now_ns())
    if parts.gateway.trouble:
        raise StoreAway(parts.gateway.trouble)
