"""Puts the guards around all routes, in the order in which a request meets them."""

from fastapi import FastAPI

from api.departures import ClientsLeft, Departures
from api.idempotency import Idempotency
from api.incident_door import IncidentDoor
from api.known_callers import KnownSessions
from api.limits import BodyLimit, RateLimit
from api.parts import Parts
from api.routes.ingest import IngestDoor
from api.security_headers import SecurityHeaders
from api.store_slots import StoreSlots


def install_protection(app: FastAPI, parts: Parts) -> None:
    """Add all middleware: the last that is added is met first."""
    left = ClientsLeft()
    app.state.registries.append(left.registry)
    app.state.known_sessions = KnownSessions(parts.control, parts.clock)
    app.add_middleware(StoreSlots, settings=parts.settings)
    app.add_middleware(Idempotency)
    app.add_middleware(IncidentDoor)
    app.add_middleware(IngestDoor)
    app.add_middleware(BodyLimit, settings=parts.settings)
    app.add_middleware(RateLimit, settings=parts.settings, clock=parts.clock)
    app.add_middleware(Departures, left=left)
    app.add_middleware(SecurityHeaders, is_tls=parts.settings.api.tls_cert is not None)
