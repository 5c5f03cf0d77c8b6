"""Who may act: one holder at a time, and a number by which a late one is told apart."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, case, or_, select, update

from lockstep.control.database import ControlDatabase
from lockstep.control.documents import insert_into
from lockstep.control.tables import LEASES
from lockstep.errors import LeaseLost


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act under a name until a time."""

    name: str
    holder: str  # unique to a process: two that share it would share the lease
    generation: int  # fencing: goes up with each change of holder, never repeats
    expires_ns: int  # UNIX time, ns; at this moment it is over


def take_lease(db: ControlDatabase, name: str, holder: str, ttl_ns: int, now_ns: int) -> Lease | None:
    """Return the lease if it was free, expired or already ours; None while somebody else holds it.

    Taking what is already ours renews it under the same generation.
    """
    expires_ns = now_ns + ttl_ns
    free = or_(LEASES.c.holder.is_(None), LEASES.c.holder == holder, LEASES.c.expires_ns <= now_ns)
    risen = LEASES.c.generation + case((LEASES.c.holder == holder, 0), else_=1)
    with db.begin() as connection:
        # One statement reads, decides and writes, so that of many takers the database picks exactly one.
        take = insert_into(connection, LEASES).values(name=name, holder=holder, generation=1, expires_ns=expires_ns)
        change = {"holder": holder, "generation": risen, "expires_ns": expires_ns}
        take = take.on_conflict_do_update(index_elements=["name"], set_=change, where=free)
        generation = connection.execute(take.returning(LEASES.c.generation)).scalar_one_or_none()
    return None if generation is None else Lease(name, holder, generation, expires_ns)


def release_lease(db: ControlDatabase, lease: Lease) -> None:
    """Set the lease free for the next taker; nothing happens when it has passed on already."""
    ours = (LEASES.c.name == lease.name, LEASES.c.generation == lease.generation)
    with db.begin() as connection:
        # The row and its generation stay: the next holder must get a higher one.
        connection.execute(update(LEASES).where(*ours).values(holder=None, expires_ns=0))


def check_lease(db: ControlDatabase, lease: Lease, now_ns: int) -> None:
    """Raise LeaseLost unless the lease, renewals included, is still ours at this time."""
    with db.read() as connection:
        expires_ns = _find_expiry(lease, connection.execute(_stored(lease)).one_or_none())
    if expires_ns <= now_ns:
        raise LeaseLost(
            f"lease {lease.name} of {lease.holder}, generation {lease.generation}, "
            f"expired at {expires_ns} and it is {now_ns} now"
        )


def refuse_stale(connection: Connection, lease: Lease) -> None:
    """Raise LeaseLost when the lease has passed on; otherwise it cannot, until this transaction ends."""
    # Expired but taken by nobody is good enough here: the generation alone keeps two holders apart.
    _find_expiry(lease, connection.execute(_stored(lease).with_for_update(read=True)).one_or_none())


def _stored(lease: Lease) -> Select[Any]:
    return select(LEASES).where(LEASES.c.name == lease.name)


def _find_expiry(lease: Lease, stored: Row[Any] | None) -> int:
    """Return when the stored lease ends, or raise LeaseLost when it is no longer this one."""
    if stored is None:
        raise LeaseLost(f"lease {lease.name} of {lease.holder} is over: the database does not know it")
    if (stored.holder, stored.generation) != (lease.holder, lease.generation):
        raise LeaseLost(
            f"lease {lease.name} of {lease.holder}, generation {lease.generation}, is over: "
            f"{stored.holder or 'nobody'} has it now, generation {stored.generation}"
        )
    return int(stored.expires_ns)
