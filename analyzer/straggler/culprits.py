"""Says of a culprit what it is, why, and why not another, as a finding that a person can act on."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from analyzer.straggler.excess import Excess, spread_of, without_worst
from analyzer.windows.jobs import Process
from analyzer.windows.window import Context, Finding
from lockstep.verdict import FaultClass, RuledOut

# One GPU; all GPUs of a host; a rank whose process enqueues late; all ranks of a host that do.
Kind = Literal["gpu", "hot_host", "rank", "host"]

# Far outside, with a median of others that one odd one among them cannot move, at a cost that is no noise.
_SURE_SIGMAS, _SURE_PEERS, _SURE_SHARE = 10.0, 3, 0.05
_LIKELY, _LESS_LIKELY = 0.97, 0.88
_THAN = {"peers": "its peers", "before": "it used to, and no other stage does,"}
_OF_ALL = {"peers": "their peers", "before": "they used to, and no other stage does"}
_UNKNOWN_WHY = 0.6  # slow GPUs are more common than late processes, but not by much
_PAUSES = 0.6  # that the host of rank 0 makes it late now and then, and not what the program does there


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """One or more processes that are late for one reason."""

    kind: Kind
    processes: tuple[int, ...]
    share: float  # of the time, lost to it
    sigmas: float  # how far it lies outside of its peers
    peers: int  # how many it was compared with
    than: Literal["peers", "before"] = "peers"  # what it is slower than: those, or itself, which they are not
    is_once_per_step: bool = False
    knows_why: bool = True  # whether the GPU or the process is late; else only that the rank is
    is_pausing: bool = False  # rank 0 alone, late in some steps: it saves, logs and evaluates
    slow_steps: int = 0  # when it was slow only now and then: how often
    since_ns: int | None = None
    is_stale: bool = False  # late in nothing that the evaluation before had not seen


def make_finding(culprit: Culprit, throttled: Mapping[tuple[str, int], str], context: Context) -> Finding:
    """Return the finding for a culprit."""
    first = context.roster.process(culprit.processes[0])
    gpu = first.gpu_name
    is_gpu = culprit.kind == "gpu" and gpu is not None
    heat = throttled.get((first.host, first.gpu if first.gpu is not None else -1)) if is_gpu else None
    fault_class: FaultClass = "software" if culprit.kind == "host" and culprit.is_once_per_step else "noncomm_slow"
    return Finding(
        fault_class=fault_class,
        component=gpu if is_gpu and gpu else first.host_name,
        likelihood=_likelihood(culprit, heat),
        reason=_reason(culprit, first, heat),
        evidence=tuple(_evidence(culprit, context)),
        ruled_out=_ruled_out(culprit, first, context),
        ambiguous_with=_ambiguous_with(culprit, first, context),
        ranks_waiting=max(context.roster.ranks - len(culprit.processes), 0),
        lost_share=min(max(culprit.share, 0.0), 1.0),
        since_ns=culprit.since_ns,
        is_stale=culprit.is_stale,
        may_isolate=culprit.kind in ("gpu", "hot_host") and culprit.knows_why,
    )


def _ambiguous_with(culprit: Culprit, first: Process, context: Context) -> tuple[str, ...]:
    if not culprit.knows_why and culprit.kind == "gpu":
        return (first.host_name, first.rank_name)
    if culprit.kind != "rank":
        return ()
    return tuple(context.roster.process(number).rank_name for number in culprit.processes)


def _likelihood(culprit: Culprit, heat: str | None) -> float:
    if not culprit.knows_why and not heat:
        return _UNKNOWN_WHY
    if culprit.is_pausing:
        return _PAUSES
    is_sure = (
        culprit.sigmas >= _SURE_SIGMAS and culprit.peers >= _SURE_PEERS and culprit.share >= _SURE_SHARE
    ) or heat
    return _LIKELY if is_sure else _LESS_LIKELY


def _reason(culprit: Culprit, first: Process, heat: str | None) -> str:
    lost, name = f"{culprit.share:.0%} of the time", first.rank_name.replace(":", " ")
    if culprit.slow_steps:
        return (
            f"GPU {first.gpu} of {first.host} was far slower than its peers in {culprit.slow_steps} single steps, "
            f"always the same one ({lost} lost): test it"
        )
    if not culprit.knows_why:
        return (
            f"{name} on {first.host} waits least for others, and they for it {lost}; whether its GPU or its process "
            f"is late was not recorded: ask for detail of its operations"
        )
    others = f" and {len(culprit.processes) - 1} more" if len(culprit.processes) > 1 else ""
    match culprit.kind:
        case "gpu":
            why = f"it reports {heat}" if heat else "look at its clocks and errors, then test it"
            return (
                f"GPU {first.gpu} of {first.host} ({name}) computes longer than {_THAN[culprit.than]} before "
                f"operations that were enqueued in time; the others wait for it {lost}: {why}"
            )
        case "hot_host":
            return (
                f"all {len(culprit.processes)} GPUs of {first.host} compute longer than {_OF_ALL[culprit.than]}; "
                f"the others wait for them {lost}: look at power and cooling of the host"
            )
        case "rank" if culprit.is_pausing:
            return (
                f"the process of {name} on {first.host} enqueues late in some steps and not in others; the others "
                f"wait for it {lost}: see whether it saves, logs or evaluates in those, else look at its host"
            )
        case "rank":
            return (
                f"the process of {name}{others} on {first.host} enqueues late, its GPU is idle meanwhile; the others "
                f"wait for it {lost}: look at what the process does on the CPU"
            )
        case "host":
            what = (
                "late once a step and in time for the rest of it: look at its data loader and its storage"
                if culprit.is_once_per_step
                else "they did not before: look at its data loader, its storage and its CPU"
                if culprit.than == "before"
                else "late all over the step: look at its CPU"
            )
            return f"all ranks of {first.host} enqueue late, the others wait for them {lost}; {what}"


def _evidence(culprit: Culprit, context: Context) -> list[dict[str, Any]]:  # Any: as in Finding
    return [
        {
            "kind": "straggler",
            "rank": process.world_rank if process.world_rank is not None else process.number,
            "host": process.host,
            "gpu": process.gpu,
            "lost_share": round(culprit.share, 3),
            "sigmas": round(min(culprit.sigmas, 1e6), 1),
            "peers": culprit.peers,
            "late": "gpu" if culprit.kind in ("gpu", "hot_host") else "host",
        }
        for process in (context.roster.process(number) for number in culprit.processes)
    ]


def _ruled_out(culprit: Culprit, first: Process, context: Context) -> tuple[RuledOut, ...]:
    if not culprit.knows_why:
        return ()
    if culprit.kind == "gpu":
        others = int((context.roster.host_of == first.host).sum()) - 1
        alike = ", and not all of its GPUs are slow" if others else ""
        because = f"operations were enqueued in time{alike}"
        return (RuledOut(component=first.host_name, because=because),)
    gpu = first.gpu_name
    if culprit.kind in ("rank", "host") and gpu:
        return (RuledOut(component=gpu, because="it was idle before operations that were not enqueued yet"),)
    return ()


# By whether it is the GPU's doing and whether all of a host are late; where nobody knows, the GPU stands first.
KINDS: dict[tuple[bool, bool], Kind] = {
    (True, False): "gpu",
    (True, True): "hot_host",
    (False, False): "rank",
    (False, True): "host",
}


@dataclass(frozen=True, slots=True)
class GroupingOptions:
    """Which stragglers belong together, and how many culprits there can be."""

    most_culprits: int = 3  # GPUs or hosts at once, or this share of the hosts: more are no coincidence of faults
    most_hosts_share: float = 0.05
    host_share: float = 0.75  # of a host's ranks that are late alike: then it is the host
    gpu_share: float = 0.5  # of the delay in which the GPU was waited for: then it is the GPU
    once_per_step: float = 1.5  # late operations a step: more than the first one of a step is no data loader,
    once_share: float = 0.7  # unless others were in time: a starved CPU is late for nearly all operations
    every_share: float = 0.8  # of the steps: late in each by half as much more or less, 1 / (1 + 0.5^2)
    min_spread: float = 0.004  # of the time, as for finding them

    def limit(self, context: Context) -> float:
        """Return how many culprits a job can have at once."""
        return max(self.most_culprits, self.most_hosts_share * len(context.roster.hosts))


def are_too_many(stragglers: np.ndarray, context: Context, options: GroupingOptions) -> bool:
    """Say whether processes are late on so many hosts that it is a property of the job, not a set of faults.

    Asked before they are grouped, which takes a while when half of a large job is late.
    """
    return len(set(context.roster.host_of[stragglers].tolist())) > options.limit(context)


def group_stragglers(
    excess: Excess, stragglers: np.ndarray, context: Context, options: GroupingOptions
) -> list[Culprit]:
    """Return the culprits behind late processes."""
    hosts = context.roster.host_of[excess.processes]
    ranks_of = Counter(hosts.tolist()) if len(stragglers) else Counter[str]()
    by_gpu = _is_by_gpu(excess, options) | ~excess.knows_gpu
    groups: dict[tuple[str, bool], list[int]] = {}
    for row in stragglers.tolist():
        groups.setdefault((hosts[row], bool(by_gpu[row])), []).append(row)
    culprits = []
    for (host, is_gpu), rows in groups.items():
        is_whole = len(rows) > 1 and len(rows) >= options.host_share * ranks_of[host]
        parts = [[row] for row in rows] if is_gpu and not is_whole else [rows]
        culprits += [_as_culprit(excess, part, KINDS[is_gpu, is_whole], context, options) for part in parts]
    return culprits


def is_first_rank_alone(
    excess: Excess, stragglers: np.ndarray, context: Context, options: GroupingOptions
) -> np.ndarray:
    """Say of each straggler whether it is rank 0, not by its GPU's doing, and no other of its host is late.

    What the program has one rank do for all, it has rank 0 do: save, log and evaluate.
    """
    roster, processes = context.roster, excess.processes[stragglers]
    _, of, count = np.unique(roster.host_of[processes], return_inverse=True, return_counts=True)
    is_alone = (roster.world_rank_of[processes] == 0) & (count[of] == 1)
    late: np.ndarray = is_alone & ~(_is_by_gpu(excess, options) & excess.knows_gpu)[stragglers]
    return late


def _is_by_gpu(excess: Excess, options: GroupingOptions) -> np.ndarray:
    by_gpu: np.ndarray = without_worst(excess.gpu) >= options.gpu_share * excess.lasting
    return by_gpu


def _as_culprit(excess: Excess, rows: list[int], kind: Kind, context: Context, options: GroupingOptions) -> Culprit:
    lasting = excess.lasting
    spread = max(spread_of(lasting), options.min_spread)
    return Culprit(
        kind=kind,
        knows_why=bool(excess.knows_gpu[rows].any()),
        processes=tuple(int(excess.processes[row]) for row in rows),
        share=float(excess.waits.sum(axis=1)[rows].max()),
        sigmas=float((lasting[rows].min() - np.median(lasting)) / spread),
        peers=int(excess.peers[rows].min()),
        is_once_per_step=_is_once_per_step(excess, rows, context, options),
        is_pausing=bool(is_first_rank_alone(excess, np.array(rows), context, options)[0])
        and not _is_in_every_step(excess, rows[0], context, options),
        is_stale=not excess.is_late_still[rows].any(),
    )


def _is_in_every_step(excess: Excess, row: int, context: Context, options: GroupingOptions) -> bool:
    """Say whether one is late in about as many operations as there were steps since it was first."""
    steps = excess.since_share[row] * excess.span_ns / context.period_ns if context.period_ns else np.inf
    return bool(excess.spread_over[row] >= options.every_share * steps)


def _is_once_per_step(excess: Excess, rows: list[int], context: Context, options: GroupingOptions) -> bool:
    """Say whether the delay lies before about as many operations as there were steps, and not before all."""
    most = options.once_share * float(excess.operations[rows].mean())
    if context.period_ns:
        most = max(most, options.once_per_step * excess.span_ns / context.period_ns)
    return float(excess.spread_over[rows].mean()) <= most
