"""The queue of alerts and its log: a message is written once, tried under one id, and kept for a while after."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import Connection, Row, delete, func, or_, select, update

from lockstep.alerts import Notification, Thread
from lockstep.errors import BadInput, NotPresent
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import (
    check_limit,
    insert_into,
    matching,
    read_all,
    read_document,
    record_within,
    row_of,
    write_over,
)
from lockstep.state.leases import Lease, refuse_stale
from lockstep.state.tables import ALERT_THREADS, DELIVERIES
from lockstep.state.targets import Health, read_health, write_health
from lockstep.verdict import Frozen

DeliveryState = Literal["waiting", "sending", "delivered", "failed", "superseded"]
_UNSENT: tuple[DeliveryState, ...] = ("waiting", "sending")
_KEPT_TRIES = 12  # a schedule has ten; a replay begins anew


class Try(Frozen):
    """One attempt to deliver."""

    ts_ns: int
    status: int | None = Field(None, description="what HTTP or SMTP answered; None: nobody did")
    said: str = ""


class Tries(Frozen):
    """What is written beside a delivery's columns."""

    notification: Notification
    count: int = Field(0, ge=0, description="tries since it was written or replayed")
    log: tuple[Try, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one receiver."""

    number: int
    target: str
    event: str
    thread: str
    state: DeliveryState
    due_ns: int
    created_ns: int
    tries: Tries


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that is to be written into the queue."""

    target: str
    notification: Notification
    replaces: bool  # the receiver shows a state: what it has not got yet of the same thread is worth nothing any more
    is_end: bool  # nothing is left to tell; of a thread that was never sent, nothing is told at all


def save_round(db: ControlDatabase, lease: Lease, outgoing: Sequence[Outgoing], threads: Iterable[Thread]) -> None:
    """Write messages and what receivers know thereby: both or neither, and each message once."""
    with db.begin() as connection:
        refuse_stale(connection, lease)
        for message in outgoing:
            _enqueue(connection, message)
        rows = (row_of(each, "id", "target", is_over=int(each.is_over), told_ns=each.reported_ns) for each in threads)
        write_over(connection, ALERT_THREADS, rows)


def list_threads(db: ControlDatabase, ids: Collection[str], since_ns: int) -> list[Thread]:
    """Return threads that are not over, those told of since then, and those with these ids."""
    wanted = or_(ALERT_THREADS.c.is_over == 0, ALERT_THREADS.c.told_ns >= since_ns, ALERT_THREADS.c.id.in_(ids))
    return read_all(db, Thread, select(ALERT_THREADS.c.document).where(wanted).order_by(ALERT_THREADS.c.id))


def due_deliveries(db: ControlDatabase, now_ns: int, limit: int = 20) -> list[tuple[str, int]]:
    """Return target and number of what may be sent now, oldest first: of each thread the first, so order is kept.

    The limit is for each target: a long queue of one that does not answer must not hide what others are due.
    """
    first = select(func.min(DELIVERIES.c.number)).where(DELIVERIES.c.state.in_(_UNSENT))
    heads = first.group_by(DELIVERIES.c.target, DELIVERIES.c.thread).scalar_subquery()
    ripe = (DELIVERIES.c.state == "waiting") & (DELIVERIES.c.due_ns <= now_ns) & DELIVERIES.c.number.in_(heads)
    position = (
        func.row_number().over(partition_by=DELIVERIES.c.target, order_by=DELIVERIES.c.number).label("position")
    )
    ranked = select(DELIVERIES.c.target, DELIVERIES.c.number, position).where(ripe).subquery()
    query = select(ranked).where(ranked.c.position <= limit).order_by(ranked.c.number)
    with db.read() as connection:
        return [(row.target, row.number) for row in connection.execute(query)]


def begin_try(db: ControlDatabase, lease: Lease, number: int, now_ns: int) -> Delivery | None:
    """Write down that a message is about to be sent, and return it; None where it is not waiting any more."""
    with db.begin() as connection:
        refuse_stale(connection, lease)
        row = connection.execute(
            select(DELIVERIES).where(DELIVERIES.c.number == number).with_for_update()
        ).one_or_none()
        if row is None or row.state != "waiting":
            return None
        found = delivery_of(row)
        tries = found.tries.model_copy(update={"count": found.tries.count + 1})
        return _write(connection, found, "sending", now_ns, tries)


def settle_try(
    db: ControlDatabase, lease: Lease, sent: Delivery, state: DeliveryState, due_ns: int, outcome: Try, health: Health
) -> None:
    """Write down what became of a try, and how its receiver does."""
    tries = sent.tries.model_copy(update={"log": (*sent.tries.log, outcome)[-_KEPT_TRIES:]})
    with db.begin() as connection:
        refuse_stale(connection, lease)
        current = connection.scalar(select(DELIVERIES.c.state).where(DELIVERIES.c.number == sent.number))
        if current == "sending":  # its receiver may have been deleted meanwhile, and its message with it
            _write(connection, sent, state, due_ns, tries)
            write_health(connection, sent.target, health)


def save_health(db: ControlDatabase, lease: Lease, target: str, health: Health) -> None:
    """Write how a receiver does, where no message of the queue was sent."""
    with db.begin() as connection:
        refuse_stale(connection, lease)
        write_health(connection, target, health)


def health_of(db: ControlDatabase, target: str, now_ns: int) -> Health:
    with db.read() as connection:
        return read_health(connection, target, now_ns)


def resume_sending(db: ControlDatabase, lease: Lease, now_ns: int, busy: Collection[str] = ()) -> int:
    """Let everything be tried again that was begun and never settled, but for busy targets; return how many.

    A process before us may have died over it, or the database was away when its outcome was to be written.
    """
    begun = (DELIVERIES.c.state == "sending", DELIVERIES.c.target.not_in(busy))
    with db.read() as connection:
        if connection.scalar(select(DELIVERIES.c.number).where(*begun).limit(1)) is None:
            return 0
    with db.begin() as connection:
        refuse_stale(connection, lease)
        again = update(DELIVERIES).where(*begun).values(state="waiting", due_ns=now_ns)
        return int(connection.execute(again).rowcount)


def list_deliveries(
    db: ControlDatabase,
    target: str,
    *,
    state: DeliveryState | None = None,
    limit: int = 100,
    before: int | None = None,
) -> list[Delivery]:
    """Return a receiver's messages, newest first; `before` is the number of the last one of the page above."""
    check_limit(limit)
    query = matching(select(DELIVERIES), (DELIVERIES.c.target, target), (DELIVERIES.c.state, state))
    if before is not None:
        query = query.where(DELIVERIES.c.number < before)
    with db.read() as connection:
        rows = connection.execute(query.order_by(DELIVERIES.c.number.desc()).limit(limit))
        return [delivery_of(row) for row in rows]


def replay_delivery(db: ControlDatabase, target: str, event: str, *, who: str, why: str, now_ns: int) -> Delivery:
    """Send a message once more under its old id, whatever became of it; its schedule begins anew."""
    with db.begin() as connection:
        mine = (DELIVERIES.c.target == target, DELIVERIES.c.event == event)
        row = connection.execute(select(DELIVERIES).where(*mine).with_for_update()).one_or_none()
        if row is None:
            raise NotPresent(f"target {target!r} has no delivery {event!r}")
        if row.state == "sending":
            raise BadInput(f"delivery {event} is being sent at this moment")
        found = delivery_of(row)
        record_within(
            connection, who=who, what="replay_delivery", subject=f"{target}/{event}", why=why, now_ns=now_ns
        )
        return _write(connection, found, "waiting", now_ns, found.tries.model_copy(update={"count": 0}))


def oldest_waiting(db: ControlDatabase, targets: Collection[str]) -> tuple[str, int] | None:
    """Return for which of these receivers a message has waited longest, and since when; None: they have all."""
    stuck = (DELIVERIES.c.state.in_(_UNSENT), DELIVERIES.c.target.in_(targets))
    query = select(DELIVERIES.c.target, DELIVERIES.c.created_ns).where(*stuck).order_by(DELIVERIES.c.number)
    with db.read() as connection:
        row = connection.execute(query.limit(1)).one_or_none()
    return None if row is None else (row.target, row.created_ns)


def forget_deliveries(db: ControlDatabase, lease: Lease, before_ns: int) -> None:
    """Delete messages that are older than this, whatever became of them, and threads that ended before it."""
    with db.begin() as connection:
        refuse_stale(connection, lease)
        connection.execute(delete(DELIVERIES).where(DELIVERIES.c.created_ns < before_ns))
        over = (ALERT_THREADS.c.is_over == 1, ALERT_THREADS.c.told_ns < before_ns)
        connection.execute(delete(ALERT_THREADS).where(*over))


def _enqueue(connection: Connection, message: Outgoing) -> None:
    thread = message.notification.key
    mine = (DELIVERIES.c.target == message.target, DELIVERIES.c.thread == thread)
    if message.replaces:
        unsent = update(DELIVERIES).where(*mine, DELIVERIES.c.state == "waiting")
        connection.execute(unsent.values(state="superseded"))
    if message.is_end:
        before = map(delivery_of, connection.execute(select(DELIVERIES).where(*mine)))
        if not any(each.state != "superseded" or each.tries.count > 0 for each in before):
            return  # the receiver knows nothing of the thread, nor ever will
    about = {"target": message.target, "event": message.notification.id, "thread": thread, "state": "waiting"}
    times = dict.fromkeys(("due_ns", "created_ns"), message.notification.ts_ns)
    row = row_of(Tries(notification=message.notification), **about, **times)
    connection.execute(insert_into(connection, DELIVERIES).values(row).on_conflict_do_nothing())


def delivery_of(row: Row[Any]) -> Delivery:
    """Return the delivery of a whole row."""
    columns = {name: value for name, value in row._mapping.items() if name != "document"}
    return Delivery(**columns, tries=read_document(Tries, row.document))


def _write(connection: Connection, found: Delivery, state: DeliveryState, due_ns: int, tries: Tries) -> Delivery:
    row = row_of(tries, state=state, due_ns=due_ns)
    connection.execute(update(DELIVERIES).where(DELIVERIES.c.number == found.number).values(row))
    return replace(found, state=state, due_ns=due_ns, tries=tries)
