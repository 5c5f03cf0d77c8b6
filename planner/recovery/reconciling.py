"""Keeps what we wrote down about nodes and what the controller says of them from drifting apart."""

from lockstep.control.database import ControlDatabase
from lockstep.control.executions import find_execution, list_isolated, save_isolated
from lockstep.control.leases import Lease
from lockstep.execution import OUT_OF_SERVICE, PURSUED
from planner.controllers.protocol import Controller, Node


def reconcile(control: ControlDatabase, controller: Controller, lease: Lease, now_ns: int) -> None:
    """Write down nodes that somebody else gave back or removed, and give back what a late answer left isolated."""
    seen = {node.name: node for node in controller.nodes()}
    if not seen:
        return  # this controller cannot tell
    rows = {(each.decision, each.node): each for each in list_isolated(control)}
    for each in rows.values():
        node = seen.get(each.node)
        if node is None and each.state == "rma":
            continue  # it may be in pieces
        if each.state in OUT_OF_SERVICE and (node is None or node.is_usable):
            said = f"{each.node} is {'in service' if node else 'gone'}, says {controller.name}: somebody did that"
            changed = {"state": "returned", "changed_ns": now_ns, "said": said}
            save_isolated(control, each.model_copy(update=changed), lease, why=said)
    for node in seen.values():
        if node.mark is not None and _is_forgotten(control, node, node.mark, (node.mark, node.name) in rows):
            controller.release(node.name, node.mark)


def _is_forgotten(control: ControlDatabase, node: Node, mark: str, has_row: bool) -> bool:
    """Return whether a node carries the mark of an execution that is over and no longer holds it."""
    run = find_execution(control, mark)
    if run is None or run.state in PURSUED:
        return False
    mine = [each for each in list_isolated(control) if (each.decision, each.node) == (mark, node.name)]
    held = any(each.state in OUT_OF_SERVICE for each in mine)
    return not held and (has_row or run.state in ("undone", "failed"))
