"""What was answered to an act that came with an Idempotency-Key, so that it is done once however often it is sent."""

from dataclasses import dataclass

from sqlalchemy import delete, func, select, update

from lockstep.clock import NS_PER_S
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import insert_into
from lockstep.state.tables import IDEMPOTENCY

KEPT_NS = 24 * 3600 * NS_PER_S  # longer than any client tries again
STUCK_NS = 300 * NS_PER_S  # after which an act without an answer died with its process, and may be done again
MOST = 20_000  # answers; beyond them the oldest go


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier request with the same key asked for, and its answer; no status while it still runs."""

    request: str
    status: int | None
    sealed: str | None


def claim(db: ControlDatabase, key: str, request: str, now_ns: int) -> Earlier | None:
    """Return what came earlier under this key, or None: then the act is the caller's, who finishes or drops it."""
    row = {"id": key, "request": request, "began_ns": now_ns}
    with db.begin() as connection:
        old = IDEMPOTENCY.c.began_ns <= now_ns - KEPT_NS
        stuck = IDEMPOTENCY.c.status.is_(None) & (IDEMPOTENCY.c.began_ns <= now_ns - STUCK_NS)
        connection.execute(delete(IDEMPOTENCY).where(old | stuck))
        insert = insert_into(connection, IDEMPOTENCY).values(row).on_conflict_do_nothing()
        if connection.scalar(insert.returning(IDEMPOTENCY.c.id)) is not None:
            count = connection.scalar(select(func.count()).select_from(IDEMPOTENCY)) or 0
            by_age = select(IDEMPOTENCY.c.id).order_by(IDEMPOTENCY.c.began_ns, IDEMPOTENCY.c.id)
            if count > MOST:
                connection.execute(delete(IDEMPOTENCY).where(IDEMPOTENCY.c.id.in_(by_age.limit(count - MOST))))
            return None
        found = connection.execute(select(IDEMPOTENCY).where(IDEMPOTENCY.c.id == key)).one()
        return Earlier(found.request, found.status, found.sealed)


def finish(db: ControlDatabase, key: str, status: int, sealed: str) -> None:
    """Keep the answer of the act."""
    with db.begin() as connection:
        connection.execute(update(IDEMPOTENCY).where(IDEMPOTENCY.c.id == key).values(status=status, sealed=sealed))


def drop(db: ControlDatabase, key: str) -> None:
    """Forget the act, which was not done: the same key may try it again."""
    with db.begin() as connection:
        connection.execute(delete(IDEMPOTENCY).where(IDEMPOTENCY.c.id == key))
