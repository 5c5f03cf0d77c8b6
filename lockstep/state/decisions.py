"""Decisions as the planner left them: written whole, read by id, by incident, by job and newest first."""

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select

from lockstep.decision import Decision
from lockstep.errors import BadInput, NotPresent
from lockstep.execution import OUT_OF_SERVICE, PURSUED, Execution, Isolated, NodeOrder, Order, Outcome
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import (
    Row,
    matching,
    newest_first,
    read_all,
    read_by_id,
    read_document,
    read_one,
    record_within,
    row_of,
    write_over,
)
from lockstep.state.incidents import note_changes
from lockstep.state.leases import Lease, refuse_stale
from lockstep.state.tables import DECISIONS, EXECUTIONS, INCIDENTS, ISOLATIONS, NODE_ORDERS, ORDERS, OUTCOMES


def save_decisions(db: ControlDatabase, decisions: Sequence[Decision], lease: Lease | None) -> None:
    """Write all decisions or none, each replacing the one with its id; their incidents must be saved already.

    With a lease, LeaseLost is raised and nothing written once another holder has taken it.
    """
    with db.begin() as connection:
        if lease is not None:
            refuse_stale(connection, lease)
        wanted = {decision.incident for decision in decisions}
        known = set(connection.scalars(select(INCIDENTS.c.id).where(INCIDENTS.c.id.in_(wanted))))
        for each in decisions:
            if each.incident not in known:
                raise NotPresent(f"decision {each.id!r} answers incident {each.incident!r}, which is not here")
        rows = (row_of(each, "id", "incident", "job", "created_ns") for each in decisions)
        write_over(connection, DECISIONS, rows)
        note_changes(connection, "decision", (decision.id for decision in decisions))


def list_decisions(
    db: ControlDatabase, *, incident: str | None = None, job: str | None = None, limit: int = 100
) -> list[Decision]:
    """Return the newest decisions first."""
    query = matching(select(DECISIONS.c.document), (DECISIONS.c.incident, incident), (DECISIONS.c.job, job))
    return read_all(db, Decision, newest_first(query, DECISIONS.c.created_ns, DECISIONS.c.id, limit))


def get_decision(db: ControlDatabase, decision_id: str) -> Decision:
    """Return the decision with this id, or raise NotPresent."""
    return read_one(db, Decision, DECISIONS, decision_id)


def give_order(db: ControlDatabase, order: Order) -> None:
    """Write down, with a line in the audit, what somebody wants of a decision; NotPresent where there is none."""
    with db.begin() as connection:
        if connection.scalar(select(DECISIONS.c.id).where(DECISIONS.c.id == order.decision)) is None:
            raise NotPresent(f"there is no decision {order.decision!r}")
        connection.execute(insert(ORDERS).values(row_of(order, "decision", "ts_ns")))
        what = f"{order.kind}_decision"
        record_within(connection, who=order.who, what=what, subject=order.decision, why=order.why, now_ns=order.ts_ns)


def list_orders(db: ControlDatabase, decision: str | None = None, since_ns: int = 0) -> list[Order]:
    """Return orders, oldest first: all of them, or those on one decision."""
    query = select(ORDERS.c.document).where(ORDERS.c.ts_ns >= since_ns).order_by(ORDERS.c.id)
    return read_all(db, Order, matching(query, (ORDERS.c.decision, decision)))


def save_execution(
    db: ControlDatabase, execution: Execution, lease: Lease, isolated: Sequence[Isolated] = (), why: str = ""
) -> None:
    """Write an execution and what it did to nodes, with a line in the audit where `why` says what happened."""
    with db.begin() as connection:
        refuse_stale(connection, lease)
        write_over(connection, EXECUTIONS, [row_of(execution, "job", "state", "began_ns", id=execution.decision)])
        note_changes(connection, "execution", [execution.decision])
        write_over(connection, ISOLATIONS, map(_isolation_row, isolated))
        if why:
            ends_ns = [step.ended_ns or step.began_ns or 0 for step in execution.steps]
            newest_ns = max(execution.ended_ns or 0, execution.began_ns, *ends_ns)
            _audit(connection, f"execution_{execution.state}", execution.decision, why, newest_ns)


def find_execution(db: ControlDatabase, decision: str) -> Execution | None:
    """Return how far a decision has come; None where nothing was begun."""
    with db.read() as connection:
        text = connection.scalar(select(EXECUTIONS.c.document).where(EXECUTIONS.c.id == decision))
    return None if text is None else read_document(Execution, text)


def unfinished_executions(db: ControlDatabase) -> list[Execution]:
    """Return what is still to be carried out or undone, releases that were set aside included, oldest first."""
    query = select(EXECUTIONS.c.document).where(EXECUTIONS.c.state.in_(PURSUED))
    return read_all(db, Execution, query.order_by(EXECUTIONS.c.began_ns, EXECUTIONS.c.id))


def list_executions(db: ControlDatabase, *, job: str | None = None, limit: int = 100) -> list[Execution]:
    """Return the newest first."""
    query = matching(select(EXECUTIONS.c.document), (EXECUTIONS.c.job, job))
    return read_all(db, Execution, newest_first(query, EXECUTIONS.c.began_ns, EXECUTIONS.c.id, limit))


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
    return read_all(db, Isolated, query.order_by(ISOLATIONS.c.since_ns, ISOLATIONS.c.id))


def save_outcome(db: ControlDatabase, outcome: Outcome) -> None:
    """Write down what an incident turned out to be; the last word counts. NotPresent for an unknown incident."""
    with db.begin() as connection:
        if connection.scalar(select(INCIDENTS.c.id).where(INCIDENTS.c.id == outcome.incident)) is None:
            raise NotPresent(f"there is no incident {outcome.incident!r}")
        write_over(connection, OUTCOMES, [row_of(outcome, "ts_ns", id=outcome.incident)])
        word = "right" if outcome.was_right else "wrong"
        subject, why = outcome.incident, f"{word}: {outcome.why}".rstrip(": ")
        record_within(
            connection, who=outcome.who, what="confirm_outcome", subject=subject, why=why, now_ns=outcome.ts_ns
        )


def list_outcomes(db: ControlDatabase) -> dict[str, Outcome]:
    """Return outcomes by incident."""
    return read_by_id(db, Outcome, select(OUTCOMES.c.id, OUTCOMES.c.document).order_by(OUTCOMES.c.id))


def _audit(connection: Connection, what: str, subject: str, why: str, now_ns: int) -> None:
    """Write a line in the name of the planner, who alone acts under the lease."""
    record_within(connection, who="planner", what=what, subject=subject, why=why, now_ns=now_ns)


def _isolation_row(isolated: Isolated) -> Row:
    return row_of(isolated, "node", "state", "since_ns", id=f"{isolated.decision}/{isolated.node}")


def find_isolated(db: ControlDatabase, node: str) -> Isolated:
    """Return the isolation that keeps a node out of service, or raise NotPresent."""
    query = select(ISOLATIONS.c.document).where(ISOLATIONS.c.node == node, ISOLATIONS.c.state.in_(OUT_OF_SERVICE))
    with db.read() as connection:
        text = connection.scalar(query.order_by(ISOLATIONS.c.since_ns.desc(), ISOLATIONS.c.id.desc()).limit(1))
    if text is None:
        raise NotPresent(f"Lockstep keeps no node {node!r} out of service")
    return read_document(Isolated, text)


def give_node_order(db: ControlDatabase, order: NodeOrder) -> None:
    """Write down, with a line in the audit, what somebody wants of a node; the planner follows.

    NotPresent where the node is not out of service, BadInput where the order makes no sense now.
    """
    isolated = find_isolated(db, order.node)
    if isolated.state == "rma" and order.kind == "test":
        raise BadInput(f"{order.node} was sent back, and no test returns it: say `repaired` once a new part is in")
    with db.begin() as connection:
        connection.execute(insert(NODE_ORDERS).values(row_of(order, "decision", "node", "ts_ns")))
        what = f"{order.kind}_node"
        part = order.part.model_dump(exclude_none=True) if order.part else {}
        why = "; ".join(filter(None, (order.why, ", ".join(f"{name} {value}" for name, value in part.items()))))
        record_within(connection, who=order.who, what=what, subject=order.node, why=why, now_ns=order.ts_ns)


def list_node_orders(db: ControlDatabase, isolated: Isolated, after: int = 0) -> list[NodeOrder]:
    """Return what was said of one isolation, oldest first, each with its number; only numbers above `after`."""
    its = (NODE_ORDERS.c.decision == isolated.decision, NODE_ORDERS.c.node == isolated.node)
    query = select(NODE_ORDERS.c.id, NODE_ORDERS.c.document).where(*its, NODE_ORDERS.c.id > after)
    with db.read() as connection:
        rows = connection.execute(query.order_by(NODE_ORDERS.c.id)).all()
    return [read_document(NodeOrder, text).model_copy(update={"number": number}) for number, text in rows]
