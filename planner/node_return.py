"""The recovery of a node that was taken out of service: tested and returned, or kept for repair, or sent back.

A person's word goes before the tests: orders on nodes (way_back.py) are followed first, and each once.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput, ControllerDown, LeaseLost, LockstepError
from lockstep.execution import UNFINISHED, Execution, Isolated, IsolationState, NodeOrder
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import find_execution, list_isolated, list_node_orders, save_isolated
from lockstep.state.leases import Lease, check_lease
from planner.controllers.protocol import Controller, Report
from planner.controllers.running import Background, start_command


def follow_order(isolated: Isolated, order: NodeOrder, *, can_test: bool, now_ns: int) -> Isolated:
    """Return the node after a person's word on it; what the word does not fit leaves it as it is, with a sentence."""
    message = _say(order)
    changes: dict[str, object] = {
        "last_order": order.number,
        "message": message,
        "changed_ns": now_ns,
        "until_ns": None,
    }
    if order.kind == "rma":
        changes |= {"state": "rma", "part": order.part}
    elif order.kind == "return":
        changes |= {"state": "returning", "until_ns": now_ns}
    elif order.kind == "repaired":
        # Without a test command the person who put the new part in is the test.
        changes |= {"state": "testing" if can_test else "returning", "until_ns": None if can_test else now_ns}
        changes |= {"tests": 0, "repaired_ns": now_ns, "part": None}
    elif isolated.state == "rma":
        changes |= {"message": f"{message}; it was sent back, so nothing is tested"}
    elif not can_test:
        changes |= {"message": f"{message}; planner.test_command is not set, so nothing is tested"}
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
    message = f"{order.node} {words[order.kind]}, says {order.who}"
    return f"{message}: {order.why}" if order.why else message


@dataclass(frozen=True, slots=True)
class Finding:
    """What a test has found."""

    is_healthy: bool
    message: str


class Tester(Protocol):
    """Tests a node that carries no work; a test may take many rounds."""

    def poll(self, node: str, now_ns: int) -> Finding | None: ...  # None: it is not over

    def forget(self, node: str) -> None: ...


_MOST_TESTS = 3  # failed ones, after which a node is left for repair
_AGAIN_NS = 600 * NS_PER_S  # between tests that failed
_RELEASE_NS = 60 * NS_PER_S  # between releases that failed


class CommandTester:
    """Runs a command per node, such as `ssh {node} dcgmi diag -r 2`: exit code 0 means healthy."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        if not any("{node}" in word for word in command):
            raise BadInput(f"the test command `{shlex.join(command)}` does not say {{node}}")
        self._command, self._timeout_s = tuple(command), timeout_s
        self._running: dict[str, Background] = {}

    def poll(self, node: str, now_ns: int) -> Finding | None:
        """Start the command, or see whether it has ended."""
        run = self._running.get(node)
        if run is not None and run.process.poll() is not None and run.is_late(now_ns):
            self.forget(node)  # of an earlier isolation: nobody came for its result
            run = None
        if run is None:
            words = [word.replace("{node}", node) for word in self._command]
            self._running[node] = start_command(words, now_ns, self._timeout_s)
            return None
        if not run.is_over(now_ns):
            return None
        ended = self._running.pop(node).finish()
        if ended.code is None:
            return Finding(False, f"the test did not end within {self._timeout_s:.0f} s; {ended.message}")
        word = "passed" if ended.is_good else f"failed with {ended.code}"
        return Finding(ended.is_good, f"the test {word}: {ended.message}")

    def forget(self, node: str) -> None:
        """End the command, if it runs."""
        if (run := self._running.pop(node, None)) is not None:
            run.finish()


class Returner:
    """Follows what persons say of isolated nodes, tests the others, and gives back what is healthy."""

    def __init__(
        self,
        control: ControlDatabase,
        controller: Controller,
        tester: Tester | None,  # None: only a person returns a node
        rest_s: float = 60.0,  # before its test, unless the decision says until when: the job there ends first
    ) -> None:
        self._control, self._controller, self._tester = control, controller, tester
        self._rest_ns = int(rest_s * NS_PER_S)

    def run_once(self, lease: Lease, now_ns: int) -> None:
        """Take each isolated node one step further."""
        troubles = list[LockstepError]()
        for isolated in list_isolated(self._control, since_ns=now_ns):
            if isolated.state == "returned":
                continue
            try:
                self._take_further(self._follow(isolated, lease, now_ns), lease, now_ns)
            except LeaseLost:
                raise
            except LockstepError as error:  # none stops another
                troubles.append(error)
        if troubles:
            raise troubles[0]

    def _follow(self, isolated: Isolated, lease: Lease, now_ns: int) -> Isolated:
        for order in list_node_orders(self._control, isolated, after=isolated.last_order):
            isolated = follow_order(isolated, order, can_test=self._tester is not None, now_ns=now_ns)
            if self._tester is not None:
                self._tester.forget(isolated.node)
            save_isolated(self._control, isolated, lease, why=isolated.message)
        return isolated

    def _take_further(self, isolated: Isolated, lease: Lease, now_ns: int) -> None:
        if isolated.state == "returning" and self._is_due(isolated, now_ns):
            self._release(isolated, lease, now_ns)
        elif self._tester is not None and (
            isolated.state == "testing"
            or (isolated.state == "isolated" and self._is_due(isolated, now_ns) and self._is_left(isolated))
        ):
            self._test(isolated, self._tester, lease, now_ns)

    def _is_due(self, isolated: Isolated, now_ns: int) -> bool:
        until_ns = isolated.until_ns
        return now_ns >= (until_ns if until_ns is not None else isolated.changed_ns + self._rest_ns)

    def _is_left(self, isolated: Isolated) -> bool:
        """Return whether the job has left: it stays while its checkpoint is converted or its restart fails."""
        run = find_execution(self._control, isolated.decision)
        return run is None or run.state not in UNFINISHED

    def _test(self, isolated: Isolated, tester: Tester, lease: Lease, now_ns: int) -> None:
        if isolated.state != "testing":
            isolated = _changed(isolated, "testing", isolated.message, now_ns)
            save_isolated(self._control, isolated, lease, why="its test has begun")
        finding = tester.poll(isolated.node, now_ns)
        if finding is None:
            return
        if not finding.is_healthy:
            tests = isolated.tests + 1
            is_last = tests >= _MOST_TESTS
            kept = _changed(isolated, "repair" if is_last else "isolated", finding.message, now_ns)
            kept = kept.model_copy(update={"tests": tests, "until_ns": None if is_last else now_ns + _AGAIN_NS})
            save_isolated(self._control, kept, lease, why=kept.message)
            return
        # In writing before it is asked for, so that who comes after a crash releases it and tests no second time.
        returning = _changed(isolated, "returning", finding.message, now_ns)
        save_isolated(self._control, returning, lease)
        self._release(returning, lease, now_ns)

    def _release(self, isolated: Isolated, lease: Lease, now_ns: int) -> None:
        """Return the node to service; where the controller does not do it now, it is asked again."""
        check_lease(self._control, lease, now_ns)
        try:
            report = self._controller.release(isolated.node, isolated.decision)
        except ControllerDown as down:
            report = Report("failed", str(down))
        if report.outcome == "failed":
            later = _changed(isolated, "returning", f"not released: {report.what}", now_ns)
            later = later.model_copy(update={"until_ns": now_ns + _RELEASE_NS})
            save_isolated(self._control, later, lease, why=later.message)
            return
        state: IsolationState = "returned" if report.is_good else "repair"
        after = _changed(isolated, state, f"{isolated.message}; {report.what}", now_ns)
        save_isolated(self._control, after, lease, why=after.message)


def _changed(isolated: Isolated, state: IsolationState, message: str, now_ns: int) -> Isolated:
    update = {"state": state, "message": message, "changed_ns": now_ns, "until_ns": None}
    return isolated.model_copy(update=update | ({"until_ns": now_ns} if state == "returning" else {}))
