"""What persons say of nodes that are out of service: test it, return it, it was sent back, it is repaired."""

from sqlalchemy import insert, select

from lockstep.control.audit import record_within
from lockstep.control.database import ControlDatabase
from lockstep.control.documents import read_document
from lockstep.control.tables import ISOLATIONS, NODE_ORDERS
from lockstep.errors import BadInput, NotPresent
from lockstep.execution import OUT_OF_SERVICE, Isolated, NodeOrder


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
    row = {"decision": order.decision, "node": order.node, "ts_ns": order.ts_ns, "document": order.model_dump_json()}
    with db.begin() as connection:
        connection.execute(insert(NODE_ORDERS).values(row))
        what = f"{order.kind}_node"
        why = "; ".join(filter(None, (order.why, _name_part(order))))
        record_within(connection, who=order.who, what=what, subject=order.node, why=why, now_ns=order.ts_ns)


def list_node_orders(db: ControlDatabase, isolated: Isolated, after: int = 0) -> list[NodeOrder]:
    """Return what was said of one isolation, oldest first, each with its number; only numbers above `after`."""
    its = (NODE_ORDERS.c.decision == isolated.decision, NODE_ORDERS.c.node == isolated.node)
    query = select(NODE_ORDERS.c.id, NODE_ORDERS.c.document).where(*its, NODE_ORDERS.c.id > after)
    with db.read() as connection:
        rows = connection.execute(query.order_by(NODE_ORDERS.c.id)).all()
    return [read_document(NodeOrder, text).model_copy(update={"number": number}) for number, text in rows]


def _name_part(order: NodeOrder) -> str:
    told = order.part.model_dump(exclude_none=True) if order.part else {}
    return ", ".join(f"{name} {value}" for name, value in told.items())
