"""What a decision is carried out by: steps in an order in which a crash or a failure leaves nothing half done.

Nodes are isolated before a job is restarted, so that the new attempt cannot land on them, and given back when the
restart did not come about. What fails is tried again after a while, and what was said each time is kept. All of this
is pure; execute.py asks the controller.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from os.path import dirname

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Decision
from lockstep.execution import UNFINISHED, Act, Execution, Failure, Order, Step
from planner.checkpoints.convert import find_conversion
from planner.controllers.protocol import Report, Restart

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
    "recycle": ("recycle", "watch"),
    "drop_replica": ("drop_replica", "watch"),
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
    return next(iter(_list_open(execution)), None)


def _list_open(execution: Execution) -> list[int]:
    return [index for index, step in enumerate(execution.steps) if step.state not in ("done", "failed")]


def due_step(execution: Execution, now_ns: int) -> int | None:
    """Return the place of the step whose time has come; None: all that is open waits after a failure.

    On the way back nothing depends on the step before it, so that one that fails does not hold up the others.
    """
    indices = _list_open(execution)
    candidates = indices[:1] if execution.state == "executing" else indices
    return next((index for index in candidates if (execution.steps[index].not_before_ns or 0) <= now_ns), None)


def mark_begun(execution: Execution, index: int, now_ns: int) -> Execution:
    """Return the execution with one step begun, in writing before it is asked for."""
    step = execution.steps[index]
    # Without an answer to this try nobody knows what has come of it, whatever was said of the one before.
    began = {"state": "begun", "tries": step.tries + 1, "began_ns": step.began_ns or now_ns, "message": ""}
    return _with(execution, index, step.model_copy(update=began))


def mark_progress(execution: Execution, index: int, message: str) -> Execution:
    """Return the execution with how far a step has come."""
    return _with(execution, index, execution.steps[index].model_copy(update={"message": message}))


def mark_answered(execution: Execution, index: int, report: Report, now_ns: int) -> Execution:
    """Return the execution after the controller has answered; a refusal, or the last failure, turns it round."""
    step = execution.steps[index]
    is_rolling_back = execution.state != "executing"
    is_half_done = step.is_half_done or report.is_half_done
    # A release is tried for ever, and so is a restart that has stopped its job: given up, the job would be lost.
    if report.outcome == "failed" and (is_rolling_back or is_half_done or step.tries < MOST_TRIES):
        return _put_off(execution, index, report, now_ns)
    answered = {"state": "done" if report.is_good else "failed", "ended_ns": now_ns, "message": report.what}
    failures = step.failures if report.is_good else _add_failure(step, report, now_ns)
    over = _with(execution, index, step.model_copy(update=answered | {"failures": failures}))
    if not report.is_good and not is_rolling_back:
        return give_up(over, report.what, now_ns)
    named = over.model_copy(update={"new_job": report.job}) if report.job else over
    return named if next_step(named) is not None else end(named, now_ns)


def _put_off(execution: Execution, index: int, report: Report, now_ns: int) -> Execution:
    """Return the execution with a step that is tried again later; releases that failed too often are set aside."""
    step = execution.steps[index]
    longest_s = _LONGEST_RELEASE_WAIT_S if step.act == "release" else _LONGEST_WAIT_S
    wait_s = min(_FIRST_WAIT_S * 2 ** min(step.tries - 1, 10), longest_s)
    is_stuck = _is_stuck(step)
    message = f"release failed {step.tries} times, a person must look: {report.what}" if is_stuck else report.what
    later = {
        "message": message,
        "is_half_done": step.is_half_done or report.is_half_done,
        "not_before_ns": now_ns + int(wait_s * NS_PER_S),
        "failures": _add_failure(step, report, now_ns),
    }
    put_off = _with(execution, index, step.model_copy(update=later))
    if not all(_is_stuck(put_off.steps[open_one]) for open_one in _list_open(put_off)):
        return put_off
    return put_off.model_copy(update={"state": "release_failed", "ended_ns": execution.ended_ns or now_ns})


def _is_stuck(step: Step) -> bool:
    return step.act == "release" and step.tries >= MOST_TRIES


def _add_failure(step: Step, report: Report, now_ns: int) -> tuple[Failure, ...]:
    return (*step.failures, Failure(ts_ns=now_ns, message=report.what))[-_FAILURES_KEPT:]


def mark_unloadable(execution: Execution, decision: Decision) -> Execution:
    """Return the execution with the checkpoints that its job, which failed, was started from."""
    wanted = find_conversion(decision)
    loaded = (decision.resume or {}).get("checkpoint")
    names = (loaded, wanted.source if wanted else None)
    return execution.model_copy(update={"unloadable": tuple(name for name in names if name)})


def find_unloadable(runs: Sequence[Execution]) -> dict[str, tuple[int, str]]:
    """Return checkpoints from which a restarted job failed: until when that was seen, and a sentence.

    Where it failed from two of its checkpoints they are not the cause, and older ones would only cost more work.
    """
    tried = Counter(dirname(names[0]) for names in {run.unloadable for run in runs if run.unloadable})
    return {
        path: (
            run.ended_ns or run.began_ns,
            f"{run.new_job} was started from it and failed ({run.decision})",
        )
        for run in reversed(runs)  # the newest comes first
        for path in run.unloadable
        if tried[dirname(path)] == 1
    }


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


def restart_order(decision: Decision, exclude: Sequence[str]) -> Restart:
    """Return what is asked of the controller, with all that the new attempt must know."""
    target, resume = decision.target or {}, decision.resume or {}
    environment = {"LOCKSTEP_ACTION": decision.action} | ({"LOCKSTEP_TARGET": json.dumps(target)} if target else {})
    if form := "universal" if resume.get("convert") else resume.get("format"):
        environment["LOCKSTEP_RESUME_FORMAT"] = form  # a universal one is loaded with another setting of DeepSpeed
    return Restart(
        mark=decision.id,
        job=decision.job,
        exclude=tuple(sorted({*exclude, *(part.node for part in decision.isolate if part.node)})),
        nnodes=target.get("nnodes"),
        checkpoint=resume.get("checkpoint"),
        environment=environment,
    )


def _turned(execution: Execution, ends_as: str, why: str, now_ns: int) -> Execution:
    """Return the execution with releases instead of what was still to be done."""
    done = [step for step in execution.steps if step.state != "waiting" and step.act != "release"]
    # All that were asked for, since an answer may be wrong or lost.
    isolated = [step.subject for step in done if step.act == "isolate"]
    # One that may have stopped its job, which nobody knows without an answer, is ended all the same: nothing is lost.
    asked = [step for step in done if step.act == "restart" and step.state == "begun"]
    owed = [step for step in asked if step.is_half_done or not step.message]
    others = [step for step in done if step not in owed]
    kept = [step.model_copy(update={"state": "done"}) if step.state == "begun" else step for step in others]
    releases = [Step(act="release", subject=node) for node in reversed(isolated)]
    steps = (*kept, *releases, *owed)
    changed = {"state": "undoing", "ends_as": ends_as, "reason": why, "steps": steps, "ended_ns": None}
    turned = execution.model_copy(update=changed)
    return turned if next_step(turned) is not None else end(turned, now_ns)


def _with(execution: Execution, index: int, step: Step) -> Execution:
    steps = (*execution.steps[:index], step, *execution.steps[index + 1 :])
    return execution.model_copy(update={"steps": steps})


_FIRST_SEEN_S = 600.0  # an attempt that sends nothing for longer has no telemetry, or does not run


def find_approval(decision: Decision, orders: Sequence[Order]) -> str | None:
    """Return who lets a decision be carried out: the last person who said so, else the policy; None: nobody.

    A person's no stands against the policy, and an undo against everything.
    """
    if any(order.kind == "undo" for order in orders):
        return None
    if orders:
        return orders[-1].who if orders[-1].kind == "approve" else None
    return "policy" if decision.mode == "execute" and decision.held_because is None else None


def is_busy(job: str, runs: Sequence[Execution], now_ns: int, settle_s: float) -> bool:
    """Return whether something is being done for a job, or was just now, so that what was seen may be over."""
    floor_ns = now_ns - int(settle_s * NS_PER_S)
    return any(run.state in UNFINISHED or (run.ended_ns or 0) > floor_ns for run in runs if run.job == job)


def is_outdated(decision: Decision, runs: Sequence[Execution]) -> bool:
    """Return whether something was done to the job since: the job that the decision is about is another one now."""
    return any(run.job == decision.job and (run.ended_ns or run.began_ns) >= decision.created_ns for run in runs)


def count_restarts(runs: Sequence[Execution], since_ns: int) -> int:
    """Return how many jobs we have started again since then, or are about to."""
    return sum(any(_is_counted(step, run, since_ns) for step in run.steps if step.act == "restart") for run in runs)


def count_promised(runs: Sequence[Execution], seen: Collection[str], now_ns: int) -> int:
    """Return how many idle nodes are taken by jobs that we start again with one and that were not seen yet."""
    floor_ns = now_ns - int(_FIRST_SEEN_S * NS_PER_S)
    taking = [run for run in runs if run.action == "replace" and run.ends_as == "done" and run.state != "failed"]
    return sum(run.began_ns > floor_ns and (run.new_job or "") not in seen for run in taking)


def _is_counted(step: Step, run: Execution, since_ns: int) -> bool:
    if step.state == "done":
        return (step.ended_ns or 0) >= since_ns
    return step.state != "failed" and run.state in UNFINISHED


def keep_same(
    made: Sequence[Decision], known: Callable[[str], Decision | None], runs: Sequence[Execution]
) -> list[Decision]:
    """Return decisions, linked anew, under the ids of those of their jobs before while the answer is the same.

    So a person's word on the one before holds.
    """
    kept = [_keep_same(each, known(each.job), runs) for each in made]
    ids = {new.id: old.id for new, old in zip(made, kept, strict=True)}
    return [each.model_copy(update={"after": tuple(ids[name] for name in each.after)}) for each in kept]


def _keep_same(made: Decision, known: Decision | None, runs: Sequence[Execution]) -> Decision:
    if known is None or _answer_of(known) != _answer_of(made) or is_outdated(known, runs):
        return made
    return made.model_copy(update={"id": known.id, "created_ns": known.created_ns})


def _answer_of(decision: Decision) -> tuple[object, ...]:
    """Return what must be the same for a decision to be the same answer."""
    nodes = tuple(part.node for part in decision.isolate)
    count = (decision.target or {}).get("nnodes")
    return decision.action, nodes, decision.severity, decision.part_of, count, decision.answered_by


def own_runs(component: str, job: str, runs: Sequence[Execution]) -> list[Execution]:
    """Return what was tried on a part; a rank's number says nothing about ranks of other jobs."""
    names = names_of(job, runs) if component.startswith("rank:") else ()
    return [run for run in runs if not names or run.job in names]


def names_of(job: str, runs: Sequence[Execution]) -> tuple[str, ...]:
    """Return all names of a job, the one it has now first and the one it was first started under last."""
    before = {run.new_job: run.job for run in runs if run.new_job}
    names = [job]
    while (older := before.get(names[-1])) is not None and older not in names:
        names.append(older)
    return tuple(names)


def newest_name(job: str, runs: Sequence[Execution]) -> str:
    """Return the name that a job has now."""
    after = {run.job: run.new_job for run in reversed(runs) if run.new_job}  # the newest run comes first
    seen = {job}
    while (newer := after.get(job)) is not None and newer not in seen:
        seen.add(job := newer)
    return job


def has_moved_on(job: str, runs: Sequence[Execution]) -> bool:
    """Return whether we have started a job again under another name; its incidents may be open for a while."""
    return any(run.job == job and run.new_job not in (None, job) for run in runs)
