"""Until when each duty is held by somebody, for those who watch whether anybody works."""

from sqlalchemy import select

from lockstep.control.database import ControlDatabase
from lockstep.control.tables import LEASES


def lease_ends(db: ControlDatabase) -> dict[str, int]:
    """Return by lease when it ends, 0 where it was let go; a lease that nobody ever took is not there."""
    with db.read() as connection:
        return {row.name: int(row.expires_ns) for row in connection.execute(select(LEASES))}
