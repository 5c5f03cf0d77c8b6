"""What a person's word makes of a node that is out of service, and which of its history a repair ends."""

from collections.abc import Iterable

from lockstep.execution import Execution, Isolated, NodeOrder


def follow_order(isolated: Isolated, order: NodeOrder, *, can_test: bool, now_ns: int) -> Isolated:
    """Return the node after a person's word on it; what the word does not fit leaves it as it is, with a sentence."""
    said = _say(order)
    changes: dict[str, object] = {"heard": order.number, "said": said, "changed_ns": now_ns, "until_ns": None}
    if order.kind == "rma":
        changes |= {"state": "rma", "part": order.part}
    elif order.kind == "return":
        changes |= {"state": "returning", "until_ns": now_ns}
    elif order.kind == "repaired":
        # Without a test command the person who put the new part in is the test.
        changes |= {"state": "testing" if can_test else "returning", "until_ns": None if can_test else now_ns}
        changes |= {"tests": 0, "repaired_ns": now_ns, "part": None}
    elif isolated.state == "rma":
        changes |= {"said": f"{said}; it was sent back, so nothing is tested"}
    elif not can_test:
        changes |= {"said": f"{said}; planner.test_command is not set, so nothing is tested"}
    else:
        changes |= {"state": "testing"}
    return isolated.model_copy(update=changes)


def forget_repaired(runs: Iterable[Execution], isolated: Iterable[Isolated]) -> list[Execution]:
    """Return what still speaks of a part: executions about one that was replaced since belong to the old part."""
    repaired_ns: dict[str, int] = {}
    for each in isolated:
        if each.repaired_ns is not None:
            repaired_ns[each.component] = max(each.repaired_ns, repaired_ns.get(each.component, 0))
    return [run for run in runs if (run.ended_ns or run.began_ns) > repaired_ns.get(run.component, -1)]


def _say(order: NodeOrder) -> str:
    words: dict[str, str] = {
        "test": "is to be tested",
        "return": "is good",
        "rma": "was sent back",
        "repaired": "is repaired",
    }
    said = f"{order.node} {words[order.kind]}, says {order.who}"
    return f"{said}: {order.why}" if order.why else said
