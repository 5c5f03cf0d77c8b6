"""How many alerts have not reached their receivers, for the metrics."""

from sqlalchemy import func, select

from lockstep.control.database import ControlDatabase
from lockstep.control.tables import DELIVERIES

COUNTED = ("waiting", "sending", "failed")  # those that were delivered are history


def count_undelivered(db: ControlDatabase) -> dict[tuple[str, str], int]:
    """Return how many messages of the outbox each receiver has in each state that is not the good end."""
    place = (DELIVERIES.c.target, DELIVERIES.c.state)
    query = select(*place, func.count().label("messages")).where(DELIVERIES.c.state.in_(COUNTED)).group_by(*place)
    with db.read() as connection:
        return {(row.target, row.state): row.messages for row in connection.execute(query)}
