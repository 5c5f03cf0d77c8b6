"""The answer to every single next event, worked out before it happens: at the event it is looked up.

Each node that may be lost, a node that joins, each job that may end, each that waits and may start. Events that leave
the same counts to choose from share an answer: all healthy nodes of a job are one case, all idle nodes another.
An answer equals that of solving anew after the event; which nodes a job gets is settled at the event.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lockstep.errors import BadInput
from planner.allocation.cluster import ANY_NODE, Cluster, Event, Job, apply, list_events, most_useful, running_s_of
from planner.allocation.gains import Choices, JobState, list_choices, state_of
from planner.allocation.solve import Menu, Offer, Row, Solution, Table, add_all, cut_to_fit, go_back


class Variant(NamedTuple):
    """How a problem differs from the one that is at hand."""

    capacity: int
    job: int | None = None  # index of the job that is another; None: all are as they are
    instead: Offer | None = None  # what stands for that job; None: it is gone. Without a job: one that is added


class _Meeting(NamedTuple):
    """Where the jobs before, the jobs after and the choice of the one between meet."""

    pick: int
    before: int  # nodes
    after: int  # nodes


_GONE = Menu(np.zeros(1, np.int64), np.zeros(1))


def solve_variants(offers: Sequence[Offer], variants: Sequence[Variant]) -> list[Solution | None]:
    """Return the optimum of each variant; None where its jobs must have more nodes than there are.

    Rows are added up from the front and from the back. A variant that touches job i is then the row of the jobs
    before i, the row of those after i, and the choices of i: for each choice one pass over the nodes, and nothing is
    solved anew.

    Cost: twice the whole programme for the rows, and for each variant its choices times the nodes.
    """
    capacity = max((variant.capacity for variant in variants), default=0)
    menus = [_menu(offer) for offer in offers]
    front = add_all(menus, capacity, to_the_end=False)
    back = add_all(menus[::-1], capacity, to_the_end=False)
    ends = [(len(menus), 0) if one.job is None else (one.job, len(menus) - one.job - 1) for one in variants]
    met = [
        _meet(front[first], back[last], _menu(one.instead) if one.instead else _GONE, one.capacity)
        for one, (first, last) in zip(variants, ends, strict=True)
    ]
    jobs = np.array([end for end, one in zip(ends, met, strict=True) if one], np.int64).reshape(-1, 2)
    totals = np.array([(one.before, one.after) for one in met if one], np.int64).reshape(-1, 2)
    picks = go_back(front, menus, jobs[:, 0], totals[:, 0])
    picks += go_back(back, menus[::-1], jobs[:, 1], totals[:, 1])[:, ::-1]
    table, of_solved = Table(offers), iter(picks)
    return [
        _put_together(table, one, next(of_solved), meeting.pick) if meeting else None
        for one, meeting in zip(variants, met, strict=True)
    ]


def _menu(offer: Offer) -> Menu:
    return Menu(offer.counts, offer.gains.max() - offer.gains)


def _meet(front: Row, back: Row, between: Menu, capacity: int) -> _Meeting | None:
    """Return the best way to share the nodes among those before, one between and those after; None: there is none."""
    behind = back.at_most(capacity)
    losses = _find_least(front, behind, capacity - between.counts) + between.losses
    pick = int(np.argmin(losses))
    if losses[pick] == np.inf:
        return None
    rest = capacity - int(between.counts[pick])
    fits = front.loss[: rest - front.first + 1]
    before = front.first + int(np.argmin(fits + behind[rest - front.first - np.arange(len(fits))]))
    after = back.first + int(np.argmin(back.loss[: rest - before - back.first + 1]))
    return _Meeting(pick, before, after)


def _find_least(front: Row, behind: np.ndarray, rests: np.ndarray) -> np.ndarray:
    """Return the least loss of those in front and those behind when they share each of these numbers of nodes."""
    width = len(front.loss)
    if not width:
        return np.full(len(rests), np.inf)
    backwards = np.concatenate([behind[::-1], np.full(width, np.inf)])  # below no nodes there is nothing
    shifted = sliding_window_view(backwards, width)
    starts = np.minimum(len(behind) - 1 - (rests - front.first), len(behind))
    return np.concatenate([(rows + front.loss).min(axis=1) for _, rows in cut_to_fit(shifted, starts)])


def _put_together(table: Table, variant: Variant, picks: np.ndarray, between: int) -> Solution:
    """Return the solution of a variant from the choices of the jobs that stayed, and that of the one between."""
    stayed = table.sum_up(picks)
    at = len(picks) if variant.job is None else variant.job
    known, counts, gain = picks, stayed.counts, stayed.value
    if variant.job is not None:
        gain -= float(table.gains[table.starts[at] + picks[at]])
        known, counts = np.delete(known, at), np.delete(counts, at)
    if variant.instead is None:
        return Solution(known, counts, gain)
    count, more = variant.instead.counts[between], float(variant.instead.gains[between])
    return Solution(np.insert(known, at, between), np.insert(counts, at, count), gain + more)


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
    state: JobState | None = None  # of that job after the event; None: it is gone


@dataclass(frozen=True)
class Foresight:
    """The answers to all single events that can follow on one state of the cluster."""

    cases: Mapping[Event, Case]
    outlooks: Mapping[Case, Outlook]

    def lookup(self, event: Event) -> Outlook:
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
    return Foresight(cases, outlooks)


def _answer(cluster: Cluster, running_s: float, cases: list[Case]) -> dict[Case, Outlook]:
    most = max(case.capacity for case in cases)
    base = [list_choices(job, state_of(job, cluster), running_s, most) for job in cluster.jobs]
    indices = {job.id: index for index, job in enumerate(cluster.jobs)}
    known = {job.id: job for job in (*cluster.jobs, *cluster.waiting)}
    instead = [
        list_choices(known[case.job], case.state, running_s, most) if case.job and case.state else None
        for case in cases
    ]
    touched = [indices.get(case.job) if case.job else None for case in cases]
    variants = [Variant(case.capacity, at, other) for case, at, other in zip(cases, touched, instead, strict=True)]
    found = solve_variants(base, variants)
    return {
        case: Outlook(running_s, _replace(base, at, other), solution)
        for case, at, other, solution in zip(cases, touched, instead, found, strict=True)
    }


def _replace(base: list[Choices], at: int | None, other: Choices | None) -> tuple[Choices, ...]:
    index = len(base) if at is None else at
    return (*base[:index], *([other] if other else []), *base[index + 1 :])


def _list_cases(cluster: Cluster) -> Iterator[tuple[Event, Case]]:
    """Yield each event with its case, without making the whole cluster after it for each."""
    failures = math.fsum(node.failures_per_day for node in cluster.usable)
    useful, usable = sum(most_useful(job) for job in cluster.jobs), len(cluster.usable)
    jobs = {job.id: job for job in (*cluster.jobs, *cluster.waiting)}
    after_loss = {job.id: _state_after_loss(job, cluster) for job in cluster.jobs}
    for event in list_events(cluster):
        if event.kind == "node_lost":
            left = failures - cluster.by_name[event.name].failures_per_day
            running_s = running_s_of(usable - 1, left, useful, cluster.repairs_per_day)
            holder = cluster.holder.get(event.name)
            state = after_loss[holder][event.name] if holder else None
            yield event, Case(running_s, usable - 1, holder, state)
        elif event.kind == "node_joins":
            yield event, _case_of_join(cluster, event, failures, useful)
        else:
            is_end = event.kind == "job_ends"
            job = jobs[event.name]
            others = useful + (-most_useful(job) if is_end else most_useful(job))
            running_s = running_s_of(usable, failures, others, cluster.repairs_per_day)
            yield event, Case(running_s, usable, job.id, None if is_end else state_of(job, cluster))


def _case_of_join(cluster: Cluster, event: Event, failures: float, useful: int) -> Case:
    """Return the case of a node that comes back: to the job that still holds it, or to all."""
    usable = len(cluster.usable)
    node = cluster.by_name.get(event.name)
    rate = node.failures_per_day if node else failures / max(usable, 1)
    running_s = running_s_of(usable + 1, failures + rate, useful, cluster.repairs_per_day)
    holder = cluster.holder.get(event.name)
    state = state_of(cluster.job(holder), apply(cluster, event)) if holder else None
    return Case(running_s, usable + 1, holder, state)


def _state_after_loss(job: Job, cluster: Cluster) -> dict[str, JobState]:
    """Return how a job stands after the loss of each node that it still has."""
    now, size = state_of(job, cluster), job.nodes_per_replica
    hit = {index // size for index, name in enumerate(job.nodes) if cluster.is_lost(name)} if size else set()
    return {
        name: JobState(now.held, now.lost + 1, now.replicas_hit + bool(size and index // size not in hit), True)
        for index, name in enumerate(job.nodes)
        if not cluster.is_lost(name)
    }
