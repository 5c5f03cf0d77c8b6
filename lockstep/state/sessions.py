"""Browser sessions: who a cookie stands for; only its digest is kept, and a revoked token ends its sessions."""

import hashlib
import secrets

from sqlalchemy import delete, insert, select

from lockstep.state.database import ControlDatabase
from lockstep.state.documents import record_within
from lockstep.state.tables import SESSIONS, TOKENS
from lockstep.state.tokens import SECRET_BYTES, Token

SESSION_PREFIX = "session:"  # of the id of whoever came by a session without one of our tokens


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
