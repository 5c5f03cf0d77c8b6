"""The plan over all jobs after a fault or another event: counts, ways and nodes, beside what else could be done."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.errors import BadInput
from planner.recovery.allocation.foresight import Outlook
from planner.recovery.allocation.gains import Change, Choices, list_choices, stand
from planner.recovery.allocation.horizon import expect_running_s
from planner.recovery.allocation.jobs import Cluster, check_cluster
from planner.recovery.allocation.placing import Placement, place
from planner.recovery.allocation.solving import Solution, solve


@dataclass(frozen=True)
class JobPlan:
    """What becomes of one job."""

    job: str
    before: int  # nodes, lost ones too
    after: int  # nodes
    change: Change
    downtime_s: float
    lost_work_s: float  # done again
    waf_before: float  # weighted work per second
    waf_after: float
    is_measured: bool  # what it does on so many nodes was seen, not modelled
    placement: Placement


@dataclass(frozen=True)
class Alternative:
    """Another plan, and what it is worth beside the one that was chosen."""

    name: str
    waf_after: float
    value: float  # weighted work until the next plan, less what the changes cost
    changed: int  # jobs
    reason: str


@dataclass(frozen=True)
class Allocation:
    """The best plan over all jobs."""

    running_s: float  # expected until the next plan
    jobs: tuple[JobPlan, ...]
    value: float  # weighted work until the next plan, less what the changes cost
    reason: str
    alternatives: tuple[Alternative, ...] = ()

    @property
    def waf_before(self) -> float:
        """Return the weighted work per second before."""
        return sum(job.waf_before for job in self.jobs)

    @property
    def waf_after(self) -> float:
        """Return the weighted work per second once all changes are made."""
        return sum(job.waf_after for job in self.jobs)


def plan_allocation(cluster: Cluster) -> Allocation:
    """Return the best plan; BadInput where the jobs must have more nodes than there are."""
    return finish(cluster, look_now(cluster))


def look_now(cluster: Cluster) -> Outlook:
    """Return what is best for a cluster as it is, in counts."""
    check_cluster(cluster)
    running_s, capacity = expect_running_s(cluster), len(cluster.usable)
    choices = tuple(list_choices(job, stand(job, cluster), running_s, capacity) for job in cluster.jobs)
    return Outlook(running_s, choices, solve(choices, capacity))


def finish(cluster: Cluster, outlook: Outlook) -> Allocation:
    """Return the plan with its nodes, reasons and alternatives; the outlook may come from foresight."""
    found, choices = outlook.solution, outlook.choices
    if found is None:
        raise BadInput(f"the jobs must have more than the {len(cluster.usable)} nodes that can be used")
    counts = {one.job.id: int(count) for one, count in zip(choices, found.counts, strict=True)}
    changes = {one.job.id: one.change_at(pick) for one, pick in zip(choices, found.picks.tolist(), strict=True)}
    placed = place(cluster, counts, changes)
    jobs = tuple(
        _plan_job(one, pick, placed[one.job.id]) for one, pick in zip(choices, found.picks.tolist(), strict=True)
    )
    others = tuple(_list_alternatives(choices, len(cluster.usable), found.value))
    return Allocation(outlook.running_s, jobs, found.value, _say(choices, jobs, outlook.running_s), others)


def _plan_job(choices: Choices, pick: int, placement: Placement) -> JobPlan:
    return JobPlan(
        choices.job.id,
        choices.standing.held,
        int(choices.counts[pick]),
        choices.change_at(pick),
        float(choices.downtime_s[pick]),
        float(choices.lost_work_s[pick]),
        choices.job.work_on(choices.standing.held),
        float(choices.work[pick]),
        int(choices.counts[pick]) in choices.job.throughput.measured,
        placement,
    )


def _list_alternatives(choices: Sequence[Choices], capacity: int, best: float) -> list[Alternative]:
    """Return what else could be done: nothing, and to change only the jobs that were hit."""
    standing_still = [one.only(one.counts == (0 if one.standing.is_hit else one.standing.held)) for one in choices]
    hit_only = [one if one.standing.is_hit else one.only(one.counts == one.standing.held) for one in choices]
    named = [("do nothing", "jobs that were hit stand still, the others go on", standing_still)]
    if any(one.standing.is_hit for one in choices):
        named.append(("only the jobs that were hit", "no healthy job is touched", hit_only))
    return [
        _weigh(name, reason, offers, capacity, best)
        for name, reason, offers in named
        if _is_possible(offers, capacity)
    ]


def _is_possible(offers: Sequence[Choices], capacity: int) -> bool:
    """Return whether each job has a choice left, and there are nodes enough for the smallest of each."""
    return all(len(one.counts) for one in offers) and sum(int(one.counts.min()) for one in offers) <= capacity


def _weigh(name: str, reason: str, offers: Sequence[Choices], capacity: int, best: float) -> Alternative:
    found = solve(offers, capacity)
    work = sum(float(one.work[pick]) for one, pick in zip(offers, found.picks, strict=True))
    changed = _count_changed(offers, found)
    behind = f"{reason}; worth {_share(found.value, best)} of the plan"
    return Alternative(name, work, found.value, changed, behind)


def _count_changed(offers: Sequence[Choices], found: Solution) -> int:
    return sum(one.change_at(pick) != "none" for one, pick in zip(offers, found.picks, strict=True))


def _share(value: float, best: float) -> str:
    return f"{value / best:.1%}" if best > 0 else f"{value - best:+.3g}"


def _say(choices: Sequence[Choices], jobs: Sequence[JobPlan], running_s: float) -> str:
    """Return the plan in a sentence: who changes and how, and why the others do not."""
    changed = [job for job in jobs if job.change != "none"]
    said = ", ".join(f"{job.job} {job.before} -> {job.after} nodes by {job.change}" for job in changed[:6])
    more = f" and {len(changed) - 6} more" if len(changed) > 6 else ""
    until = f"within the {running_s / 3600:.3g} hours until the next plan is expected"
    if not changed:
        return f"nothing changes: no other plan does more work {until}"
    healthy = sum(one.standing.held > 0 and not one.standing.is_hit for one in choices)
    moved = sum(
        job.change != "none" and one.standing.held > 0 and not one.standing.is_hit
        for one, job in zip(choices, jobs, strict=True)
    )
    if moved:
        return f"{said}{more}: changing {moved} of {healthy} healthy jobs pays {until}"
    return f"{said}{more}: the {healthy} healthy jobs stay as they are, changing them would not pay {until}"
