"""Bearer tokens and browser sessions: what a caller may do.

Only digests are kept, so a stolen database opens no door; a revoked token ends its sessions.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import Connection, Row, delete, insert, select, update

from lockstep.errors import BadInput, NotAllowed, NotPresent
from lockstep.hostlists import expand_hostlist
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import record_within
from lockstep.state.tables import SESSIONS, TOKENS
from lockstep.verdict import Frozen

Scope = Literal["ingest", "fabric", "join", "read", "act", "admin"]
SENDING: tuple[Scope, ...] = ("ingest", "fabric")  # scopes of collectors, each bound to its host
TokenRows = Mapping[str, Row[Any]]  # by id; Any: as the database gives them, with the digest

SECRET_BYTES = 32  # 256 random bits need no slow hash: nobody guesses them, with or without the digest
_LONGEST_NAME = 200
_REMEMBERED = 4096  # tokens made from rows: a collector's is asked for every second, and a row never means another
TOKEN = re.compile(r"lks_(?P<id>[0-9a-f]{16})_(?P<secret>[A-Za-z0-9_-]{43})")
SESSION_PREFIX = "session:"  # of the id of whoever came by a session without one of our tokens


class Token(Frozen):
    """What is known about a token; its secret is known only to whoever was given it."""

    id: str
    scope: Scope
    host: str | None = Field(
        description="the only host that may send with it; with scope join, the hosts that may; None: not bound to any"
    )
    name: str = Field(description="what a person calls it")
    created_ns: int
    revoked_ns: int | None = Field(None, description="since when it is worth nothing; None: it is valid")


def create_token(
    db: ControlDatabase,
    *,
    scope: Scope,
    host: str | None,
    name: str,
    now_ns: int,
    who: str = "unknown",
    why: str = "",
) -> str:
    """Return a new token, `lks_<id>_<secret>`; this is the one time that it can be seen."""
    if scope in SENDING and not host:
        raise BadInput(f"token {name!r} is for {scope}, so it needs the host that may send with it")
    if scope == "join" and host:
        expand_hostlist(host)
    with db.begin() as connection:
        return _create_within(connection, who, why, scope=scope, host=host, name=name, created_ns=now_ns)


def join_host(db: ControlDatabase, joiner: Token, host: str, now_ns: int) -> str:
    """Return a token for a host that has none yet, or raise NotAllowed: who may join speaks for no host that did."""
    if joiner.host and host not in expand_hostlist(joiner.host):
        raise NotAllowed(f"token {joiner.id} is for {joiner.host}, not for {host}", slug="wrong-host", status=403)
    with db.begin() as connection:
        # Writing the row makes a second host of the same name wait until the first one has its token.
        mine = (TOKENS.c.id == joiner.id, TOKENS.c.revoked_ns.is_(None))
        if not connection.execute(update(TOKENS).where(*mine).values(name=joiner.name)).rowcount:
            raise NotAllowed(f"token {joiner.id} is revoked", slug="unknown-token", status=401)
        held = (TOKENS.c.host == host, TOKENS.c.scope.in_(SENDING), TOKENS.c.revoked_ns.is_(None))
        if has := connection.scalar(select(TOKENS.c.id).where(*held).limit(1)):
            way_out = f"`lockstep token revoke {has}` on the head node, then join again"
            raise NotAllowed(f"{host} has a token already: {way_out}", slug="has-joined", status=409)
        given: dict[str, Any] = {"scope": "ingest", "host": host, "name": f"{host}, by {joiner.name}"[:_LONGEST_NAME]}
        return _create_within(connection, joiner.name, "joined", **given, created_ns=now_ns)


def _create_within(connection: Connection, who: str, why: str, **row: Any) -> str:  # Any: columns of the table
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(SECRET_BYTES)
    connection.execute(insert(TOKENS).values(row | {"id": token_id, "digest": _digest(secret)}))
    record_within(connection, who=who, what="create_token", subject=token_id, why=why, now_ns=row["created_ns"])
    return f"lks_{token_id}_{secret}"


def find_token(db: ControlDatabase, secret: str) -> Token | None:
    """Return the token that this text is, or None when it is unknown or revoked."""
    parts = TOKEN.fullmatch(secret)
    if parts is None:
        return None
    with db.read() as connection:
        found = connection.execute(select(TOKENS).where(TOKENS.c.id == parts["id"], TOKENS.c.revoked_ns.is_(None)))
        return match_token({row.id: row for row in found}, secret)


def valid_tokens(db: ControlDatabase) -> TokenRows:
    """Return all valid tokens, for who asks for many of them: `match_token` finds one among them."""
    with db.read() as connection:
        return {row.id: row for row in connection.execute(select(TOKENS).where(TOKENS.c.revoked_ns.is_(None)))}


def expects_agents(db: ControlDatabase) -> bool:
    """Return whether any collector has a valid token."""
    valid = (TOKENS.c.scope.in_(SENDING), TOKENS.c.revoked_ns.is_(None))
    with db.read() as connection:
        return connection.execute(select(TOKENS.c.id).where(*valid).limit(1)).first() is not None


def match_token(rows: TokenRows, secret: str) -> Token | None:
    """Return which of these tokens this text is, or None."""
    parts = TOKEN.fullmatch(secret)
    row = rows.get(parts["id"]) if parts else None
    if parts is None or row is None or not hmac.compare_digest(row.digest, _digest(parts["secret"])):
        return None
    return _token(row)


def match_token_id(secret: str) -> str:
    """Return the id in a token's text, which is no secret."""
    parts = TOKEN.fullmatch(secret)
    if parts is None:
        raise BadInput("this text is not a token")
    return parts["id"]


def revoke_token(db: ControlDatabase, token_id: str, now_ns: int, *, who: str = "unknown", why: str = "") -> None:
    """Make the token worthless from now on, or raise NotPresent; a second time changes nothing."""
    valid = (TOKENS.c.id == token_id, TOKENS.c.revoked_ns.is_(None))
    with db.begin() as connection:
        if connection.execute(update(TOKENS).where(*valid).values(revoked_ns=now_ns)).rowcount:
            record_within(connection, who=who, what="revoke_token", subject=token_id, why=why, now_ns=now_ns)
        elif connection.scalar(select(TOKENS.c.id).where(TOKENS.c.id == token_id)) is None:
            raise NotPresent(f"there is no token {token_id!r}")


def list_tokens(db: ControlDatabase) -> list[Token]:
    """Return all tokens, revoked ones too, the oldest first."""
    with db.read() as connection:
        rows = connection.execute(select(TOKENS).order_by(TOKENS.c.created_ns, TOKENS.c.id))
        return [_token(row) for row in rows]


@lru_cache(_REMEMBERED)
def _token(row: Row[Any]) -> Token:
    return Token.model_validate({column: value for column, value in row._mapping.items() if column != "digest"})


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def begin_session(db: ControlDatabase, token: Token, now_ns: int, expires_ns: int) -> str:
    """Return the secret of a new session of this caller, with a line in the audit; sessions that are over go."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    row = {"id": digest_session(secret), "who": token.name, "scope": token.scope, "expires_ns": expires_ns}
    with db.begin() as connection:
        connection.execute(delete(SESSIONS).where(SESSIONS.c.expires_ns <= now_ns))
        is_ours = connection.scalar(select(TOKENS.c.id).where(TOKENS.c.id == token.id))
        connection.execute(insert(SESSIONS).values(row | {"token": is_ours}))
        record_within(connection, who=token.name, what="log_in", subject=token.id, why="", now_ns=now_ns)
    return secret


def live_sessions(db: ControlDatabase, now_ns: int) -> frozenset[str]:
    """Return the digests of all sessions that last, for who asks for many: `digest_session` makes one."""
    with db.read() as connection:
        return frozenset(connection.scalars(select(SESSIONS.c.id).where(SESSIONS.c.expires_ns > now_ns)))


def find_session(db: ControlDatabase, secret: str, now_ns: int) -> Token | None:
    """Return who the session stands for, or None when it is unknown, over, or its token was revoked."""
    query = (
        select(SESSIONS, TOKENS.c.revoked_ns)
        .select_from(SESSIONS.outerjoin(TOKENS, SESSIONS.c.token == TOKENS.c.id))
        .where(SESSIONS.c.id == digest_session(secret), SESSIONS.c.expires_ns > now_ns)
    )
    with db.read() as connection:
        row = connection.execute(query).one_or_none()
    if row is None or row.revoked_ns is not None:
        return None
    identity = row.token or f"{SESSION_PREFIX}{row.who}"
    return Token(id=identity, scope=row.scope, host=None, name=row.who, created_ns=0)


def end_session(db: ControlDatabase, secret: str, now_ns: int) -> None:
    """Make the session worth nothing; one that is over already changes nothing."""
    with db.begin() as connection:
        row = connection.execute(select(SESSIONS).where(SESSIONS.c.id == digest_session(secret))).one_or_none()
        if row is not None:
            connection.execute(delete(SESSIONS).where(SESSIONS.c.id == row.id))
            subject = row.token or f"{SESSION_PREFIX}{row.who}"
            record_within(connection, who=row.who, what="log_out", subject=subject, why="", now_ns=now_ns)


def digest_session(secret: str) -> str:
    """Return what is kept of a session's secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
