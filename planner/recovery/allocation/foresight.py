"""The answer to every single next event, worked out before it happens: at the event it is looked up.

Each node that may be lost, a node that joins, each job that may end, each that waits and may start. Events that leave
the same counts to choose from share an answer: all healthy nodes of a job are one case, all idle nodes another.
An answer equals that of solving anew after the event; which nodes a job gets is settled at the event (placing.py).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lockstep.errors import BadInput
from planner.recovery.allocation.events import ANY_NODE, Event, apply, list_events
from planner.recovery.allocation.gains import Choices, Standing, list_choices, stand
from planner.recovery.allocation.horizon import most_useful, running_s_of
from planner.recovery.allocation.jobs import Cluster, Job
from planner.recovery.allocation.solving import Solution
from planner.recovery.allocation.variants import Variant, solve_variants


@dataclass(frozen=True)
class Outlook:
    """What is best after an event."""

    running_s: float  # until the plan after it
    choices: tuple[Choices, ...]  # of each job then
    solution: Solution | None  # None: the jobs must have more nodes than there are


class Case(NamedTuple):
    """What an event changes, as far as counts go; events of the same case have the same answer."""

    running_s: float
    capacity: int
    job: str | None = None  # that is touched
    standing: Standing | None = None  # of that job after the event; None: it is gone


@dataclass(frozen=True)
class Foresight:
    """The answers to all single events that can follow on one state of the cluster."""

    cluster: Cluster  # whose next events these are
    cases: Mapping[Event, Case]
    outlooks: Mapping[Case, Outlook]

    def look_up(self, event: Event) -> Outlook:
        """Return what is best after an event, in a time that does not depend on the cluster."""
        case = self.cases.get(event)
        if case is None and event.kind == "node_joins":
            case = self.cases[Event("node_joins", ANY_NODE)]
        if case is None:
            raise BadInput(f"{event.kind}:{event.name} cannot be the next event in this cluster")
        return self.outlooks[case]


def foresee(cluster: Cluster) -> Foresight:
    """Return the answers to every single next event.

    Cost: for each distinct horizon (one or two are usual) about three times the whole programme.
    """
    cases = dict(_list_cases(cluster))
    outlooks: dict[Case, Outlook] = {}
    for running_s in sorted({case.running_s for case in cases.values()}):
        alike = [case for case in dict.fromkeys(cases.values()) if case.running_s == running_s]
        outlooks |= _answer(cluster, running_s, alike)
    return Foresight(cluster, cases, outlooks)


def _answer(cluster: Cluster, running_s: float, cases: list[Case]) -> dict[Case, Outlook]:
    """Return the outlook of each case of one horizon."""
    most = max(case.capacity for case in cases)
    base = [list_choices(job, stand(job, cluster), running_s, most) for job in cluster.jobs]
    places = {job.id: place for place, job in enumerate(cluster.jobs)}
    known = {job.id: job for job in (*cluster.jobs, *cluster.waiting)}
    instead = [
        list_choices(known[case.job], case.standing, running_s, most) if case.job and case.standing else None
        for case in cases
    ]
    touched = [places.get(case.job) if case.job else None for case in cases]
    variants = [Variant(case.capacity, at, other) for case, at, other in zip(cases, touched, instead, strict=True)]
    found = solve_variants(base, variants)
    return {
        case: Outlook(running_s, _replace(base, at, other), solution)
        for case, at, other, solution in zip(cases, touched, instead, found, strict=True)
    }


def _replace(base: list[Choices], at: int | None, other: Choices | None) -> tuple[Choices, ...]:
    place = len(base) if at is None else at
    return (*base[:place], *([other] if other else []), *base[place + 1 :])


def _list_cases(cluster: Cluster) -> Iterator[tuple[Event, Case]]:
    """Yield each event with its case, without making the whole cluster after it for each."""
    failures = math.fsum(node.failures_per_day for node in cluster.usable)
    useful, usable = sum(most_useful(job) for job in cluster.jobs), len(cluster.usable)
    jobs = {job.id: job for job in (*cluster.jobs, *cluster.waiting)}
    after_loss = {job.id: _stand_after_loss(job, cluster) for job in cluster.jobs}
    for event in list_events(cluster):
        if event.kind == "node_lost":
            left = failures - cluster.by_name[event.name].failures_per_day
            running_s = running_s_of(usable - 1, left, useful, cluster.repairs_per_day)
            holder = cluster.holder.get(event.name)
            standing = after_loss[holder][event.name] if holder else None
            yield event, Case(running_s, usable - 1, holder, standing)
        elif event.kind == "node_joins":
            yield event, _case_of_join(cluster, event, failures, useful)
        else:
            is_end = event.kind == "job_ends"
            job = jobs[event.name]
            others = useful + (-most_useful(job) if is_end else most_useful(job))
            running_s = running_s_of(usable, failures, others, cluster.repairs_per_day)
            yield event, Case(running_s, usable, job.id, None if is_end else stand(job, cluster))


def _case_of_join(cluster: Cluster, event: Event, failures: float, useful: int) -> Case:
    """Return the case of a node that comes back: to the job that still holds it, or to all."""
    usable = len(cluster.usable)
    node = cluster.by_name.get(event.name)
    rate = node.failures_per_day if node else failures / max(usable, 1)
    running_s = running_s_of(usable + 1, failures + rate, useful, cluster.repairs_per_day)
    holder = cluster.holder.get(event.name)
    standing = stand(cluster.job(holder), apply(cluster, event)) if holder else None
    return Case(running_s, usable + 1, holder, standing)


def _stand_after_loss(job: Job, cluster: Cluster) -> dict[str, Standing]:
    """Return how a job stands after the loss of each node that it still has."""
    now, size = stand(job, cluster), job.nodes_per_replica
    hit = {place // size for place, name in enumerate(job.nodes) if cluster.is_lost(name)} if size else set()
    return {
        name: Standing(now.held, now.lost + 1, now.replicas_hit + bool(size and place // size not in hit), True)
        for place, name in enumerate(job.nodes)
        if not cluster.is_lost(name)
    }
