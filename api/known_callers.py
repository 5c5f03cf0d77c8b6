"""Whether a secret is worth something, without a question to the database for each that is not.

An address from which many worthless secrets come is a bad script's, and perhaps a whole site's behind one proxy. Here
the good ones among them are told from the others in memory: tokens by the board, sessions by a list of the same kind.
"""

from anyio import to_thread
from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from api.auth import SESSION_COOKIE, TOKEN_PREFIX
from api.board import Board
from api.oidc import OidcVerifier
from api.refreshed import Refreshed
from lockstep.clock import Clock
from lockstep.control.database import ControlDatabase
from lockstep.control.sessions import digest_session, live_sessions
from lockstep.errors import ControlAway, NotAllowed

ONLY_KNOWN = "lockstep.only_known"  # in the scope of a login from such an address
_AGAIN_S, _BELIEVED_S = 0.25, 0.5  # as with tokens


class KnownSessions:
    """The sessions that last, as they were half a second ago at most."""

    def __init__(self, control: ControlDatabase, clock: Clock) -> None:
        self._control, self._clock = control, clock
        self._live = Refreshed(self._ask, clock, again_s=_AGAIN_S, believed_s=_BELIEVED_S)

    async def has(self, cookie: str) -> bool:
        """Return whether the cookie is one of them."""
        return digest_session(cookie) in await self._live.get()

    async def _ask(self) -> frozenset[str]:
        return await to_thread.run_sync(live_sessions, self._control, self._clock.now_ns())


def secret_of(request: Request) -> str:
    """Return the secret that a request carries, of whatever kind; empty where it has none."""
    told = request.headers.get("authorization", "")
    # The secret alone, as api.auth reads it: with blanks or cookies around it a caller would look like many.
    return (told.partition(" ")[2].strip() or told) if told else request.cookies.get(SESSION_COOKIE, "")


async def is_known(request: Request) -> bool:
    """Return whether a request may go on from an address that sent much that was worth nothing.

    One without a secret may: it is refused, or answered, without a question.
    """
    secret = secret_of(request)
    if not secret:
        return True
    sessions: KnownSessions = request.app.state.known_sessions
    is_token = "authorization" in request.headers
    try:
        return await (is_known_token(request, secret) if is_token else sessions.has(secret))
    except ControlAway:
        return False  # nobody is let in, then


async def is_known_token(request: Request, secret: str) -> bool:
    """Return whether a text is a token of ours, or one that the OIDC issuer signed."""
    board: Board = request.app.state.board
    oidc: OidcVerifier | None = request.app.state.oidc
    if oidc is None or secret.startswith(TOKEN_PREFIX):
        return await board.find_known(secret) is not None
    try:
        await run_in_threadpool(oidc.verify, secret)
    except NotAllowed as refusal:
        return refusal.status == 403  # it is signed, and says too little
    return True
