"""The shell around the recovery planner: open incidents in, decisions out, and what is approved is carried out.

One planner at a time, under a lease. A round reads what persons ordered, decides what is undecided, begins what may
begin, takes each execution one act further, and looks after nodes on their way back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from lockstep.clock import NS_PER_S
from lockstep.control.database import ControlDatabase
from lockstep.control.decisions import get_decision, list_decisions, save_decisions
from lockstep.control.executions import find_execution, list_executions, list_isolated, list_orders, save_execution
from lockstep.control.incidents import open_incidents
from lockstep.control.leases import Lease
from lockstep.decision import Decision
from lockstep.errors import LeaseLost, LockstepError
from lockstep.execution import UNFINISHED, Execution, Isolated, Order
from lockstep.incident import Incident
from planner.recovery.decide import Policy, decide
from planner.recovery.executing import Executor
from planner.recovery.facts import Durations
from planner.recovery.ladder import LadderOptions, find_standing
from planner.recovery.limits import OUT, Surroundings
from planner.recovery.reading import Sight
from planner.recovery.returning import Returner
from planner.recovery.sharing import share_nodes
from planner.recovery.steps import begin
from planner.recovery.taxonomy import severity_of
from planner.recovery.weighing import Situation

_RECENT = 200  # executions that the ladder and undo look back on


class Reads(Protocol):
    """Knows the job of an incident and what is around it."""

    def read(self, incident: Incident, now_ns: int, origin: str) -> Sight: ...


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """How this site decides."""

    policy: Policy = field(default_factory=Policy)
    durations: Durations = field(default_factory=Durations)
    ladder: LadderOptions = field(default_factory=LadderOptions)
    gpu_hour_price: float | None = None
    settle_s: float = 60.0  # after an execution has ended, before its job gets another decision


class PlannerService:
    """Gives every open incident a decision that is never older than its time, and carries out what may be."""

    def __init__(
        self,
        control: ControlDatabase,
        reader: Reads,
        options: PlannerOptions | None = None,
        executor: Executor | None = None,
        returner: Returner | None = None,
    ) -> None:
        self._control, self._reader = control, reader
        self._options = options or PlannerOptions()
        self._executor, self._returner = executor, returner

    def run_once(self, lease: Lease, now_ns: int) -> int:
        """Do one round under the lease; return how many decisions were made."""
        if self._executor:
            self._executor.undo_ordered(lease, now_ns)
        incidents, troubles = open_incidents(self._control), list[LockstepError]()
        made = sum(self._attend(incident, incidents, lease, now_ns, troubles) for incident in incidents)
        if self._executor:
            self._executor.run_once(lease, now_ns)
        if self._returner:
            self._returner.run_once(lease, now_ns)
        if troubles:
            raise troubles[0]  # the duty says it, after everything else had its turn
        return made

    def _attend(
        self,
        incident: Incident,
        incidents: Sequence[Incident],
        lease: Lease,
        now_ns: int,
        troubles: list[LockstepError],
    ) -> bool:
        """Decide and begin before the next incident is looked at, so that limits count both; none stops another."""
        recent = list_executions(self._control, limit=_RECENT)
        try:
            made = self._answer(incident, incidents, recent, lease, now_ns)
            if self._executor:
                self._begin_approved(incident, recent, lease, now_ns)
        except LeaseLost:
            raise
        except LockstepError as error:
            troubles.append(error)
            return False
        return made

    def _answer(
        self,
        incident: Incident,
        incidents: Sequence[Incident],
        recent: Sequence[Execution],
        lease: Lease,
        now_ns: int,
    ) -> bool:
        """Decide about an incident where that is due; return whether it was."""
        known = next(iter(list_decisions(self._control, incident=incident.id, limit=1)), None)
        is_live = known is not None and known.expires_ns > now_ns and not _is_outdated(known, recent)
        if is_live or self._is_being_answered(incident, recent, now_ns):
            return False
        sight = self._reader.read(incident, now_ns, _first_name(incident.job, recent))
        job = replace(sight.job, is_over=sight.job.is_over or _has_moved_on(incident.job, recent))
        situation = Situation(
            incident.verdict, job, sight.cluster, self._options.durations, self._options.gpu_hour_price
        )
        standing = find_standing(
            *severity_of(incident.verdict, sight.events),
            incident.verdict.component,
            recent,
            now_ns,
            self._options.ladder,
        )
        around = replace(
            self._look_around(incident, incidents, sight, now_ns),
            is_raised=standing.is_raised,
            restarts=_count_restarts(recent, now_ns - 3600 * NS_PER_S),
        )
        made = decide(incident, situation, standing, around, self._options.policy, lease.generation, now_ns)
        shared = made.model_copy(update={"all_jobs": share_nodes(situation, sight.others) if made.isolate else None})
        save_decisions(self._control, [_same_as(known, shared, recent)], lease)
        return True

    def _is_being_answered(self, incident: Incident, recent: Sequence[Execution], now_ns: int) -> bool:
        """Return whether something is being done for the job, or was just now, so that the incident may be over."""
        floor_ns = now_ns - int(self._options.settle_s * NS_PER_S)
        return any(
            run.state in UNFINISHED or (run.ended_ns or 0) > floor_ns for run in recent if run.job == incident.job
        )

    def _look_around(
        self, incident: Incident, incidents: Sequence[Incident], sight: Sight, now_ns: int
    ) -> Surroundings:
        orders = list_orders(self._control, since_ns=now_ns - int(self._options.policy.limits.undo_s * NS_PER_S))
        undone = {order.decision for order in orders if order.kind in ("undo", "reject")}
        return Surroundings(
            isolated=[*list_isolated(self._control, now_ns - 3600 * NS_PER_S), *self._about_to_be_isolated(now_ns)],
            undone=[get_decision(self._control, name) for name in sorted(undone)],
            others=[other for other in incidents if other.job == incident.job],
            nodes=sight.nodes,
            controller_trouble=sight.trouble,
        )

    def _about_to_be_isolated(self, now_ns: int) -> list[Isolated]:
        """Return the nodes of executions under way: they count before the controller has answered."""
        runs = [run for run in list_executions(self._control, limit=_RECENT) if run.state == "executing"]
        return [
            Isolated(
                node=node,
                component=run.component,
                decision=run.decision,
                job=run.job,
                reason="being isolated",
                state="isolated",
                since_ns=now_ns,
                changed_ns=now_ns,
            )
            for run in runs
            for node in {step.subject for step in run.steps if step.act == "isolate"}
        ]

    def _begin_approved(self, incident: Incident, recent: Sequence[Execution], lease: Lease, now_ns: int) -> None:
        """Begin to carry out what the policy or a person lets, one execution per job at a time."""
        decision = next(iter(list_decisions(self._control, incident=incident.id, limit=1)), None)
        if decision is None or decision.action == "none" or decision.expires_ns <= now_ns:
            return
        if _is_outdated(decision, recent) or self._is_being_answered(incident, recent, now_ns):
            return
        who = find_approval(decision, list_orders(self._control, decision.id))
        if who is not None and find_execution(self._control, decision.id) is None:
            out = {each.node for each in list_isolated(self._control) if each.state in OUT}
            run = begin(decision, incident.verdict.component, who, lease.generation, now_ns, out)
            save_execution(self._control, run, lease, why=f"begun by {who}: {decision.reason}")


def find_approval(decision: Decision, orders: Sequence[Order]) -> str | None:
    """Return who lets a decision be carried out: the last person who said so, else the policy; None: nobody.

    A person's no stands against the policy, and an undo against everything.
    """
    if any(order.kind == "undo" for order in orders):
        return None
    if orders:
        return orders[-1].who if orders[-1].kind == "approve" else None
    return "policy" if decision.mode == "execute" and decision.held_because is None else None


def _has_moved_on(job: str, recent: Sequence[Execution]) -> bool:
    """Return whether we have started a job again under another name; its incidents may be open for a while."""
    return any(run.job == job and run.new_job not in (None, job) for run in recent)


def _first_name(job: str, recent: Sequence[Execution]) -> str:
    """Return the name under which a job was started first: hints and checkpoints go by it."""
    before = {run.new_job: run.job for run in recent if run.new_job}
    seen = {job}
    while (older := before.get(job)) is not None and older not in seen:
        seen.add(job := older)
    return job


def _count_restarts(recent: Sequence[Execution], since_ns: int) -> int:
    """Return how many jobs we have started again since then."""
    return sum(
        any(step.act == "restart" and step.state == "done" and (step.ended_ns or 0) >= since_ns for step in run.steps)
        for run in recent
    )


def _is_outdated(decision: Decision, recent: Sequence[Execution]) -> bool:
    """Return whether something was done to the job since: the job that the decision is about is another one now."""
    return any(run.job == decision.job and (run.ended_ns or run.began_ns) >= decision.created_ns for run in recent)


def _same_as(known: Decision | None, made: Decision, recent: Sequence[Execution]) -> Decision:
    """Return the decision under the id of the one before while the answer is the same: a word on it holds."""
    if known is None or _answer_of(known) != _answer_of(made) or _is_outdated(known, recent):
        return made
    return made.model_copy(update={"id": known.id, "created_ns": known.created_ns})


def _answer_of(decision: Decision) -> tuple[object, ...]:
    """Return what must be the same for a decision to be the same answer."""
    nodes = tuple(part.node for part in decision.isolate)
    return decision.action, nodes, decision.severity
