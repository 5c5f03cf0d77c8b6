"""Every way to answer a fault with what it costs: seconds of standstill, speed afterwards, GPU-hours, money, risk.

A cost counts what is lost until the horizon: the standstill, the work since the checkpoint that is done again, and
the speed that is missing afterwards. What does not help has cost its time and is followed by the next rung of the
ladder, so a risky cure is charged with what would follow; after the last rung a person is called.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lockstep.decision import Action, Cost, Option
from lockstep.errors import NotPresent
from planner.recovery.allocation.state_source import Source, find_nearest
from planner.recovery.components import is_hardware, is_in_the_fabric
from planner.recovery.facts import JobFacts, Resume, horizon_s
from planner.recovery.ladder import rung_of
from planner.recovery.shrinking import share_micro_batches, speed_rerouted, speed_without_replica
from planner.recovery.situation import Situation
from planner.recovery.taxonomy import is_alarm

MOVES: tuple[Action, ...] = ("reconfigure", "replace")  # start the job again elsewhere, from a checkpoint

# How often a cure does not help, where nothing better is known: ByteRobust resolved 22.7 % of its faults by trying
# again and 32.5 % by taking machines away; a part that the analyzer would isolate is seldom cured by a new process.
_RISK_OF_REATTEMPT = 0.77
_RISK_OF_NEW_PROCESS = 0.5
_RISK_ON_BAD_HARDWARE = 0.95


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to answer, or why it is closed."""

    reason: str
    is_open: bool = True
    downtime_s: float = 0.0
    again_s: float = 0.0  # of work that is done again
    speed: float = 1.0  # afterwards, if it helps
    risk: float = 0.0


def weigh(situation: Situation) -> list[Option]:
    """Return every way with its cost, the cheapest first; ways that are closed come last, without a cost."""
    ways = {action: way(situation) for action, way in _WAYS.items()}
    lost = _expect_losses(ways, situation)
    options = [_as_option(action, way, lost.get(action), situation) for action, way in ways.items()]
    return sorted(options, key=lambda option: math.inf if option.cost.gpu_hours is None else option.cost.gpu_hours)


def price_of_acting(option: Option, job: JobFacts) -> float:
    """Return what an act costs at once, in GPU-hours: what a slow job must have lost before it is worth it."""
    resume = resume_for(option.action, job)
    again_s = resume.age_s if resume and option.action in MOVES else 0.0
    return job.gpus * ((option.cost.downtime_s or 0.0) + again_s) / 3600


def resume_for(action: Action, job: JobFacts) -> Resume | None:
    """Return the checkpoint that an action starts from: one that the layout afterwards can load."""
    if action == "reconfigure":
        return job.resume_smaller
    return job.resume if action in ("replace", "restart_process") else None


def _none(situation: Situation) -> _Way:
    if situation.stands_still:
        return _Way("the job stands still until somebody acts", speed=0.0)
    return _Way(f"the job goes on at {situation.speed_now:.0%} of its speed", speed=situation.speed_now)


def _reroute(situation: Situation) -> _Way:
    if not is_in_the_fabric(situation.verdict.component, situation.hosts):
        return _closed(f"no way leads around {situation.verdict.component}")
    if not situation.cluster.can_reroute:
        return _closed("no path planner runs here")
    return _Way(
        f"flows go around {situation.verdict.component}, and the job goes on",
        risk=1 - situation.verdict.confidence,
    )


def _reattempt(situation: Situation) -> _Way:
    if not situation.stands_still:
        return _closed("a slow part is not cured by trying again")
    if closed := _no_controller(situation):
        return closed
    risk = _RISK_ON_BAD_HARDWARE if situation.verdict.grade == "isolate" else _RISK_OF_REATTEMPT
    return _Way("the operation is tried again in place", downtime_s=situation.durations.reattempt_s, risk=risk)


def _restart_process(situation: Situation) -> _Way:
    if not situation.stands_still and not is_alarm(situation.verdict.impact.step_time_ratio):
        return _closed("a slow part is not cured by a new process")
    if closed := _no_controller(situation):
        return closed
    if situation.verdict.grade == "isolate" and is_hardware(situation.verdict.component):
        risk = _RISK_ON_BAD_HARDWARE
    else:
        risk = _RISK_OF_NEW_PROCESS
    if situation.cluster.restarts_whole_job:
        return _restart_all(situation, risk)
    try:
        nearest = find_nearest(_list_sources(situation), _bytes_per_node(situation.job))
    except NotPresent:
        return _closed("no replica and no verified checkpoint to take the state from")
    return _Way(
        f"the process starts again on its node, with its state from {nearest.source.name}",
        downtime_s=situation.durations.restart_process_s + nearest.load_s,
        again_s=nearest.lost_work_s,
        risk=risk,
    )


def _restart_all(situation: Situation, risk: float) -> _Way:
    """Return what a new process costs where the controller knows only whole jobs: a new attempt on the same nodes."""
    resume = situation.job.resume
    if resume is None:
        return _closed("the controller restarts whole jobs, and there is no checkpoint that was verified complete")
    return _Way(
        f"the controller restarts the whole job on its nodes, from the checkpoint of {resume.age_s:.0f} s ago",
        downtime_s=situation.durations.start_s + resume.back_s,
        again_s=resume.age_s,
        risk=risk,
    )


def _list_sources(situation: Situation) -> list[Source]:
    """Return the copies of the state of one process: a replica of this very step, and the last checkpoint."""
    job, peer = situation.job, situation.durations.peer_bytes_per_s
    sources = [Source("peer", "a replica", peer)] if job.layout and job.layout.replicas > 1 else []
    if job.resume:
        kept = Source("remote", "the last checkpoint", math.inf, job.resume.back_s, job.resume.age_s)
        sources.append(kept)
    return sources


def _bytes_per_node(job: JobFacts) -> float:
    return job.resume.bytes / max(len(job.nodes), 1) if job.resume else 0.0


def _recycle(situation: Situation) -> _Way:
    layout = situation.job.layout
    if (closed := _cannot_shrink(situation)) or layout is None or layout.stages < 2 or layout.replicas < 2:
        return closed or _closed("only pipelines with replicas can hand their micro-batches to a peer")
    share = share_micro_batches(layout)
    return _Way(
        f"peers of the lost worker take over its micro-batches: {share.reason}",
        downtime_s=situation.durations.rebuild_s,
        speed=speed_rerouted(layout, share),
        risk=1 - situation.verdict.confidence,
    )


def _drop_replica(situation: Situation) -> _Way:
    layout = situation.job.layout
    if (closed := _cannot_shrink(situation)) or layout is None or layout.replicas < 2:
        return closed or _closed("there is no second replica to go on with")
    share = share_micro_batches(layout)
    return _Way(
        f"the replica is left out, and the others do its share of the batch: {share.reason}",
        downtime_s=situation.durations.rebuild_s,
        speed=speed_without_replica(layout, share),
        risk=1 - situation.verdict.confidence,
    )


def _reconfigure(situation: Situation) -> _Way:
    job, left = situation.job, len(situation.job.nodes) - 1
    return _move(
        situation, left, job.resume_smaller, f"the job starts again on {left} nodes {job.say_speed_on(left)}"
    )


def _replace(situation: Situation) -> _Way:
    if not situation.cluster.spares:
        return _closed("no spare node is idle")
    spare = situation.cluster.spares[0]
    job = situation.job
    return _move(
        situation, len(job.nodes), job.resume, f"the job starts again with {spare} instead of {situation.node}"
    )


def _move(situation: Situation, nodes: int, resume: Resume | None, what: str) -> _Way:
    """Return a restart on other nodes from the last complete checkpoint that they can load."""
    if closed := _no_node(situation) or _no_controller(situation):
        return closed
    job = situation.job
    if nodes < job.min_nodes:
        return _closed(f"the job needs {job.min_nodes} nodes and {nodes} would be left")
    if resume is None:
        return _closed(f"there is no checkpoint that was verified to be complete and loads on {nodes} nodes")
    converted = f", converted first in {resume.convert_s:.0f} s" if resume.convert else ""
    return _Way(
        f"{what}, from the checkpoint of {resume.age_s:.0f} s ago{converted}",
        downtime_s=situation.durations.start_s + resume.back_s,
        again_s=resume.age_s,
        speed=job.speed_on(nodes),
        risk=1 - situation.verdict.confidence,
    )


_WAYS: dict[Action, Callable[[Situation], _Way]] = {
    "none": _none,
    "reroute": _reroute,
    "reattempt": _reattempt,
    "restart_process": _restart_process,
    "recycle": _recycle,
    "drop_replica": _drop_replica,
    "reconfigure": _reconfigure,
    "replace": _replace,
}


def _closed(why: str) -> _Way:
    return _Way(f"not possible: {why}", is_open=False)


def _cannot_shrink(situation: Situation) -> _Way | None:
    """Return why the job cannot go on without one of its nodes; None where it can."""
    if closed := _no_node(situation):
        return closed
    return (
        None if situation.cluster.can_shrink else _closed("the job has not said that it can go on without a worker")
    )


def _no_controller(situation: Situation) -> _Way | None:
    """Return why nobody can start anything again; None where a controller can."""
    return None if situation.cluster.can_restart else _closed("no job controller is set that could restart it")


def _no_node(situation: Situation) -> _Way | None:
    """Return why no node can be taken away; None where one can."""
    verdict = situation.verdict
    if verdict.fault_class == "software":
        return _closed("software is no reason to take hardware away")
    if situation.node is None:
        return _closed(f"{verdict.component} is not a part of one node")
    return None


def _as_option(action: Action, way: _Way, lost: float | None, situation: Situation) -> Option:
    if not way.is_open:
        return Option(action=action, cost=Cost(), reason=way.reason)
    if lost is None:
        return Option(action=action, cost=Cost(downtime_s=0.0), reason="what it costs is not known yet")
    price = situation.gpu_hour_price
    cost = Cost(
        downtime_s=way.downtime_s,
        waf_after=round(way.speed, 4),
        gpu_hours=round(lost, 2),
        money=None if price is None else round(lost * price, 2),
        risk=round(way.risk, 4),
    )
    return Option(action=action, cost=cost, reason=way.reason)


def _expect_losses(ways: Mapping[Action, _Way], situation: Situation) -> dict[Action, float]:
    """Return by action the GPU-hours that are expected to be lost until the horizon."""
    horizon_h = horizon_s(situation.job, situation.cluster) / 3600
    called_h = (1 - situation.speed_now) * min(situation.durations.person_s / 3600, horizon_h)
    lost: dict[Action, float] = {}
    # From the last rung down, because each is charged with what follows it.
    for action, way in sorted(ways.items(), key=lambda each: rung_of(each[0])):
        follows = [hours for above, hours in lost.items() if above != "none" and rung_of(above) < rung_of(action)]
        if way.is_open and (action != "none" or situation.is_cost_known):
            lost[action] = _lost_hours(way, horizon_h, min(follows, default=called_h))
    return {action: situation.job.gpus * hours for action, hours in lost.items()}


def _lost_hours(way: _Way, horizon_h: float, follows_h: float) -> float:
    """Return hours of the whole job that are lost: at once, then by missing speed, or by what follows."""
    at_once_h = (way.downtime_s + way.again_s) / 3600
    missing_h = (1 - way.speed) * max(horizon_h - at_once_h, 0.0)
    return at_once_h + (1 - way.risk) * missing_h + way.risk * follows_h
