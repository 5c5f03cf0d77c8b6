"""How far decisions have been carried out: orders of persons, steps that were done, nodes that are out of service."""

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select

from lockstep.control.audit import record_within
from lockstep.control.changes import note_changes
from lockstep.control.database import ControlDatabase
from lockstep.control.documents import Row, newest_first, read_document, write_over
from lockstep.control.leases import Lease, refuse_stale
from lockstep.control.tables import DECISIONS, EXECUTIONS, INCIDENTS, ISOLATIONS, ORDERS, OUTCOMES
from lockstep.errors import NotPresent
from lockstep.execution import PURSUED, Execution, Isolated, Order, Outcome

_PLANNER = "planner"  # who stands in the audit for what is done under the lease


def give_order(db: ControlDatabase, order: Order) -> None:
    """Write down, with a line in the audit, what somebody wants of a decision; NotPresent where there is none."""
    with db.begin() as connection:
        if connection.scalar(select(DECISIONS.c.id).where(DECISIONS.c.id == order.decision)) is None:
            raise NotPresent(f"there is no decision {order.decision!r}")
        _add_order(connection, order)


def list_orders(db: ControlDatabase, decision: str | None = None, since_ns: int = 0) -> list[Order]:
    """Return orders, oldest first: all of them, or those on one decision."""
    query = select(ORDERS.c.document).where(ORDERS.c.ts_ns >= since_ns).order_by(ORDERS.c.id)
    if decision is not None:
        query = query.where(ORDERS.c.decision == decision)
    with db.read() as connection:
        return [read_document(Order, text) for text in connection.scalars(query)]


def save_execution(
    db: ControlDatabase, execution: Execution, lease: Lease, isolated: Sequence[Isolated] = (), why: str = ""
) -> None:
    """Write an execution and what it did to nodes, with a line in the audit where `why` says what happened."""
    with db.begin() as connection:
        refuse_stale(connection, lease)
        write_over(connection, EXECUTIONS, [_execution_row(execution)])
        note_changes(connection, "execution", [execution.decision])
        write_over(connection, ISOLATIONS, map(_isolation_row, isolated))
        if why:
            _audit(connection, f"execution_{execution.state}", execution.decision, why, _newest_ns(execution))


def find_execution(db: ControlDatabase, decision: str) -> Execution | None:
    """Return how far a decision has come; None where nothing was begun."""
    with db.read() as connection:
        text = connection.scalar(select(EXECUTIONS.c.document).where(EXECUTIONS.c.id == decision))
    return None if text is None else read_document(Execution, text)


def unfinished_executions(db: ControlDatabase) -> list[Execution]:
    """Return what is still to be carried out or undone, releases that were set aside included, oldest first."""
    query = select(EXECUTIONS.c.document).where(EXECUTIONS.c.state.in_(PURSUED))
    with db.read() as connection:
        rows = connection.scalars(query.order_by(EXECUTIONS.c.began_ns, EXECUTIONS.c.id))
        return [read_document(Execution, text) for text in rows]


def list_executions(
    db: ControlDatabase, *, job: str | None = None, limit: int = 100, before: tuple[int, str] | None = None
) -> list[Execution]:
    """Return the newest first; `before` is (began_ns, decision) of the last one of the page above."""
    query = select(EXECUTIONS.c.document)
    if job is not None:
        query = query.where(EXECUTIONS.c.job == job)
    query = newest_first(query, EXECUTIONS.c.began_ns, EXECUTIONS.c.id, limit, before)
    with db.read() as connection:
        return [read_document(Execution, text) for text in connection.scalars(query)]


def save_isolated(db: ControlDatabase, isolated: Isolated, lease: Lease, why: str = "") -> None:
    """Write where a node is on its way back."""
    with db.begin() as connection:
        refuse_stale(connection, lease)
        write_over(connection, ISOLATIONS, [_isolation_row(isolated)])
        if why:
            _audit(connection, f"node_{isolated.state}", isolated.node, why, isolated.changed_ns)


def list_isolated(db: ControlDatabase, since_ns: int = 0) -> list[Isolated]:
    """Return nodes that were taken out of service since then, or still are, oldest first."""
    wanted = (ISOLATIONS.c.since_ns >= since_ns) | (ISOLATIONS.c.state != "returned")
    query = select(ISOLATIONS.c.document).where(wanted)
    with db.read() as connection:
        rows = connection.scalars(query.order_by(ISOLATIONS.c.since_ns, ISOLATIONS.c.id))
        return [read_document(Isolated, text) for text in rows]


def save_outcome(db: ControlDatabase, outcome: Outcome) -> None:
    """Write down what an incident turned out to be; the last word counts. NotPresent for an unknown incident."""
    with db.begin() as connection:
        if connection.scalar(select(INCIDENTS.c.id).where(INCIDENTS.c.id == outcome.incident)) is None:
            raise NotPresent(f"there is no incident {outcome.incident!r}")
        row = {"id": outcome.incident, "ts_ns": outcome.ts_ns, "document": outcome.model_dump_json()}
        write_over(connection, OUTCOMES, [row])
        word = "right" if outcome.was_right else "wrong"
        subject, why = outcome.incident, f"{word}: {outcome.why}".rstrip(": ")
        record_within(
            connection, who=outcome.who, what="confirm_outcome", subject=subject, why=why, now_ns=outcome.ts_ns
        )


def list_outcomes(db: ControlDatabase, since_ns: int = 0) -> dict[str, Outcome]:
    """Return outcomes by incident."""
    query = select(OUTCOMES.c.id, OUTCOMES.c.document).where(OUTCOMES.c.ts_ns >= since_ns).order_by(OUTCOMES.c.id)
    with db.read() as connection:
        return {incident: read_document(Outcome, text) for incident, text in connection.execute(query)}


def _add_order(connection: Connection, order: Order) -> None:
    row = {"decision": order.decision, "ts_ns": order.ts_ns, "document": order.model_dump_json()}
    connection.execute(insert(ORDERS).values(row))
    what = f"{order.kind}_decision"
    record_within(connection, who=order.who, what=what, subject=order.decision, why=order.why, now_ns=order.ts_ns)


def _newest_ns(execution: Execution) -> int:
    """Return when something last happened to an execution."""
    moments = [step.ended_ns or step.began_ns or 0 for step in execution.steps]
    return max(execution.ended_ns or 0, execution.began_ns, *moments)


def _audit(connection: Connection, what: str, subject: str, why: str, now_ns: int) -> None:
    record_within(connection, who=_PLANNER, what=what, subject=subject, why=why, now_ns=now_ns)


def _execution_row(execution: Execution) -> Row:
    return {
        "id": execution.decision,
        "job": execution.job,
        "state": execution.state,
        "began_ns": execution.began_ns,
        "document": execution.model_dump_json(),
    }


def _isolation_row(isolated: Isolated) -> Row:
    return {
        "id": f"{isolated.decision}/{isolated.node}",
        "node": isolated.node,
        "state": isolated.state,
        "since_ns": isolated.since_ns,
        "document": isolated.model_dump_json(),
    }
