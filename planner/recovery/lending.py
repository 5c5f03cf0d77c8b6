"""Where the job that was hit gets on best with a node of another: what the lender and the borrower are to do.

A job that has an answer of its own which is carried out by itself does not wait for others. Else the plan over all
jobs is proposed: one decision for each job that gives, and one for the job that was hit, which comes after them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lockstep.decision import Decision
from planner.recovery.allocation.planning import Allocation
from planner.recovery.changes import Cause, Part, decide_parts
from planner.recovery.decide import Policy
from planner.recovery.facts import JobFacts, Resume
from planner.recovery.limits import Surroundings
from planner.recovery.situation import Situation


@dataclass(frozen=True, slots=True)
class Lenders:
    """The other jobs, and what each could start from on so many nodes."""

    jobs: Sequence[JobFacts]
    resume_on: Callable[[JobFacts, int], Resume | None]


def borrow(
    own: Decision,
    situation: Situation,
    plan: Allocation,
    lenders: Lenders,
    decide_again: Callable[[Situation], Decision],
    around: Surroundings,
    policy: Policy,
) -> list[Decision]:
    """Return the decisions of lenders and then of the job that was hit; only its own where nobody should lend."""
    parts = _list_givers(own, situation, plan, lenders)
    if not parts or (own.mode == "execute" and own.held_because is None and own.action != "none"):
        return [own]
    lent = parts[0].plan.placement.given_up[0]
    helped = decide_again(replace(situation, cluster=replace(situation.cluster, spares=(lent,))))
    if helped.action != "replace" or own.action == "replace":
        return [own]
    hit = next(each for each in plan.jobs if each.job == situation.job.job)
    lost = hit.waf_before * (1 - situation.speed_now)
    cause = Cause(None, plan, situation.durations.start_s, situation.gpu_hour_price, lost)
    givers = decide_parts(parts, cause, around, policy, own.generation, own.created_ns)
    link = {
        "mode": "propose" if helped.mode == "execute" else helped.mode,
        "part_of": givers[0].part_of,
        "after": tuple(each.id for each in givers),
        # A lender that waits for its checkpoint is decided about again when that is due, and both together.
        "expires_ns": min(helped.expires_ns, *(each.expires_ns for each in givers)),
        "reason": f"{helped.reason}; {lent} is lent by {parts[0].job.job}: {plan.reason}",
    }
    return [*givers, helped.model_copy(update=link)]


def _list_givers(own: Decision, situation: Situation, plan: Allocation, lenders: Lenders) -> list[Part]:
    """Return the healthy jobs that give nodes in a plan; none where one of them cannot start on fewer."""
    jobs, parts = {job.job: job for job in lenders.jobs}, list[Part]()
    for each in plan.jobs:
        if each.job == situation.job.job or each.after >= each.before or not each.placement.given_up:
            continue
        resume = lenders.resume_on(jobs[each.job], each.after)
        if resume is None:
            return []
        parts.append(Part(each, jobs[each.job], resume, own.incident))
    return parts
