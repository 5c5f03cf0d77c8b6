"""The shell around the plan over all jobs: looks at the cluster between faults, and gives back what lies idle.

A look is due when something has happened (triggers.py), when the planner has just begun, and when what was proposed
has expired. Between them the answers to every single next event are kept at hand (allocation/warm.py).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from lockstep.clock import NS_PER_S
from lockstep.control.database import ControlDatabase
from lockstep.control.decisions import get_decision, list_decisions, save_decisions
from lockstep.control.executions import find_execution, list_executions, list_isolated, list_orders, save_execution
from lockstep.control.incidents import get_incident, list_incidents, open_incidents
from lockstep.control.leases import Lease
from lockstep.decision import Decision
from lockstep.errors import BadInput
from lockstep.execution import UNFINISHED, Execution
from planner.options import PlannerOptions
from planner.recovery.allocation.events import Event
from planner.recovery.allocation.jobs import Cluster
from planner.recovery.allocation.planning import Allocation, JobPlan
from planner.recovery.allocation.warm import WarmAnswers
from planner.recovery.changes import Cause, Part, decide_parts
from planner.recovery.components import node_of
from planner.recovery.facts import ClusterFacts, JobFacts, Resume
from planner.recovery.free_nodes import FreeNodes
from planner.recovery.limits import OUT, SHRINKING, Surroundings
from planner.recovery.lineage import has_moved_on, names_of, newest_name
from planner.recovery.reading import Overview
from planner.recovery.renewal import count_promised, count_restarts, find_approval, is_busy, is_outdated, keep_same
from planner.recovery.sharing import build_cluster, can_move
from planner.recovery.steps import begin
from planner.recovery.triggers import Seen, find_triggers, say

_log = structlog.get_logger("rebalancing")
_RECENT = 200  # executions and decisions that are looked back on
_RENEW_LOOKS = 3  # after so many a plan that expired is a new one, to which nobody has said anything yet


class Surveys(Protocol):
    """Knows all jobs, and their checkpoints."""

    def survey(self, now_ns: int) -> Overview: ...

    def resume_on(self, job: JobFacts, nodes: int, now_ns: int) -> Resume | None: ...

    def is_over(self, job: str) -> bool: ...


class Rebalancer:
    """Shares nodes anew among jobs when something has changed, one decision for each job that it touches."""

    def __init__(self, control: ControlDatabase, reader: Surveys, options: PlannerOptions) -> None:
        self._control, self._reader, self._options = control, reader, options
        self.warm, self.free = WarmAnswers(), FreeNodes()
        self._seen: Seen | None = None
        self._cluster: Cluster | None = None
        self._looked_ns = self._due_ns = 0
        self._said = say([])

    def use(self, options: PlannerOptions) -> None:
        """Decide by these from the next look on."""
        self._options = options

    def look(self, lease: Lease, now_ns: int) -> int:
        """Look at all jobs where it is time to; return how many decisions were made."""
        if now_ns - self._looked_ns < self._options.look_s * NS_PER_S:
            return 0
        self._looked_ns = now_ns
        runs = list_executions(self._control, limit=_RECENT)
        view = self._survey(runs, now_ns)
        facts, events = self._compare(view, runs, now_ns)
        planned = build_cluster(view.jobs, facts, self._options.durations)
        before, self._cluster = self._cluster, planned
        made = 0
        if events or before is None or 0 < self._due_ns <= now_ns:
            self._said = say(events) if events else self._said
            self._due_ns = now_ns  # until it was planned: what happened is not forgotten because it must wait
            if view.trouble is None and not self._is_under_way(now_ns):
                made = self._plan(view, facts, (before, planned), events, runs, lease, now_ns)
        self.warm.keep(planned, now_ns)
        return made

    def begin_ready(self, lease: Lease, now_ns: int) -> None:
        """Begin what a person or the policy lets of plans, once all that must go before it is done."""
        runs = list_executions(self._control, limit=_RECENT)
        for decision in self._list_live(now_ns):
            who = find_approval(decision, list_orders(self._control, decision.id))
            if who is None or is_outdated(decision, runs) or decision.waits_until_ns is not None:
                continue
            if decision.trigger is None and get_incident(self._control, decision.incident).state == "closed":
                continue  # nobody needs the lent node any more
            if self._is_busy(decision.job, runs, now_ns):
                continue
            if self._must_wait(decision):
                self._extend(decision, lease, now_ns)
                continue
            out = {each.node for each in list_isolated(self._control) if each.state in OUT}
            part = decision.isolate[0].component if decision.isolate else f"plan:{decision.part_of}"
            run = begin(decision, part, who, lease.generation, now_ns, out)
            save_execution(self._control, run, lease, why=f"begun by {who}: {decision.reason}")

    def _survey(self, runs: Sequence[Execution], now_ns: int) -> Overview:
        """Return all jobs; one that was started again is still in the telemetry of the last minute, and left out."""
        view = self._reader.survey(now_ns)
        return replace(view, jobs=[job for job in view.jobs if not has_moved_on(job.job, runs)])

    def _compare(self, view: Overview, runs: Sequence[Execution], now_ns: int) -> tuple[ClusterFacts, list[Event]]:
        """Return the cluster with the nodes that lie idle, and what has happened since the last look."""
        jobs = {job.job: job.nodes for job in view.jobs}
        gone = (self._seen.jobs if self._seen else frozenset()) - set(jobs)
        over = {job for job in gone if self._has_left(job, jobs, runs)}
        known = list_isolated(self._control)
        returned = {each.node: each.changed_ns for each in known if each.state == "returned"}
        free = self.free.update(jobs, gone - over, returned, view.nodes, now_ns, self._find_blamed(view, jobs))
        taken, spares = count_promised(runs, jobs, now_ns), view.cluster.spares
        facts = replace(view.cluster, spares=spares[taken:], free=free[max(taken - len(spares), 0) :])
        nodes = frozenset({*facts.free, *facts.spares, *(node for held in jobs.values() for node in held)})
        seen = Seen(nodes, frozenset(jobs) | (gone - over))
        events = find_triggers(self._seen, seen)
        self._seen = seen
        return facts, events

    def _has_left(self, job: str, jobs: Collection[str], runs: Sequence[Execution]) -> bool:
        """Return whether a job has left its nodes; one that we started again has them until its next name is seen."""
        now = newest_name(job, runs)
        return now in jobs or self._reader.is_over(now)

    def _find_blamed(self, view: Overview, jobs: Mapping[str, Sequence[str]]) -> set[str]:
        """Return the nodes that an open incident names: nobody gets them, whoever has left them."""
        hosts = {
            *view.cluster.hosts,
            *(node.name for node in view.nodes or ()),
            *(n for held in jobs.values() for n in held),
        }
        parts = [incident.verdict.component for incident in open_incidents(self._control)]
        return {node for part in parts if (node := node_of(part, frozenset(hosts))) is not None}

    def _plan(
        self,
        view: Overview,
        facts: ClusterFacts,
        clusters: tuple[Cluster | None, Cluster],
        events: list[Event],
        runs: Sequence[Execution],
        lease: Lease,
        now_ns: int,
    ) -> int:
        """Solve, and write down one decision for each job that should have another count; return how many."""
        before, planned = clusters
        pinned = self._list_pinned(view, runs, now_ns)
        foreseen = events[0] if len(events) == 1 and not pinned else None
        after = build_cluster(view.jobs, facts, self._options.durations, pinned) if pinned else planned
        try:
            plan = self.warm.answer(before or after, foreseen, after, now_ns)
        except BadInput as nonsense:
            _log.warning("jobs cannot be planned over", why=str(nonsense))
            return 0
        parts = self._list_parts(plan, view, runs, now_ns)
        cause = Cause(self._said, plan, self._options.durations.start_s, self._options.gpu_hour_price)
        made = decide_parts(
            parts, cause, self._look_around(view, runs, now_ns), self._options.policy, lease.generation, now_ns
        )
        self._due_ns = now_ns if pinned else 0  # those who are left out now may have their turn at the next look
        return self._save(made, runs, lease, now_ns)

    def _list_pinned(self, view: Overview, runs: Sequence[Execution], now_ns: int) -> set[str]:
        """Return the jobs that something is being done about, or that a person is asked about."""
        troubled = {incident.job for incident in open_incidents(self._control)}
        busy = {job.job for job in view.jobs if self._is_busy(job.job, runs, now_ns)}
        barred = {node.name for node in view.nodes or () if not node.is_usable}
        # Started again, a job that still runs on a node that is out of service would lack that one too.
        short = {job.job for job in view.jobs if barred & set(job.nodes)}
        return (troubled | busy | short) & {job.job for job in view.jobs if can_move(job)}

    def _is_busy(self, job: str, runs: Sequence[Execution], now_ns: int) -> bool:
        """Return whether something is being done for a job or was just now, also under the name it had before."""
        return any(is_busy(name, runs, now_ns, self._options.settle_s) for name in names_of(job, runs))

    def _list_parts(self, plan: Allocation, view: Overview, runs: Sequence[Execution], now_ns: int) -> list[Part]:
        """Return what a plan does to each job; nothing at all where one of them cannot be moved after all."""
        jobs, parts = {job.job: job for job in view.jobs}, list[Part]()
        takers = [each for each in plan.jobs if each.after > each.before]
        scarce = next((found for each in takers if (found := self._find_scarce(each, runs))), None)
        for each in (each for each in plan.jobs if each.after != each.before):
            resume = self._reader.resume_on(jobs[each.job], each.after, now_ns)
            incident = self._find_scarce(each, runs) or scarce
            if resume is None or incident is None:
                missing = f"checkpoint that loads on {each.after} nodes" if resume is None else "incident behind it"
                _log.info("a plan is not written down", job=each.job, why=f"there is no {missing}")
                return []
            parts.append(Part(each, jobs[each.job], resume, incident, names_of(each.job, runs)))
        return parts

    def _find_scarce(self, plan: JobPlan, runs: Sequence[Execution]) -> str | None:
        """Return the incident that made nodes scarce for a job: that took one of its own, or one it gets back."""
        names, taken = names_of(plan.job, runs), set(plan.placement.taken)
        back = {each.decision for each in list_isolated(self._control, 0) if each.node in taken}
        shrunk = [run.incident for run in runs if run.job in names and run.action in SHRINKING]
        isolated = [run.incident for run in runs if run.decision in back]
        own = [found.id for name in names for found in list_incidents(self._control, job=name, limit=1)]
        return next(iter([*shrunk, *isolated, *own]), None)

    def _look_around(self, view: Overview, runs: Sequence[Execution], now_ns: int) -> Surroundings:
        since_ns = now_ns - int(self._options.policy.limits.undo_s * NS_PER_S)
        undone = {
            order.decision
            for order in list_orders(self._control, since_ns=since_ns)
            if order.kind in ("undo", "reject")
        }
        return Surroundings(
            undone=[get_decision(self._control, name) for name in sorted(undone)],
            controller_trouble=view.trouble,
            restarts=count_restarts(runs, now_ns - 3600 * NS_PER_S),
        )

    def _save(self, made: Sequence[Decision], runs: Sequence[Execution], lease: Lease, now_ns: int) -> int:
        """Write the decisions of a plan, under their old ids where they are the same, and end what is not wanted."""
        floor_ns = now_ns - int(_RENEW_LOOKS * self._options.look_s * NS_PER_S)
        before = [each for each in self._list_live(now_ns, expired_too=True) if each.trigger]
        live = {each.job: each for each in before if each.expires_ns > floor_ns}
        kept = [keep_same(live.get(each.job), self._act_if_saved(live.get(each.job), each), runs) for each in made]
        ids = {new.id: old.id for new, old in zip(made, kept, strict=True)}
        linked = [each.model_copy(update={"after": tuple(ids[name] for name in each.after)}) for each in kept]
        if linked and not self._due_ns:
            self._due_ns = min(each.expires_ns for each in linked)
        self._withdraw([each.id for each in linked], lease, now_ns)
        save_decisions(self._control, linked, lease)
        return len(linked)

    def _act_if_saved(self, known: Decision | None, made: Decision) -> Decision:
        """Return a decision that has waited for a checkpoint and has got it: it waits for no other."""
        if known is None or known.waits_until_ns is None or made.waits_until_ns is None:
            return made
        saved_ns = made.created_ns - int((made.checkpoint_age_s or 0.0) * NS_PER_S)
        if known.part_of != made.part_of or saved_ns <= (known.weighed_ns or known.created_ns):
            return made
        expires_ns = made.created_ns + int(self._options.policy.lifetime_s * NS_PER_S)
        reason = f"{made.reason}; it has waited for the checkpoint that is there now"
        return made.model_copy(update={"waits_until_ns": None, "expires_ns": expires_ns, "reason": reason})

    def _withdraw(self, wanted: Sequence[str], lease: Lease, now_ns: int) -> None:
        """Let decisions of earlier plans expire that nobody would make any more."""
        stale = [each for each in self._list_live(now_ns) if each.trigger and each.id not in wanted]
        save_decisions(self._control, [each.model_copy(update={"expires_ns": now_ns}) for each in stale], lease)

    def _list_live(self, now_ns: int, expired_too: bool = False) -> list[Decision]:
        """Return the newest decision of each job in a plan that is not carried out yet."""
        newest: dict[str, Decision] = {}
        for decision in list_decisions(self._control, limit=_RECENT):
            newest.setdefault(decision.job, decision)
        parts = [each for each in newest.values() if each.part_of and (expired_too or each.expires_ns > now_ns)]
        return [each for each in parts if find_execution(self._control, each.id) is None]

    def _is_under_way(self, now_ns: int) -> bool:
        """Return whether a plan is being carried out: until it is, another would only get in its way."""
        ready = [each for each in self._list_live(now_ns) if each.waits_until_ns is None]
        return any(find_approval(each, list_orders(self._control, each.id)) is not None for each in ready)

    def _must_wait(self, decision: Decision) -> bool:
        runs = [find_execution(self._control, name) for name in decision.after]
        return any(run is None or run.state != "done" for run in runs)

    def _extend(self, decision: Decision, lease: Lease, now_ns: int) -> None:
        """Let an approved decision live on while those before it are being carried out."""
        runs = [find_execution(self._control, name) for name in decision.after]
        if any(run is not None and run.state in UNFINISHED for run in runs):
            expires_ns = now_ns + int(self._options.policy.lifetime_s * NS_PER_S)
            save_decisions(self._control, [decision.model_copy(update={"expires_ns": expires_ns})], lease)
