"""Carries decisions out, one act after the other, so that being killed anywhere does nothing twice and loses nothing.

Each act is written down before it is asked for and again when it was answered. Whoever comes after a crash asks
again for what was begun; the controller finds the decision's mark and answers `already`. Every write is made under
the lease, so a planner that was replaced without knowing it stops at its next write.
"""

from collections.abc import Callable
from contextlib import suppress

import structlog

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.errors import BadInput, ControllerDown, HalfDone
from lockstep.execution import OUT_OF_SERVICE, PURSUED, Execution, Isolated, Step
from lockstep.hostlists import match_hosts
from lockstep.in_job import IN_JOB_ACTS, Effect, InJobAct
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import (
    find_execution,
    get_decision,
    list_executions,
    list_isolated,
    list_orders,
    save_execution,
    save_isolated,
    unfinished_executions,
)
from lockstep.state.incidents import get_incident
from lockstep.state.leases import Lease, check_lease
from planner.checkpoints.convert import Converter, find_conversion
from planner.controllers.protocol import Controller, InJob, Report, Shrink
from planner.steps import (
    due_step,
    end,
    mark_answered,
    mark_begun,
    mark_progress,
    mark_unloadable,
    next_step,
    restart_order,
    undo,
)


def reconcile(control: ControlDatabase, controller: Controller, lease: Lease, now_ns: int) -> None:
    """Write down nodes that somebody else gave back or removed, and give back what a late answer left isolated."""
    seen = {node.name: node for node in controller.nodes()}
    if not seen:
        return  # this controller cannot tell
    rows = {(each.decision, each.node): each for each in list_isolated(control)}
    meant = match_hosts({each.node for each in rows.values()}, seen)
    held = {(each.decision, meant.get(each.node, each.node)): key for key, each in rows.items()}
    for key, each in rows.items():
        node = seen.get(meant.get(each.node, each.node))
        if node is None and each.state == "rma":
            continue  # it may be in pieces
        if each.state in OUT_OF_SERVICE and (node is None or node.is_usable):
            message = f"{each.node} is {'in service' if node else 'gone'}, says {controller.name}: somebody did that"
            changed = {"state": "returned", "changed_ns": now_ns, "message": message}
            rows[key] = each.model_copy(update=changed)
            save_isolated(control, rows[key], lease, why=message)
    for node in seen.values():
        mark = node.mark
        row = rows[held[mark, node.name]] if mark is not None and (mark, node.name) in held else None
        if mark is not None and _is_forgotten(find_execution(control, mark), row):
            controller.release(node.name, mark)


def _is_forgotten(run: Execution | None, row: Isolated | None) -> bool:
    """Return whether a node carries the mark of an execution that is over and no longer holds it."""
    if run is None or run.state in PURSUED:
        return False
    return row.state not in OUT_OF_SERVICE if row else run.state in ("undone", "failed")


_log = structlog.get_logger("executing")
_COMPARE_NS = 60 * NS_PER_S  # between two looks at whether nodes are as we wrote them down
_LOADING_NS = 120 * NS_PER_S  # a job that fails sooner after its start has not got behind loading its checkpoint
_CHECK_NS = 10 * NS_PER_S  # between two checks of jobs that load; a decision about them comes later than that
_ORDERS_NS = 7 * 86_400 * NS_PER_S  # a planner that was away for longer asks nobody to remember
_MOST_LOADING = 20  # executions that are looked at: more were not begun in two minutes
_WATCH_S = 600.0  # is waited for a restarted job to run
_SETTLE_S = 60.0  # is waited for the incident to end after a cure in place


class Executor:
    """Takes every unfinished execution one act further."""

    def __init__(
        self,
        control: ControlDatabase,
        controller: Controller,
        passing: Callable[[str], None] = lambda point: None,  # told each point where a kill would hurt most
        converter: Converter | None = None,
    ) -> None:
        self._control, self._controller = control, controller
        self._passing, self._converter = passing, converter or Converter()
        self._compared_ns = self._checked_ns = 0

    def run_once(self, lease: Lease, now_ns: int) -> int:
        """Do the next act of each unfinished execution; return how many are left."""
        found = unfinished_executions(self._control)
        for execution in found:
            self._take_further(execution, lease, now_ns)
        if now_ns - self._compared_ns >= _COMPARE_NS:
            self._compared_ns = now_ns
            with suppress(ControllerDown):
                reconcile(self._control, self._controller, lease, now_ns)
        if now_ns - self._checked_ns >= _CHECK_NS:
            self._checked_ns = now_ns
            self._mark_unloadable(lease, now_ns)
        return len(found)

    def _mark_unloadable(self, lease: Lease, now_ns: int) -> None:
        """Write down of a job that ran and failed soon that it could not start from its checkpoint."""
        for run in list_executions(self._control, limit=_MOST_LOADING):
            if run.state != "done" or run.new_job is None or now_ns - (run.ended_ns or 0) > _LOADING_NS:
                continue
            with suppress(ControllerDown, BadInput):
                view = self._controller.job(run.new_job)
                if view is not None and view.state == "failed" and not run.unloadable:
                    failed = mark_unloadable(run, get_decision(self._control, run.decision))
                    save_execution(self._control, failed, lease, why=f"{run.new_job} failed soon after its start")

    def undo(self, execution: Execution, why: str, lease: Lease, now_ns: int) -> None:
        """Turn an execution round, finished or not; its releases follow in the next rounds."""
        turned = undo(execution, why, now_ns)
        if turned != execution:
            if (wanted := find_conversion(get_decision(self._control, execution.decision))) is not None:
                self._converter.forget(wanted)
            save_execution(self._control, turned, lease, why=f"undone: {why}")

    def _take_further(self, execution: Execution, lease: Lease, now_ns: int) -> None:
        if next_step(execution) is None:
            save_execution(self._control, end(execution, now_ns), lease)
            return
        index = due_step(execution, now_ns)
        if index is None:
            return  # it failed a moment ago
        decision = get_decision(self._control, execution.decision)
        act = execution.steps[index].act
        if act == "watch":
            self._watch(execution, index, decision, lease, now_ns)
        elif act == "convert":
            self._convert(execution, index, decision, lease, now_ns)
        else:
            begun = self._begin(execution, index, lease, now_ns)
            report = self._ask(begun.steps[index], decision)
            self._passing(f"asked {act}")
            self._save_answer(begun, index, decision, report, lease, now_ns)

    def _begin(self, execution: Execution, index: int, lease: Lease, now_ns: int) -> Execution:
        """Write down that a step is begun, before it is asked for."""
        act = execution.steps[index].act
        begun = mark_begun(execution.model_copy(update={"generation": lease.generation}), index, now_ns)
        save_execution(self._control, begun, lease)
        self._passing(f"begun {act}")
        check_lease(self._control, lease, now_ns)
        self._passing(f"checked {act}")
        return begun

    def _ask(self, step: Step, decision: Decision) -> Report:
        """Ask the controller for one act; one that does not answer has failed for now."""
        try:
            if step.act == "isolate":
                return self._isolate(step.subject, decision)
            if step.act == "release":
                return self._controller.release(step.subject, decision.id)
            if step.act == "reattempt":
                return self._controller.reattempt(decision.job, decision.id)
            if step.act in IN_JOB_ACTS:
                return self._shrink(step.act, decision)
            out = [each.node for each in list_isolated(self._control) if each.state in OUT_OF_SERVICE]
            return self._controller.restart(restart_order(decision, out))
        except ControllerDown as down:
            return Report("failed", str(down), is_half_done=isinstance(down, HalfDone))
        except BadInput as nonsense:
            return Report("refused", str(nonsense))

    def _shrink(self, act: InJobAct, decision: Decision) -> Report:
        """Let the job itself go on without what it has on the decision's nodes."""
        if not isinstance(self._controller, InJob):
            return Report("refused", f"{self._controller.name} cannot speak to a job")
        nodes = tuple(part.node for part in decision.isolate if part.node)
        return self._controller.shrink(Shrink(decision.id, decision.job, act, nodes))

    def _isolate(self, node: str, decision: Decision) -> Report:
        """Isolate a node; one that somebody else took out of service is as good as isolated, and stays theirs."""
        reason = next((part.reason for part in decision.isolate if part.node == node), decision.reason)
        report = self._controller.isolate(node, decision.id, reason)
        if report.outcome != "refused":
            return report
        seen = {each.name: each for each in self._controller.nodes()}
        meant = match_hosts([node], seen).get(node)
        if meant is not None and not seen[meant].is_usable:
            return Report("would", f"{node} is out of service without us: {report.what}")
        return report

    def _save_answer(
        self, begun: Execution, index: int, decision: Decision, report: Report, lease: Lease, now_ns: int
    ) -> None:
        step, after = begun.steps[index], mark_answered(begun, index, report, now_ns)
        isolated = self._find_isolated(decision, step, report, after, now_ns)
        message = report.what if after.state != "release_failed" else after.steps[index].message
        save_execution(self._control, after, lease, isolated, why=f"{step.act} {step.subject}: {message}")
        self._passing(f"answered {step.act}")
        log = _log.error if after.state == "release_failed" != begun.state else _log.info
        log("act answered", act=step.act, subject=step.subject, outcome=report.outcome, message=message)

    def _find_isolated(
        self, decision: Decision, step: Step, report: Report, after: Execution, now_ns: int
    ) -> list[Isolated]:
        """Return what an act has changed for its node."""
        if report.outcome not in ("done", "already") or step.act not in ("isolate", "release"):
            return []
        made = _isolated(decision, step, report, after, now_ns)
        if step.act == "isolate":
            return [made]
        rows = list_isolated(self._control)
        known = next((row for row in rows if (row.node, row.decision) == (made.node, made.decision)), made)
        # What persons said of it, what was sent back and when it was repaired stays known.
        return [known.model_copy(update=made.model_dump(include={"state", "changed_ns", "until_ns", "message"}))]

    def _convert(self, execution: Execution, index: int, decision: Decision, lease: Lease, now_ns: int) -> None:
        """Let the checkpoint be converted, over many rounds; who comes after a crash begins it again."""
        wanted = find_conversion(decision)
        if wanted is None:
            raise BadInput(f"decision {decision.id} no longer says what is to be converted")
        if not self._converter.is_running(wanted):
            execution = self._begin(execution, index, lease, now_ns)
        progress = self._converter.poll(wanted, now_ns)
        if progress.report is not None:
            self._passing("asked convert")
            self._save_answer(execution, index, decision, progress.report, lease, now_ns)
        elif progress.message != execution.steps[index].message:
            save_execution(self._control, mark_progress(execution, index, progress.message), lease)

    def _watch(self, execution: Execution, index: int, decision: Decision, lease: Lease, now_ns: int) -> None:
        """See whether the cure has worked; nothing is written while that is open."""
        step = execution.steps[index]
        if step.state == "waiting":
            execution = mark_begun(execution, index, now_ns)
            save_execution(self._control, execution, lease)
            self._passing("begun watch")
        report = self._watch_job(execution, execution.steps[index], now_ns)
        if report is not None:
            self._passing("asked watch")
            after = mark_answered(execution, index, report, now_ns)
            after = mark_unloadable(after, decision) if report.is_job_failed else after
            save_execution(self._control, after, lease, why=f"watch {step.subject}: {report.what}")
            self._passing("answered watch")

    def _watch_job(self, execution: Execution, step: Step, now_ns: int) -> Report | None:
        waited_s = (now_ns - (step.began_ns or now_ns)) / NS_PER_S
        if execution.action in IN_JOB_ACTS and isinstance(self._controller, InJob):
            return check_effect(execution.job, self._controller.effect(execution.job, execution.decision), waited_s)
        if execution.new_job is None:
            return self._check_incident(execution, waited_s)
        late = Report("refused", f"{execution.new_job} does not run after {waited_s:.0f} s")
        too_late = late if waited_s > _WATCH_S else None
        try:
            job = self._controller.job(execution.new_job)
        except (ControllerDown, BadInput):
            return too_late
        if job is None:  # forgotten, or this controller sees no jobs
            return self._check_incident(execution, waited_s=0) or too_late
        if job.state == "running":
            return Report("done", f"{job.id} is running on {', '.join(job.nodes) or 'its nodes'}")
        if job.state == "waiting":
            return too_late
        return Report("refused", f"{job.id} has {job.state} again", is_job_failed=job.state == "failed")

    def _check_incident(self, execution: Execution, waited_s: float) -> Report | None:
        if get_incident(self._control, execution.incident).state == "closed":
            return Report("done", "the incident is over")
        late = Report("refused", f"the incident is still open after {waited_s:.0f} s")
        return late if waited_s > _SETTLE_S else None

    def undo_ordered(self, lease: Lease, now_ns: int) -> None:
        """Turn round what persons have ordered to be undone, however long ago it was done."""
        for order in list_orders(self._control, since_ns=now_ns - _ORDERS_NS):
            if order.kind == "undo" and (run := find_execution(self._control, order.decision)) is not None:
                self.undo(run, f"{order.who}: {order.why}".rstrip(": "), lease, now_ns)


def check_effect(job: str, effect: Effect | None, waited_s: float) -> Report | None:
    """Return what a job has measured since it goes on without a part of it; None: that is still open."""
    if effect is None:
        late = Report("refused", f"{job} has settled no step in {waited_s:.0f} s")
        return late if waited_s > _WATCH_S else None
    if effect.speed_after is None and waited_s <= _SETTLE_S:
        return None
    speed = "" if effect.speed_after is None else f", and {effect.speed_after:.0%} of the speed before"
    return Report(
        "done", f"{job} goes on with step {effect.step}: {effect.standstill_s:.1f} s without progress{speed}"
    )


def _isolated(decision: Decision, step: Step, report: Report, execution: Execution, now_ns: int) -> Isolated:
    """Return a node as an act has left it, of which nothing else is known."""
    part, until_ns = next(part for part in decision.isolate if part.node == step.subject), None
    if step.act == "isolate" and part.until_ns is not None:
        # It rests for as long as was decided, counted from now on.
        until_ns = now_ns + max(part.until_ns - (decision.weighed_ns or decision.created_ns), 0)
    since_ns = next(
        (its.began_ns for its in execution.steps if its.act == "isolate" and its.subject == step.subject), None
    )
    return Isolated(
        node=step.subject,
        component=part.component,
        decision=decision.id,
        job=decision.job,
        reason=part.reason,
        state="isolated" if step.act == "isolate" else "returned",
        since_ns=since_ns or now_ns,
        changed_ns=now_ns,
        until_ns=until_ns,
        message=report.what,
    )
