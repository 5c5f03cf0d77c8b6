"""The shell around the plan over all jobs: looks at the cluster between faults, and gives back what lies idle.

An evaluation is due when something has happened (find_triggers), when the planner has just begun, and when what was
proposed has expired. Between them the answers to every single next event are kept at hand (WarmAnswers).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.errors import BadInput
from lockstep.execution import OUT_OF_SERVICE, UNFINISHED, Execution
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import (
    find_execution,
    get_decision,
    list_decisions,
    list_executions,
    list_isolated,
    list_orders,
    save_decisions,
    save_execution,
)
from lockstep.state.incidents import get_incident, list_incidents, open_incidents
from lockstep.state.leases import Lease
from planner.allocation.allocate import Allocation, JobPlan, WarmAnswers
from planner.allocation.cluster import Cluster, Event
from planner.context import ClusterFacts, JobFacts, Resume, node_of
from planner.decide import LIFETIME_S, PlannerOptions
from planner.holdings import FreeNodes
from planner.limits import SHRINKING, UNDO_S, Constraints
from planner.multi_job import Cause, Part, build_cluster, can_move, decide_parts
from planner.snapshot import Overview
from planner.steps import (
    begin,
    count_promised,
    count_restarts,
    find_approval,
    has_moved_on,
    is_busy,
    is_outdated,
    keep_same,
    names_of,
    newest_name,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster at one look."""

    nodes: frozenset[str]  # that jobs hold, or could be given
    jobs: frozenset[str]  # those that have sent nothing for a while and are not known to be over included


def find_triggers(before: Seen | None, after: Seen) -> list[Event]:
    """Return what happened between two looks; nothing where there was none before.

    Two looks are compared. Nothing of this is kept across a restart of the planner: what is best follows from how the
    cluster is, not from what happened, and whoever begins looks once without any trigger.
    """
    if before is None:
        return []
    return [
        *(Event("node_joins", node) for node in sorted(after.nodes - before.nodes)),
        *(Event("node_lost", node) for node in sorted(before.nodes - after.nodes)),
        *(Event("job_starts", job) for job in sorted(after.jobs - before.jobs)),
        *(Event("job_ends", job) for job in sorted(before.jobs - after.jobs)),
    ]


def say(events: list[Event]) -> str:
    """Return what happened in words.

    >>> say([Event("node_joins", "h3"), Event("job_ends", "chat")])
    'node h3 joined, job chat ended'
    """
    if not events:
        return "the planner has looked at all jobs"
    words = {"node_joins": "joined", "node_lost": "was lost", "job_starts": "started", "job_ends": "ended"}
    message = [f"{event.kind.partition('_')[0]} {event.name} {words[event.kind]}" for event in events[:4]]
    return ", ".join(message) + (f" and {len(events) - 4} more" if len(events) > 4 else "")


def list_undone(control: ControlDatabase, now_ns: int) -> list[Decision]:
    """Return the decisions that a person has undone or rejected within memory."""
    orders = list_orders(control, since_ns=now_ns - int(UNDO_S * NS_PER_S))
    undone = {order.decision for order in orders if order.kind in ("undo", "reject")}
    return [get_decision(control, name) for name in sorted(undone)]


def begin_execution(
    control: ControlDatabase, decision: Decision, component: str, who: str, lease: Lease, now_ns: int
) -> None:
    """Write down that a decision is carried out from now on; nodes that are out of service stay as they are."""
    out = {each.node for each in list_isolated(control) if each.state in OUT_OF_SERVICE}
    run = begin(decision, component, who, lease.generation, now_ns, out)
    save_execution(control, run, lease, why=f"begun by {who}: {decision.reason}")


_log = structlog.get_logger("rebalancing")
RECENT = 200  # executions and decisions that are looked back on
_RENEW_EVALUATIONS = 3  # after so many a plan that expired is a new one, to which nobody has said anything yet


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
        self._evaluated_ns = self._due_ns = 0
        self._trigger = say([])

    def use(self, options: PlannerOptions) -> None:
        """Decide by these from the next look on."""
        self._options = options

    def evaluate(self, lease: Lease, now_ns: int) -> int:
        """Look at all jobs where it is time to; return how many decisions were made."""
        if now_ns - self._evaluated_ns < self._options.survey_s * NS_PER_S:
            return 0
        self._evaluated_ns = now_ns
        runs = list_executions(self._control, limit=RECENT)
        view = self._reader.survey(now_ns)
        # One that was started again is still in the telemetry of the last minute.
        view = replace(view, jobs=[job for job in view.jobs if not has_moved_on(job.job, runs)])
        facts, events = self._compare(view, runs, now_ns)
        planned = build_cluster(view.jobs, facts, self._options.durations)
        before, self._cluster = self._cluster, planned
        made = 0
        if events or before is None or 0 < self._due_ns <= now_ns:
            self._trigger = say(events) if events else self._trigger
            self._due_ns = now_ns  # until it was planned: what happened is not forgotten because it must wait
            if view.trouble is None and not self._is_executing(now_ns):
                made = self._plan(view, facts, (before, planned), events, runs, lease, now_ns)
        self.warm.keep(planned, now_ns)
        return made

    def begin_ready(self, lease: Lease, now_ns: int) -> None:
        """Begin what a person or the policy lets of plans, once all that must go before it is done."""
        runs = list_executions(self._control, limit=RECENT)
        for decision in self._list_live(now_ns):
            who = find_approval(decision, list_orders(self._control, decision.id))
            if who is None or is_outdated(decision, runs) or decision.waits_until_ns is not None:
                continue
            if decision.trigger is None and get_incident(self._control, decision.incident).state == "closed":
                continue  # nobody needs the lent node any more
            if self._is_busy(decision.job, runs, now_ns):
                continue
            before = [find_execution(self._control, name) for name in decision.after]
            if any(run is None or run.state != "done" for run in before):
                if any(run is not None and run.state in UNFINISHED for run in before):  # it lives on meanwhile
                    longer = {"expires_ns": now_ns + int(LIFETIME_S * NS_PER_S)}
                    save_decisions(self._control, [decision.model_copy(update=longer)], lease)
                continue
            part = decision.isolate[0].component if decision.isolate else f"plan:{decision.part_of}"
            begin_execution(self._control, decision, part, who, lease, now_ns)

    def _compare(self, view: Overview, runs: Sequence[Execution], now_ns: int) -> tuple[ClusterFacts, list[Event]]:
        """Return the cluster with the nodes that lie idle, and what has happened since the last look."""
        jobs = {job.job: job.nodes for job in view.jobs}
        gone = (self._seen.jobs if self._seen else frozenset()) - set(jobs)
        # One that we started again has its nodes until its next name is seen.
        newest = {job: newest_name(job, runs) for job in gone}
        over = {job for job, now in newest.items() if now in jobs or self._reader.is_over(now)}
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

    def _find_blamed(self, view: Overview, jobs: Mapping[str, Sequence[str]]) -> set[str]:
        """Return the nodes that an open incident names: nobody gets them, whoever has left them."""
        held = frozenset(node for mine in jobs.values() for node in mine)
        hosts = view.cluster.hosts | held | {node.name for node in view.nodes or ()}
        parts = [incident.verdict.component for incident in open_incidents(self._control)]
        return {node for part in parts if (node := node_of(part, hosts)) is not None}

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
        cause = Cause(self._trigger, plan, self._options.settings.start_s, self._options.settings.gpu_hour_price)
        constraints = Constraints(
            undone=list_undone(self._control, now_ns),
            controller_trouble=view.trouble,
            restarts=count_restarts(runs, now_ns - 3600 * NS_PER_S),
        )
        made = decide_parts(parts, cause, constraints, self._options.settings, lease.generation, now_ns)
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

    def _save(self, made: Sequence[Decision], runs: Sequence[Execution], lease: Lease, now_ns: int) -> int:
        """Write the decisions of a plan, and let those of earlier plans expire that nobody would make any more."""
        floor_ns = now_ns - int(_RENEW_EVALUATIONS * self._options.survey_s * NS_PER_S)
        before = [each for each in self._list_live(now_ns, expired_too=True) if each.trigger]
        live = {each.job: each for each in before if each.expires_ns > floor_ns}
        kept = keep_same([self._act_if_saved(live.get(each.job), each) for each in made], live.get, runs)
        if kept and not self._due_ns:
            self._due_ns = min(each.expires_ns for each in kept)
        wanted = {each.id for each in kept}
        stale = [each for each in self._list_live(now_ns) if each.trigger and each.id not in wanted]
        save_decisions(self._control, [each.model_copy(update={"expires_ns": now_ns}) for each in stale], lease)
        save_decisions(self._control, kept, lease)
        return len(kept)

    def _act_if_saved(self, known: Decision | None, made: Decision) -> Decision:
        """Return a decision that has waited for a checkpoint and has got it: it waits for no other."""
        if known is None or known.waits_until_ns is None or made.waits_until_ns is None:
            return made
        saved_ns = made.created_ns - int((made.checkpoint_age_s or 0.0) * NS_PER_S)
        if known.part_of != made.part_of or saved_ns <= (known.weighed_ns or known.created_ns):
            return made
        expires_ns = made.created_ns + int(LIFETIME_S * NS_PER_S)
        reason = f"{made.reason}; it has waited for the checkpoint that is there now"
        return made.model_copy(update={"waits_until_ns": None, "expires_ns": expires_ns, "reason": reason})

    def _list_live(self, now_ns: int, expired_too: bool = False) -> list[Decision]:
        """Return the newest decision of each job in a plan that is not carried out yet."""
        newest: dict[str, Decision] = {}
        for decision in list_decisions(self._control, limit=RECENT):
            if not decision.answered_by:
                newest.setdefault(decision.job, decision)
        parts = [each for each in newest.values() if each.part_of and (expired_too or each.expires_ns > now_ns)]
        return [each for each in parts if find_execution(self._control, each.id) is None]

    def _is_executing(self, now_ns: int) -> bool:
        """Return whether a plan is being carried out: until it is, another would only get in its way."""
        ready = [each for each in self._list_live(now_ns) if each.waits_until_ns is None]
        return any(find_approval(each, list_orders(self._control, each.id)) is not None for each in ready)
