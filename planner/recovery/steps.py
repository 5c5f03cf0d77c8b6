"""What a decision is carried out by: steps in an order in which a crash or a failure leaves nothing half done.

Nodes are isolated before a job is restarted, so that the new attempt cannot land on them, and given back when the
restart did not come about. What fails is tried again after a while, and what was said each time is kept. All of this
is pure; executing.py asks the controller.
"""

import json
from collections.abc import Collection, Sequence

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Decision
from lockstep.execution import Act, Execution, Failure, Step
from planner.controllers.protocol import Report, Restart
from planner.recovery.checkpoints.converting import find_conversion

# Of one act, with waits of 5, 10, 20, 40 and 60 s between them: longer than the 120 s after which Slurm's second
# controller takes over from the first (SlurmctldTimeout). A controller that fails for longer needs a person.
MOST_TRIES = 6
_FIRST_WAIT_S = 5.0
_LONGEST_WAIT_S = 60.0  # a job that was stopped stands still until its restart comes about
_LONGEST_RELEASE_WAIT_S = 600.0  # nobody stands still for a node that is not given back
_FAILURES_KEPT = 10

_AFTER_ISOLATION: dict[Action, tuple[Act, ...]] = {
    "reroute": ("watch",),  # the path planner does it by itself
    "reattempt": ("reattempt", "watch"),
    "restart_process": ("restart", "watch"),
    "recycle": ("restart", "watch"),
    "drop_replica": ("restart", "watch"),
    "reconfigure": ("restart", "watch"),
    "replace": ("restart", "watch"),
    "grow": ("restart", "watch"),
}


def begin(
    decision: Decision, component: str, approved_by: str, generation: int, now_ns: int, out: Collection[str] = ()
) -> Execution:
    """Return a decision about a part that is to be carried out, with nothing done yet; `out` are isolated already."""
    nodes = [part.node for part in decision.isolate if part.node is not None and part.node not in out]
    acts = _AFTER_ISOLATION.get(decision.action, ())
    wanted = find_conversion(decision) if "restart" in acts else None
    steps = [Step(act="isolate", subject=node) for node in nodes]
    steps += [Step(act="convert", subject=wanted.destination)] if wanted else []
    steps += [Step(act=act, subject=decision.job) for act in acts]
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


def due_step(execution: Execution, now_ns: int) -> int | None:
    """Return the place of the step whose time has come; None: all that is open waits after a failure.

    On the way back nothing depends on the step before it, so that one that fails does not hold up the others.
    """
    places = [place for place, step in enumerate(execution.steps) if step.state not in ("done", "failed")]
    may_overtake = execution.state != "executing"
    candidates = places if may_overtake else places[:1]
    return next((place for place in candidates if (execution.steps[place].not_before_ns or 0) <= now_ns), None)


def mark_begun(execution: Execution, place: int, now_ns: int) -> Execution:
    """Return the execution with one step begun, in writing before it is asked for."""
    step = execution.steps[place]
    # Without an answer to this try nobody knows what has come of it, whatever was said of the one before.
    began = {"state": "begun", "tries": step.tries + 1, "began_ns": step.began_ns or now_ns, "said": ""}
    return _with(execution, place, step.model_copy(update=began))


def mark_progress(execution: Execution, place: int, said: str) -> Execution:
    """Return the execution with how far a step has come."""
    return _with(execution, place, execution.steps[place].model_copy(update={"said": said}))


def mark_answered(execution: Execution, place: int, report: Report, now_ns: int) -> Execution:
    """Return the execution after the controller has answered; a refusal, or the last failure, turns it round."""
    step = execution.steps[place]
    is_way_back = execution.state != "executing"
    is_half_done = step.is_half_done or report.is_half_done
    # A release is tried for ever, and so is a restart that has stopped its job: given up, the job would be lost.
    if report.outcome == "failed" and (is_way_back or is_half_done or step.tries < MOST_TRIES):
        return _put_off(execution, place, report, now_ns)
    answered = {"state": "done" if report.is_good else "failed", "ended_ns": now_ns, "said": report.what}
    failures = step.failures if report.is_good else _add_failure(step, report, now_ns)
    over = _with(execution, place, step.model_copy(update=answered | {"failures": failures}))
    if not report.is_good and not is_way_back:
        return give_up(over, report.what, now_ns)
    named = over.model_copy(update={"new_job": report.job}) if report.job else over
    return named if next_step(named) is not None else end(named, now_ns)


def _put_off(execution: Execution, place: int, report: Report, now_ns: int) -> Execution:
    """Return the execution with a step that is tried again later; releases that failed too often are set aside."""
    step = execution.steps[place]
    longest_s = _LONGEST_RELEASE_WAIT_S if step.act == "release" else _LONGEST_WAIT_S
    wait_s = min(_FIRST_WAIT_S * 2 ** min(step.tries - 1, 10), longest_s)
    is_stuck = _is_stuck(step)
    said = f"release failed {step.tries} times, a person must look: {report.what}" if is_stuck else report.what
    later = {
        "said": said,
        "is_half_done": step.is_half_done or report.is_half_done,
        "not_before_ns": now_ns + int(wait_s * NS_PER_S),
        "failures": _add_failure(step, report, now_ns),
    }
    put_off = _with(execution, place, step.model_copy(update=later))
    if not all(map(_is_stuck, (step for step in put_off.steps if step.state not in ("done", "failed")))):
        return put_off
    return put_off.model_copy(update={"state": "release_failed", "ended_ns": execution.ended_ns or now_ns})


def _is_stuck(step: Step) -> bool:
    return step.act == "release" and step.tries >= MOST_TRIES


def _add_failure(step: Step, report: Report, now_ns: int) -> tuple[Failure, ...]:
    return (*step.failures, Failure(ts_ns=now_ns, said=report.what))[-_FAILURES_KEPT:]


def give_up(execution: Execution, why: str, now_ns: int) -> Execution:
    """Return an execution that has failed: what it isolated is released, unless the job has left it already."""
    if any(step.act == "restart" and step.state == "done" for step in execution.steps):
        return end(execution.model_copy(update={"ends_as": "failed", "reason": why}), now_ns)
    return _turned(execution, "failed", why, now_ns)


def undo(execution: Execution, why: str, now_ns: int) -> Execution:
    """Return an execution that a person has undone: what it isolated is released, and nothing else is done."""
    return execution if execution.ends_as == "undone" else _turned(execution, "undone", why, now_ns)


def end(execution: Execution, now_ns: int) -> Execution:
    """Return a finished execution; one whose releases were set aside has ended then, as far as its job goes."""
    ended_ns = execution.ended_ns if execution.state == "release_failed" else now_ns
    return execution.model_copy(update={"state": execution.ends_as, "ended_ns": ended_ns})


def isolated_by(execution: Execution) -> list[str]:
    """Return the nodes that it may have isolated: all that were asked for, since an answer may be wrong or lost."""
    return [step.subject for step in execution.steps if step.act == "isolate" and step.state != "waiting"]


def restart_order(decision: Decision, exclude: Sequence[str]) -> Restart:
    """Return what is asked of the controller, with all that the new attempt must know."""
    target, resume = decision.target or {}, decision.resume or {}
    told = {"LOCKSTEP_ACTION": decision.action} | ({"LOCKSTEP_TARGET": json.dumps(target)} if target else {})
    if form := "universal" if resume.get("convert") else resume.get("format"):
        told["LOCKSTEP_RESUME_FORMAT"] = form  # a universal one is loaded with another setting of DeepSpeed
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
