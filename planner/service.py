"""The shell around the recovery planner: open incidents in, decisions out, and what is approved is carried out.

One planner at a time, under a lease. A round reads what persons ordered, decides what is undecided, begins what may
begin, looks at all jobs (rebalance.py), takes each execution one act further, and looks after nodes on their way
back.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.errors import LeaseLost, LockstepError
from lockstep.execution import Execution, Isolated
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import (
    find_execution,
    list_decisions,
    list_executions,
    list_isolated,
    list_orders,
    save_decisions,
)
from lockstep.state.incidents import open_incidents
from lockstep.state.leases import Lease
from lockstep.verdict import Incident
from planner.allocation.allocate import WarmAnswers
from planner.context import Context, JobFacts, Resume
from planner.decide import PlannerOptions, decide, leave_to
from planner.escalation import find_dead, find_level, misses_dead, severity_of
from planner.execute import Executor
from planner.limits import Constraints
from planner.multi_job import Lenders, borrow, describe, share_nodes
from planner.node_return import Returner, forget_repaired
from planner.rebalance import RECENT, Rebalancer, begin_execution, list_undone
from planner.snapshot import Snapshot
from planner.steps import (
    count_promised,
    count_restarts,
    find_approval,
    has_moved_on,
    is_busy,
    is_outdated,
    keep_same,
    own_runs,
)


class Reads(Protocol):
    """Knows the job of an incident and what is around it."""

    def read(self, incident: Incident, now_ns: int) -> Snapshot: ...

    def resume_on(self, job: JobFacts, nodes: int, now_ns: int) -> Resume | None: ...


@contextmanager
def _keeping(troubles: list[LockstepError]) -> Iterator[None]:
    """Keep what goes wrong, so that none stops another; a lease that is lost stops all."""
    try:
        yield
    except LeaseLost:
        raise
    except LockstepError as error:
        troubles.append(error)


class PlannerService:
    """Gives every open incident a decision that is never older than its time, and carries out what may be."""

    def __init__(
        self,
        control: ControlDatabase,
        reader: Reads,
        options: PlannerOptions | None = None,
        executor: Executor | None = None,
        returner: Returner | None = None,
        rebalancer: Rebalancer | None = None,
    ) -> None:
        self._control, self._reader = control, reader
        self._options = options or PlannerOptions()
        self._executor, self._returner, self._rebalancer = executor, returner, rebalancer

    def run_once(self, lease: Lease, now_ns: int) -> int:
        """Do one round under the lease; return how many decisions were made."""
        if self._executor:
            self._executor.undo_ordered(lease, now_ns)
        incidents, troubles, made = open_incidents(self._control), list[LockstepError](), 0
        for incident in incidents:
            with _keeping(troubles):
                made += self._attend(incident, incidents, lease, now_ns)
        if self._rebalancer:
            with _keeping(troubles):
                made += self._rebalancer.evaluate(lease, now_ns)
                if self._executor:
                    self._rebalancer.begin_ready(lease, now_ns)
        if self._executor:
            self._executor.run_once(lease, now_ns)
        if self._returner:
            self._returner.run_once(lease, now_ns)
        if troubles:
            raise troubles[0]  # the duty says it, after everything else had its turn
        return made

    def _attend(self, incident: Incident, incidents: Sequence[Incident], lease: Lease, now_ns: int) -> bool:
        """Decide and begin before the next incident is looked at, so that limits count both."""
        recent = list_executions(self._control, limit=RECENT)
        made = self._answer(incident, incidents, recent, lease, now_ns)
        if self._executor:
            self._begin_approved(incident, recent, lease, now_ns)
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
        known = self._newest_of(incident, incident.job)
        is_live = (
            known is not None
            and known.expires_ns > now_ns
            and known.answers(incident.verdict)
            and not (is_outdated(known, recent) or misses_dead(known, incident, incidents))
        )
        if is_live or is_busy(incident.job, recent, now_ns, self._options.settle_s):
            return False
        snapshot = self._see(incident, incidents, recent, now_ns)
        made = self._decide(incident, incidents, snapshot, recent, lease, now_ns)
        if made[-1].isolate and (leads := self._find_lead(incident, incidents, now_ns)) is not None:
            made = [leave_to(made[-1], leads)]
        kept = keep_same(made, lambda job: self._newest_of(incident, job), recent)
        save_decisions(self._control, kept, lease)
        return True

    def _see(
        self, incident: Incident, incidents: Sequence[Incident], recent: Sequence[Execution], now_ns: int
    ) -> Snapshot:
        """Return what is known, with the nodes that were left idle among the spares; jobs in trouble give nothing."""
        snapshot = self._reader.read(incident, now_ns)
        job = replace(snapshot.job, is_over=snapshot.job.is_over or has_moved_on(incident.job, recent))
        free = self._rebalancer.free.names if self._rebalancer else ()
        fresh = tuple(node for node in free if node not in (*job.nodes, *snapshot.cluster.spares))
        seen = {incident.job, *(other.job for other in snapshot.others)}
        # Who is about to start with a spare has it, though its first telemetry comes minutes later.
        spares = (*snapshot.cluster.spares, *fresh)[count_promised(recent, seen, now_ns) :]
        troubled = {each.job for each in incidents}
        others = [
            replace(other, throughput={})
            if other.job in troubled or is_busy(other.job, recent, now_ns, self._options.settle_s)
            else other
            for other in snapshot.others
            if not has_moved_on(other.job, recent)
        ]
        return replace(snapshot, job=job, others=others, cluster=replace(snapshot.cluster, spares=spares, free=free))

    def _decide(
        self,
        incident: Incident,
        incidents: Sequence[Incident],
        snapshot: Snapshot,
        recent: Sequence[Execution],
        lease: Lease,
        now_ns: int,
    ) -> list[Decision]:
        """Return the answer to an incident, with those of other jobs where they should lend it a node."""
        options, verdict = self._options, incident.verdict
        severity, why = severity_of(verdict, snapshot.events)
        tried = forget_repaired(own_runs(verdict.component, incident.job, recent), list_isolated(self._control))
        level = find_level(severity, why, verdict.component, tried, now_ns)
        context = Context(
            verdict,
            snapshot.job,
            snapshot.cluster,
            options.durations,
            options.settings.gpu_hour_price,
            seat=snapshot.seat if level.severity == 1 else None,
            also_dead=find_dead(incident, incidents, snapshot.job.nodes),
        )
        if len(context.nodes) > 1:
            left = len(snapshot.job.nodes) - len(context.nodes)
            fewer = self._reader.resume_on(snapshot.job, left, now_ns)
            context = replace(context, job=replace(snapshot.job, resume_smaller=fewer))
        constraints = replace(
            self._find_constraints(incident, incidents, snapshot, now_ns),
            is_raised=level.is_raised,
            restarts=count_restarts(recent, now_ns - 3600 * NS_PER_S),
        )

        def decide_in(given: Context) -> Decision:
            return decide(incident, given, level, constraints, options.settings, lease.generation, now_ns)

        made = decide_in(context)
        if not made.isolate and not (context.stands_still and made.action == "none"):
            return [made]
        warm = self._rebalancer.warm if self._rebalancer else WarmAnswers()
        if (plan := share_nodes(context, snapshot.others, warm, now_ns)) is None:
            return [made]
        parts = [made]
        if self._rebalancer is not None:  # who else would begin what several jobs must do one after the other?
            lenders = Lenders(snapshot.others, lambda job, nodes: self._reader.resume_on(job, nodes, now_ns))
            parts = borrow(made, context, plan, lenders, decide_in, constraints, options.settings)
        return [each.model_copy(update={"all_jobs": describe(plan)}) for each in parts]

    def _find_lead(self, incident: Incident, incidents: Sequence[Incident], now_ns: int) -> Decision | None:
        """Return the decision on another dead node of the job that takes this one out as well."""
        dead = {verdict.id for verdict in find_dead(incident, incidents, ())}
        for other in (each for each in incidents if each.verdict.id in dead):
            found = self._newest_of(other, other.job)
            if found and found.expires_ns > now_ns and incident.verdict.id in found.verdicts and found.isolate:
                return found
        return None

    def _find_constraints(
        self, incident: Incident, incidents: Sequence[Incident], snapshot: Snapshot, now_ns: int
    ) -> Constraints:
        return Constraints(
            isolated=[*list_isolated(self._control, now_ns - 3600 * NS_PER_S), *self._about_to_be_isolated(now_ns)],
            undone=list_undone(self._control, now_ns),
            others=[other for other in incidents if other.job == incident.job],
            nodes=snapshot.nodes,
            controller_trouble=snapshot.trouble,
        )

    def _about_to_be_isolated(self, now_ns: int) -> list[Isolated]:
        """Return the nodes of executions under way: they count before the controller has answered."""
        runs = [run for run in list_executions(self._control, limit=RECENT) if run.state == "executing"]
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
        decision = self._newest_of(incident, incident.job)
        if decision is None or decision.action == "none" or decision.part_of or decision.expires_ns <= now_ns:
            return
        if is_outdated(decision, recent) or is_busy(incident.job, recent, now_ns, self._options.settle_s):
            return
        who = find_approval(decision, list_orders(self._control, decision.id))
        if who is not None and find_execution(self._control, decision.id) is None:
            begin_execution(self._control, decision, incident.verdict.component, who, lease, now_ns)

    def _newest_of(self, incident: Incident, job: str) -> Decision | None:
        return next(iter(list_decisions(self._control, incident=incident.id, job=job, limit=1)), None)
