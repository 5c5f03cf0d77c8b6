"""What we ask of a host's collector: more detail, a probe, or its last minutes in full; each wish expires."""

from sqlalchemy import delete, select

from lockstep.control.database import ControlDatabase
from lockstep.control.documents import read_document, write_over
from lockstep.control.tables import WISHES
from lockstep.wish import Wish


def add_wish(db: ControlDatabase, wish: Wish) -> None:
    """Write the wish, replacing the one with its id: that is how a wish is prolonged."""
    row = {"id": wish.id, "host": wish.host, "expires_ns": wish.expires_ns, "document": wish.model_dump_json()}
    with db.begin() as connection:
        write_over(connection, WISHES, [row])


def wishes_by_host(db: ControlDatabase, now_ns: int) -> dict[str, list[Wish]]:
    """Return the wishes for all hosts that have not expired, the most pressing first."""
    query = select(WISHES.c.document).where(WISHES.c.expires_ns > now_ns)
    found: dict[str, list[Wish]] = {}
    with db.read() as connection:
        for text in connection.scalars(query.order_by(WISHES.c.expires_ns, WISHES.c.id)):
            wish = read_document(Wish, text)
            found.setdefault(wish.host, []).append(wish)
    return found


def delete_expired(db: ControlDatabase, now_ns: int) -> int:
    """Delete what nobody wants any more and return how many wishes that were."""
    with db.begin() as connection:
        return connection.execute(delete(WISHES).where(WISHES.c.expires_ns <= now_ns)).rowcount
