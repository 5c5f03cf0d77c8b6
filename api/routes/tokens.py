"""Tokens over REST: who has one, a new one that is shown once, and the end of one."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from api.auth import Admin
from api.paging import USUAL, Cursor, Limit, Page, add_link, cut_sorted, read_cursor
from api.parts import parts_of
from lockstep.control.tokens import Scope, Token, create_token, list_tokens, match_token_id, revoke_token
from lockstep.verdict import Frozen

router = APIRouter(prefix="/api/v1/tokens", tags=["tokens"])

Why = Annotated[str, Field(max_length=1000, description="the reason, kept in the audit")]


class TokenWish(Frozen):
    """A token that is to be made."""

    name: str = Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$", description="what it is for")
    scope: Scope = "read"
    host: str | None = Field(
        None,
        max_length=253,
        pattern=r"^[^\s/]+$",
        description="with scope ingest: the one host that may send with it",
    )
    why: Why = ""


class NewToken(Frozen):
    """A token that was made; nobody can see its secret again."""

    id: str
    name: str
    scope: Scope
    host: str | None
    secret: str = Field(description="send it as Authorization: Bearer <secret>")


@router.get("")
def tokens(
    request: Request, response: Response, _: Admin, limit: Limit = USUAL, cursor: Cursor = None
) -> Page[Token]:
    """Return all tokens without their secrets, revoked ones too, the oldest first."""
    found = list_tokens(parts_of(request).control)
    after = read_cursor(cursor, int, str)
    return add_link(request, response, cut_sorted(found, limit, after, lambda token: (token.created_ns, token.id)))


@router.post("", status_code=201)
def create(request: Request, wish: TokenWish, admin: Admin) -> NewToken:
    """Make a token. Its secret is in this answer and nowhere else; send an Idempotency-Key to get it once more."""
    parts = parts_of(request)
    secret = create_token(
        parts.control,
        scope=wish.scope,
        host=wish.host,
        name=wish.name,
        now_ns=parts.clock.now_ns(),
        who=admin,
        why=wish.why,
    )
    return NewToken(id=match_token_id(secret), name=wish.name, scope=wish.scope, host=wish.host, secret=secret)


@router.delete("/{token_id}", status_code=204)
def revoke(request: Request, token_id: str, admin: Admin, why: Annotated[str, Query(max_length=1000)] = "") -> None:
    """Make a token, and every browser that logged in with it, worth nothing from now on; a second time too."""
    parts = parts_of(request)
    revoke_token(parts.control, token_id, parts.clock.now_ns(), who=admin, why=why)
    request.app.state.board.forget()
