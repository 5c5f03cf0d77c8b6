"""How many alerts have not reached their receivers, for the metrics."""

from sqlalchemy import func, select

from lockstep.control.database import ControlDatabase
from lockstep.control.tables import DELIVERIES

COUNTED = ("waiting", "sending", "failed")  # those that were delivered are history


def count_undelivered(db: ControlDatabase) -> dict[str, int]:
    """Return how many messages of the outbox are in each state that is not the good end."""
    query = select(DELIVERIES.c.state, func.count()).where(DELIVERIES.c.state.in_(COUNTED))
    with db.read() as connection:
        found = {state: count for state, count in connection.execute(query.group_by(DELIVERIES.c.state))}  # noqa: C416  # rows are no pairs to mypy
    return {state: found.get(state, 0) for state in COUNTED}
