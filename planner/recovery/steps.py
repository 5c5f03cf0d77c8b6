"""What a decision is carried out by: steps in an order in which a crash or a failure leaves nothing half done.

Nodes are isolated before a job is restarted, so that the new attempt cannot land on them, and given back when the
restart did not come about. All of this is pure; executing.py asks the controller.
"""

import json
from collections.abc import Collection, Sequence

from lockstep.decision import Action, Decision
from lockstep.execution import Act, Execution, Step
from planner.controllers.protocol import Report, Restart

MOST_TRIES = 3  # of one act; a controller that fails three times in a row needs a person

_AFTER_ISOLATION: dict[Action, tuple[Act, ...]] = {
    "reroute": ("watch",),  # the path planner does it by itself
    "reattempt": ("reattempt", "watch"),
    "restart_process": ("restart", "watch"),
    "recycle": ("restart", "watch"),
    "drop_replica": ("restart", "watch"),
    "reconfigure": ("restart", "watch"),
    "replace": ("restart", "watch"),
}


def begin(
    decision: Decision, component: str, approved_by: str, generation: int, now_ns: int, out: Collection[str] = ()
) -> Execution:
    """Return a decision about a part that is to be carried out, with nothing done yet; `out` are isolated already."""
    nodes = [part.node for part in decision.isolate if part.node is not None and part.node not in out]
    acts = _AFTER_ISOLATION.get(decision.action, ())
    steps = [Step(act="isolate", subject=node) for node in nodes] + [
        Step(act=act, subject=decision.job) for act in acts
    ]
    return Execution(
        decision=decision.id,
        incident=decision.incident,
        job=decision.job,
        action=decision.action,
        component=component,
        state="executing",
        generation=generation,
        approved_by=approved_by,
        began_ns=now_ns,
        steps=tuple(steps),
    )


def next_step(execution: Execution) -> int | None:
    """Return the place of the step that is to be done next; None: all are done."""
    return next((place for place, step in enumerate(execution.steps) if step.state not in ("done", "failed")), None)


def mark_begun(execution: Execution, place: int, now_ns: int) -> Execution:
    """Return the execution with one step begun, in writing before it is asked for."""
    step = execution.steps[place]
    began = {"state": "begun", "tries": step.tries + 1, "began_ns": step.began_ns or now_ns}
    return _with(execution, place, step.model_copy(update=began))


def mark_answered(execution: Execution, place: int, report: Report, now_ns: int) -> Execution:
    """Return the execution after the controller has answered; a refusal, or a third failure, turns it round."""
    step = execution.steps[place]
    is_release = execution.state == "undoing"
    is_half_done = step.is_half_done or report.is_half_done
    # A release is tried for ever, and so is a restart that has stopped its job: given up, the job would be lost.
    if report.outcome == "failed" and (is_release or is_half_done or step.tries < MOST_TRIES):
        return _with(execution, place, step.model_copy(update={"said": report.what, "is_half_done": is_half_done}))
    state = "done" if report.is_good else "failed"
    over = _with(execution, place, step.model_copy(update={"state": state, "ended_ns": now_ns, "said": report.what}))
    if not report.is_good and not is_release:
        return give_up(over, report.what, now_ns)
    named = over.model_copy(update={"new_job": report.job}) if report.job else over
    return named if next_step(named) is not None else end(named, now_ns)


def give_up(execution: Execution, why: str, now_ns: int) -> Execution:
    """Return an execution that has failed: what it isolated is released, unless the job has left it already."""
    if any(step.act == "restart" and step.state == "done" for step in execution.steps):
        return end(execution.model_copy(update={"ends_as": "failed", "reason": why}), now_ns)
    return _turned(execution, "failed", why, now_ns)


def undo(execution: Execution, why: str, now_ns: int) -> Execution:
    """Return an execution that a person has undone: what it isolated is released, and nothing else is done."""
    return execution if execution.ends_as == "undone" else _turned(execution, "undone", why, now_ns)


def end(execution: Execution, now_ns: int) -> Execution:
    """Return a finished execution."""
    return execution.model_copy(update={"state": execution.ends_as, "ended_ns": now_ns})


def isolated_by(execution: Execution) -> list[str]:
    """Return the nodes that it may have isolated: all that were asked for, since an answer may be wrong or lost."""
    return [step.subject for step in execution.steps if step.act == "isolate" and step.state != "waiting"]


def restart_order(decision: Decision, exclude: Sequence[str]) -> Restart:
    """Return what is asked of the controller, with all that the new attempt must know."""
    target, resume = decision.target or {}, decision.resume or {}
    told = {"LOCKSTEP_ACTION": decision.action} | ({"LOCKSTEP_TARGET": json.dumps(target)} if target else {})
    return Restart(
        mark=decision.id,
        job=decision.job,
        exclude=tuple(sorted({*exclude, *(part.node for part in decision.isolate if part.node)})),
        nnodes=target.get("nnodes"),
        checkpoint=resume.get("checkpoint"),
        environment=told,
    )


def _turned(execution: Execution, ends_as: str, why: str, now_ns: int) -> Execution:
    """Return the execution with releases instead of what was still to be done."""
    isolated = isolated_by(execution)
    done = [step for step in execution.steps if step.state != "waiting" and step.act != "release"]
    owed = [step for step in done if _may_have_stopped(step)]  # ended all the same, or the job would be lost
    others = [step for step in done if step not in owed]
    kept = [step.model_copy(update={"state": "done"}) if step.state == "begun" else step for step in others]
    releases = [Step(act="release", subject=node) for node in reversed(isolated)]
    steps = (*kept, *releases, *owed)
    changed = {"state": "undoing", "ends_as": ends_as, "reason": why, "steps": steps, "ended_ns": None}
    turned = execution.model_copy(update=changed)
    return turned if next_step(turned) is not None else end(turned, now_ns)


def _may_have_stopped(step: Step) -> bool:
    """Return whether a job may be stopped and not yet started again; without an answer, nobody knows."""
    return step.act == "restart" and step.state == "begun" and (step.is_half_done or not step.said)


def _with(execution: Execution, place: int, step: Step) -> Execution:
    steps = (*execution.steps[:place], step, *execution.steps[place + 1 :])
    return execution.model_copy(update={"steps": steps})
