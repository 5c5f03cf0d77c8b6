"""Every recovery option with what it costs: seconds of standstill, speed afterwards, GPU-hours, money, risk.

A cost counts what is lost until the horizon: the standstill, the work since the checkpoint that is done again, and
the speed that is missing afterwards. What does not help has cost its time and is followed by the next level of the
escalation, so a risky cure is charged with what would follow; after the last level a person is called.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lockstep.decision import Action, Cost, Option
from lockstep.in_job import InJobAct
from planner.context import Context, JobFacts, Layout, Resume, horizon_s, is_hardware, is_in_the_fabric
from planner.escalation import is_alarm, level_of

MOVES: tuple[Action, ...] = ("reconfigure", "replace")  # start the job again elsewhere, from a checkpoint

# How often a cure does not help, where nothing better is known: ByteRobust resolved 22.7 % of its faults by trying
# again and 32.5 % by taking machines away; a part that the analyzer would isolate is seldom cured by a new process.
_RISK_OF_REATTEMPT = 0.77
_RISK_OF_NEW_PROCESS = 0.5
_RISK_ON_BAD_HARDWARE = 0.95


_PER_STAGE = 4  # micro-batches a replica where nothing is known: Megatron's advice is at least four times the stages


@dataclass(frozen=True, slots=True)
class Share:
    """How the others share the work of the lost one."""

    each: int  # micro-batches of a replica before
    most: int  # of the fullest replica afterwards
    reason: str


def count_lost_replicas(context: Context) -> int:
    """Return how many replicas a job has on the nodes that would be taken away: some of one count as all of it."""
    layout, nodes = context.job.layout, max(len(context.job.nodes), 1)
    return math.ceil((layout.replicas if layout else 1) * max(len(context.nodes), 1) / nodes)


def share_micro_batches(layout: Layout, lost: int = 1) -> Share:
    """Return who does the micro-batches of lost replicas, of which others are left.

    >>> share_micro_batches(Layout(stages=4, replicas=8, micro_batches=32)).reason
    '32 micro-batches of each step go to 7 replicas: 4 do 37 and 3 do 36'
    """
    each, left = layout.micro_batches or _PER_STAGE * layout.stages, layout.replicas - lost
    least, more = divmod(each * layout.replicas, left)
    loads = {least + 1: more, least: left - more} if more else {least: left}
    message = " and ".join(f"{count} do {load}" for load, count in loads.items())
    guessed = "" if layout.micro_batches else ", if there are four for each stage"
    return Share(each, max(loads), f"{each} micro-batches of each step go to {left} replicas: {message}{guessed}")


def speed_rerouted(layout: Layout, share: Share) -> float:
    """Return the share of speed with one worker's micro-batches done by its peers (lower bound of ReCycle's period).

    >>> layout = Layout(stages=4, replicas=8, micro_batches=32)
    >>> round(speed_rerouted(layout, share_micro_batches(layout)), 3)
    0.946
    """
    fault_free = share.each + layout.stages - 1
    return fault_free / max(fault_free, share.most)


def speed_without_replica(layout: Layout, share: Share) -> float:
    """Return the share of speed when the other replicas do the whole batch, bubble included.

    >>> layout = Layout(stages=4, replicas=8, micro_batches=32)
    >>> round(speed_without_replica(layout, share_micro_batches(layout)), 3)
    0.875
    """
    return (share.each + layout.stages - 1) / (share.most + layout.stages - 1)


@dataclass(frozen=True, slots=True)
class _Recovery:
    """How to recover, or why that is unavailable."""

    reason: str
    is_available: bool = True
    downtime_s: float = 0.0
    again_s: float = 0.0  # of work that is done again
    speed: float = 1.0  # afterwards, if it helps
    risk: float = 0.0


def weigh(context: Context) -> list[Option]:
    """Return every option with its cost, the cheapest first; unavailable ones come last, without a cost."""
    recoveries = {action: recovery(context) for action, recovery in _RECOVERIES.items()}
    lost = _expect_losses(recoveries, context)
    options = [_as_option(action, recovery, lost.get(action), context) for action, recovery in recoveries.items()]
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


def begins_anew(action: Action, context: Context) -> bool:
    """Return whether a start would lose all the work of the job, for want of a checkpoint or a replica."""
    if action == "restart_process" and not context.cluster.restarts_whole_job:
        return not _list_sources(context)
    return action in (*MOVES, "restart_process") and resume_for(action, context.job) is None


def _none(context: Context) -> _Recovery:
    if context.stands_still:  # without a checkpoint the work so far is lost, whoever acts and when
        again_s = 0.0 if context.job.resume else context.job.age_s or 0.0
        return _Recovery("the job stands still until somebody acts", again_s=again_s, speed=0.0)
    return _Recovery(f"the job goes on at {context.speed_now:.0%} of its speed", speed=context.speed_now)


def _reroute(context: Context) -> _Recovery:
    if not is_in_the_fabric(context.verdict.component, context.hosts):
        return _unavailable(f"no path leads around {context.verdict.component}")
    cluster = context.cluster
    if not cluster.can_reroute:
        return _unavailable("no path planner runs here")
    if cluster.enforced_share <= 0:
        return _unavailable("no connection keeps to the path plan, which is advice to RoCE and InfiniBand")
    some = "" if cluster.enforced_share >= 1 else f" ({cluster.enforced_share:.0%} of them keep to the plan)"
    return _Recovery(
        f"flows{some} go around {context.verdict.component}, and the job goes on",
        risk=1 - context.verdict.confidence * cluster.enforced_share,
    )


def _reattempt(context: Context) -> _Recovery:
    if not context.stands_still:
        return _unavailable("a slow part is not cured by trying again")
    cluster = context.cluster
    if not cluster.can_restart:
        return _unavailable("no job controller is set that could have the job try again")
    if "reattempt" not in cluster.acts:
        return _unavailable(f"{cluster.controller or 'the controller'} cannot let a job try again in place")
    risk = _RISK_ON_BAD_HARDWARE if context.verdict.grade == "isolate" else _RISK_OF_REATTEMPT
    return _Recovery("the operation is tried again in place", downtime_s=context.durations.reattempt_s, risk=risk)


def _restart_process(context: Context) -> _Recovery:
    verdict = context.verdict
    if verdict.fault_class == "global_slow" and not context.stands_still:
        return _unavailable("nobody stands out: what makes everybody slow is there after a restart as well")
    if not context.stands_still and (is_hardware(verdict.component) or not is_alarm(verdict.impact.step_time_ratio)):
        return _unavailable(f"{verdict.component} is as slow under a new process")
    is_bad = verdict.grade == "isolate" and is_hardware(verdict.component)
    risk = _RISK_ON_BAD_HARDWARE if is_bad else _RISK_OF_NEW_PROCESS
    sources = _list_sources(context)
    if context.cluster.restarts_whole_job or not sources:
        if is_bad and context.node is not None:
            return _unavailable(f"the job would start again on {verdict.component}, which is at fault")
        return _restart_all(context, risk)
    load_s, again_s, name = min(sources, key=lambda source: source[0] + source[1])
    return _Recovery(
        f"the process starts again on its node, with its state from {name}",
        downtime_s=context.durations.restart_process_s + load_s,
        again_s=again_s,
        risk=risk,
    )


def _restart_all(context: Context, risk: float) -> _Recovery:
    """Return what a new process costs where only whole jobs start: a new attempt on the same nodes."""
    start = _find_start(context, context.job.resume)
    if start is None:
        return _unavailable("no checkpoint is verified complete, and a slow job is not begun anew")
    return _Recovery(
        f"the controller restarts the whole job on its nodes, {start.words}",
        downtime_s=context.durations.start_s + start.back_s,
        again_s=start.again_s,
        risk=risk,
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """What a job starts from."""

    words: str
    back_s: float = 0.0  # until its state is loaded
    again_s: float = 0.0  # of work that is done again


def _find_start(context: Context, resume: Resume | None) -> _Start | None:
    """Return the checkpoint; the beginning of a job that stands still and has none; None: it had better go on."""
    job = context.job
    if resume is not None:
        converted = f", converted first in {resume.convert_s:.0f} s" if resume.convert else ""
        words = f"from the checkpoint of {resume.age_s:.0f} s ago{converted}"
        return _Start(words, resume.back_s, resume.age_s)
    if job.resume is not None or not context.stands_still:
        return None
    lost = "how much work is lost is not known" if job.age_s is None else f"{job.age_s / 3600:.1f} h of work are lost"
    return _Start(f"from the beginning, as no checkpoint is verified complete: {lost}", 0.0, job.age_s or 0.0)


def _list_sources(context: Context) -> list[tuple[float, float, str]]:
    """Return where one process gets its state from: seconds to load, seconds of work done again, and what it is."""
    job, sources = context.job, list[tuple[float, float, str]]()
    if job.layout and job.layout.replicas > 1:  # a replica of this very step
        per_node = job.resume.bytes / max(len(job.nodes), 1) if job.resume else 0.0
        sources.append((per_node / context.durations.peer_bytes_per_s, 0.0, "a replica"))
    if job.resume:
        sources.append((job.resume.back_s, job.resume.age_s, "the last checkpoint"))
    return sources


def _recycle(context: Context) -> _Recovery:
    lacks = "only pipelines with replicas can hand their micro-batches to a peer"
    what = "peers of the lost worker take over its micro-batches"
    return _shrink(context, "recycle", what, speed_rerouted, least_stages=2, lacks=lacks)


def _drop_replica(context: Context) -> _Recovery:
    lacks = "there is no second replica to go on with"
    what = "the replica is left out, and the others do its share of the batch"
    return _shrink(context, "drop_replica", what, speed_without_replica, least_stages=1, lacks=lacks)


def _shrink(
    context: Context,
    action: InJobAct,
    what: str,
    speed_of: Callable[[Layout, Share], float],
    least_stages: int,
    lacks: str,
) -> _Recovery:
    """Return how a job goes on without one of its nodes, while others do the work that was done there."""
    if unavailable := _no_node(context):
        return unavailable
    if action not in context.job.can:
        return _unavailable("the job has not said that it can go on without a worker")
    layout = context.job.layout
    if layout is None or layout.stages < least_stages or layout.replicas < 2:
        return _unavailable(lacks)
    lost = count_lost_replicas(context)
    if lost >= layout.replicas:
        return _unavailable(f"all {layout.replicas} replicas run there")
    share = share_micro_batches(layout, lost)
    measured_s, told = context.job.standstill_s, context.job.speed_after if lost == 1 else None
    return _Recovery(
        f"{what}: {share.reason}",
        downtime_s=context.durations.rebuild_s if measured_s is None else measured_s,
        speed=speed_of(layout, share) if told is None else told,
        risk=1 - context.verdict.confidence,
    )


def _reconfigure(context: Context) -> _Recovery:
    job, left = context.job, len(context.job.nodes) - max(len(context.nodes), 1)
    return _move(context, left, job.resume_smaller, f"the job starts again on {left} nodes {job.say_speed_on(left)}")


def _replace(context: Context) -> _Recovery:
    lost, spares = context.nodes, context.cluster.spares
    if not spares:
        return _unavailable("no spare node is idle")
    if len(spares) < len(lost):
        return _unavailable(f"{len(lost)} nodes are to be replaced and {len(spares)} idle")
    job, taken = context.job, " and ".join(spares[: max(len(lost), 1)])
    what = f"the job starts again with {taken} instead of {' and '.join(lost)}"
    return _move(context, len(job.nodes), job.resume, what)


def _move(context: Context, nodes: int, resume: Resume | None, what: str) -> _Recovery:
    """Return a restart on other nodes from the last complete checkpoint that they can load."""
    if unavailable := _no_node(context):
        return unavailable
    job = context.job
    if not job.nodes:
        return _unavailable("nobody knows which nodes the job has")
    if nodes < job.min_nodes:
        return _unavailable(f"the job needs {job.min_nodes} nodes and {nodes} would be left")
    start = _find_start(context, resume)
    if start is None:
        return _unavailable(f"there is no checkpoint that was verified to be complete and loads on {nodes} nodes")
    return _Recovery(
        f"{what}, {start.words}",
        downtime_s=context.durations.start_s + start.back_s,
        again_s=start.again_s,
        speed=job.speed_on(nodes),
        risk=1 - context.verdict.confidence,
    )


_RECOVERIES: dict[Action, Callable[[Context], _Recovery]] = {
    "none": _none,
    "reroute": _reroute,
    "reattempt": _reattempt,
    "restart_process": _restart_process,
    "recycle": _recycle,
    "drop_replica": _drop_replica,
    "reconfigure": _reconfigure,
    "replace": _replace,
}


def _unavailable(why: str) -> _Recovery:
    return _Recovery(f"unavailable: {why}", is_available=False)


def _no_node(context: Context) -> _Recovery | None:
    """Return why no node can be taken away; None where one can."""
    verdict = context.verdict
    if verdict.fault_class == "software":
        return _unavailable("software is no reason to take hardware away")
    if context.node is None:
        return _unavailable(f"{context.part} is not a part of one node")
    return None


def _as_option(action: Action, recovery: _Recovery, lost: float | None, context: Context) -> Option:
    if not recovery.is_available:
        return Option(action=action, cost=Cost(), reason=recovery.reason)
    if lost is None:
        return Option(action=action, cost=Cost(downtime_s=0.0), reason="what it costs is not known yet")
    price = context.gpu_hour_price
    cost = Cost(
        downtime_s=recovery.downtime_s,
        throughput_after=round(recovery.speed, 4),
        gpu_hours=round(lost, 2),
        money=None if price is None else round(lost * price, 2),
        risk=round(recovery.risk, 4),
    )
    return Option(action=action, cost=cost, reason=recovery.reason)


def _expect_losses(recoveries: Mapping[Action, _Recovery], context: Context) -> dict[Action, float]:
    """Return by action the GPU-hours lost until the horizon: at once, then by missing speed, or by what follows."""
    horizon_h = horizon_s(context.job, context.cluster) / 3600
    called_h = (1 - context.speed_now) * min(context.durations.person_s / 3600, horizon_h)
    lost: dict[Action, float] = {}
    # From the last level down, because each is charged with what follows it.
    for action, recovery in sorted(recoveries.items(), key=lambda each: level_of(each[0])):
        follows = [hours for above, hours in lost.items() if above != "none" and level_of(above) < level_of(action)]
        if recovery.is_available and (action != "none" or context.verdict.speed is not None):
            at_once_h = (recovery.downtime_s + recovery.again_s) / 3600
            missing_h = (1 - recovery.speed) * max(horizon_h - at_once_h, 0.0)
            next_h = recovery.risk * min(follows, default=called_h)
            lost[action] = at_once_h + (1 - recovery.risk) * missing_h + next_h
    return {action: context.job.gpus * hours for action, hours in lost.items()}
