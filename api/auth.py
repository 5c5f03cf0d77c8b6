"""Who may do what: bearer tokens with a scope, those for ingest bound to one host."""

from typing import Annotated

from fastapi import Depends, Request

from api.board import AgentBoard
from api.parts import parts_of
from lockstep.control.tokens import Token, find_token
from lockstep.errors import NotAllowed


def require_reader(request: Request) -> None:
    """Let a request through that may read: by its token, or because reads are open."""
    parts = parts_of(request)
    if parts.settings.api.open_reads:
        return
    token = _known(find_token(parts.control, _secret_of(request)))
    if token.scope not in ("read", "act", "admin"):
        raise NotAllowed(f"a token of scope {token.scope} does not allow reading", slug="wrong-scope", status=403)


def require_actor(request: Request) -> str:
    """Return the name of whoever may act on decisions; open reads open no acts."""
    token = _known(find_token(parts_of(request).control, _secret_of(request)))
    if token.scope not in ("act", "admin"):
        raise NotAllowed(f"a token of scope {token.scope} does not allow acting", slug="wrong-scope", status=403)
    return token.name


def require_agent(request: Request) -> Token:
    """Return the token of a collector, which names the one host it may report for."""
    return _checked_agent(find_token(parts_of(request).control, _secret_of(request)))


async def find_agent(request: Request) -> Token:
    """Return the same from the board, which is for the one route that every host calls every second."""
    board: AgentBoard = request.app.state.board
    return _checked_agent(await board.find_token(_secret_of(request)))


Reader = Depends(require_reader)
Actor = Annotated[str, Depends(require_actor)]
Agent = Annotated[Token, Depends(require_agent)]


def _checked_agent(token: Token | None) -> Token:
    token = _known(token)
    if token.scope != "ingest" or not token.host:
        raise NotAllowed(
            f"a token of scope {token.scope} does not allow sending telemetry", slug="wrong-scope", status=403
        )
    return token


def _known(token: Token | None) -> Token:
    if token is None:
        raise NotAllowed("this token is unknown or revoked", slug="unknown-token", status=401)
    return token


def _secret_of(request: Request) -> str:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise NotAllowed("this needs a token: send Authorization: Bearer <token>", slug="no-token", status=401)
    return secret.strip()
