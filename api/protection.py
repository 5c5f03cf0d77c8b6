"""Puts the guards around all routes, in the order in which a request meets them."""

from fastapi import FastAPI

from api.idempotency import Idempotency
from api.limits import BodyLimit, RateLimit
from api.parts import Parts
from api.routes.ingest import IngestDoor
from api.security_headers import SecurityHeaders


def install_protection(app: FastAPI, parts: Parts) -> None:
    """Add all middleware: the last that is added is met first."""
    app.add_middleware(Idempotency)
    app.add_middleware(IngestDoor)
    app.add_middleware(BodyLimit, settings=parts.settings)
    app.add_middleware(RateLimit, settings=parts.settings, clock=parts.clock)
    app.add_middleware(SecurityHeaders, is_tls=parts.settings.api.tls_cert is not None)
