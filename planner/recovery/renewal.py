"""Whether a decision still holds: who lets it be carried out, what was done to its job, whether it is the same."""

from collections.abc import Collection, Sequence

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.execution import UNFINISHED, Execution, Order, Step

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


def keep_same(known: Decision | None, made: Decision, runs: Sequence[Execution]) -> Decision:
    """Return the decision under the id of the one before while the answer is the same: a word on it holds."""
    if known is None or _answer_of(known) != _answer_of(made) or is_outdated(known, runs):
        return made
    return made.model_copy(update={"id": known.id, "created_ns": known.created_ns})


def _answer_of(decision: Decision) -> tuple[object, ...]:
    """Return what must be the same for a decision to be the same answer."""
    nodes = tuple(part.node for part in decision.isolate)
    count = (decision.target or {}).get("nnodes")
    return decision.action, nodes, decision.severity, decision.part_of, count
