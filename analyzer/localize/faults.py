"""Question 6: which set of faults explains all slow pairs, as findings with their reasons."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from analyzer.delay_matrix.matrix import DelayMatrix, InnerMatrix, PathKey, paths_through
from analyzer.evidence.observations import Evidence
from analyzer.localize.naming import Fault, name_faults, pass_on_to_dead_port
from analyzer.localize.parts import Suspects, list_inner_suspects, list_suspects
from analyzer.localize.search import FALSE_ALARM, MISS, MISS_UNSEEN, Cables, Likelihood, Search
from analyzer.windows.window import Context, Finding
from lockstep.clock import rfc3339
from lockstep.topology import TopologyIndex
from lockstep.verdict import Side

_PAIRS_SHOWN = 8
_MOST_OFF = 10.0  # in logarithms: beyond, nothing is known of a ratio
_OBSERVATIONS_SHOWN = 4
_WHICH: dict[Side | None, str] = {None: "both ways", "tx": "sending", "rx": "receiving"}
# Of flows whose way is drawn, most meet another on some link; of one in ten it shows. Each further one on that link
# makes it slower by as much as one flow takes, and is as rare; at five times as long it is any false alarm again.
_MEETS_ANOTHER, _MOST_MET = 0.1, 4.0
_INNER_CAP = 0.8  # kernels' durations stand for links; seen simulated only


def report_fault(fault: Fault, matrix: DelayMatrix, evidence: Evidence, context: Context) -> Finding:
    """Return the finding on a part that makes wires slow."""
    seen = evidence.describe(fault.component, fault.side)[:_OBSERVATIONS_SHOWN]
    return Finding(
        fault_class="comm_slow",
        component=fault.component,
        side=fault.side,
        likelihood=round(fault.likelihood, 4),
        reason=_reason(fault, matrix, seen),
        evidence=(_matrix_evidence(fault.members, matrix, context), *seen),
        ruled_out=fault.ruled_out,
        ambiguous_with=fault.ambiguous_with,
        may_isolate=_may_isolate(fault),
    )


def report_inner(fault: Fault, inner: InnerMatrix, evidence: Evidence) -> Finding:
    """Return the finding on an NVLink that makes operations inside a host slow, or on the host that has it."""
    seen = evidence.describe(fault.component, fault.side)[:_OBSERVATIONS_SHOWN]
    slow = np.flatnonzero(fault.members).tolist()
    times = float(np.median(inner.ratio[slow]))
    doubt = f"; which of {', '.join(fault.ambiguous_with)} it is cannot be said" if fault.ambiguous_with else ""
    return Finding(
        fault_class="comm_slow",
        component=fault.component,
        likelihood=round(fault.likelihood, 4),
        reason=(
            f"operations that do not leave the host take {times:.1f} times as long through {fault.component} as on "
            f"other hosts{_agreeing(seen)}{doubt}"
        ),
        evidence=(
            {
                "kind": "inner_matrix",
                "groups_compared": len(inner.groups),
                "slow_groups": [
                    {"host": inner.groups[number].host, "gpus": list(inner.groups[number].gpus)}
                    | {"ratio": round(float(inner.ratio[number]), 2)}
                    for number in slow[:_PAIRS_SHOWN]
                ],
            },
            *seen,
        ),
        ruled_out=fault.ruled_out,
        ambiguous_with=fault.ambiguous_with,
        cap=_INNER_CAP,
        may_isolate=True,  # whichever it is, it is in that host
    )


def _may_isolate(fault: Fault) -> bool:
    """Return whether draining one node would help: one part of it is named, and nothing but its own cable beside."""
    host = fault.component.partition(":")[2].split("/")[0]
    others = (name.partition(":")[2].split("/")[0] for name in fault.ambiguous_with)
    return fault.kind in ("nic", "host", "pcie", "nvlink") and all(other == host for other in others)


def _reason(fault: Fault, matrix: DelayMatrix, seen: tuple[dict[str, Any], ...]) -> str:
    times = float(np.median(matrix.ratio[fault.members]))
    count, normal = int(fault.members.sum()), int((~matrix.slow & ~matrix.hidden).sum())
    if fault.moved_to:
        return (
            f"{fault.component} has no carrier, and {fault.moved_to}, which carries its traffic as well, "
            f"needs {times:.1f} times the wire time per byte on {count} connections"
        )
    doubt = f"; cannot be told apart from {' or '.join(fault.ambiguous_with)}" if fault.ambiguous_with else ""
    connections = "connection" if count == 1 else "connections"
    which = f", {_WHICH[fault.side]}," if fault.kind in ("nic", "host", "link", "pair") else ""
    return (
        f"{fault.component} needs {times:.1f} times the wire time per byte{which} on {count} {connections}, "
        f"while {normal} others that carry the same are normal{_agreeing(seen)}{doubt}"
    )


def _agreeing(seen: tuple[dict[str, Any], ...]) -> str:
    """Return the weightiest observation that speaks for a part, as the end of a sentence."""
    return next(
        (f"; {observation['what']}" for observation in seen if observation["weight"] > 0 and "what" in observation),
        "",
    )


def _matrix_evidence(members: np.ndarray, matrix: DelayMatrix, context: Context) -> dict[str, Any]:
    worst = sorted(np.flatnonzero(members).tolist(), key=lambda number: -matrix.ratio[number])[:_PAIRS_SHOWN]
    return {
        "kind": "delay_matrix",
        "from": rfc3339(context.window.start_ns),
        "to": rfc3339(context.window.end_ns),
        "pairs_compared": len(matrix.pairs),
        "median_ns_per_byte": round(float(np.median(matrix.ns_per_byte)), 4),
        "slow_pairs": [_pair_evidence(matrix, number) for number in worst],
        "silent_hosts": sorted(context.silent),
    }


def _pair_evidence(matrix: DelayMatrix, number: int) -> dict[str, Any]:
    pair = matrix.pairs[number]
    off = np.exp(min(float(matrix.error[number]), _MOST_OFF))
    return {
        "from": str(pair.src),
        "to": str(pair.dst),
        **({"path": list(pair.path)} if pair.path else {}),
        "ns_per_byte": round(float(matrix.ns_per_byte[number]), 4),
        "ratio": round(float(matrix.ratio[number]), 2),
        "ratio_from": round(float(matrix.ratio[number] / off), 2),
        "ratio_to": round(float(matrix.ratio[number] * off), 2),
        "operations": int(matrix.operations[number]),
        "sigmas": round(float(matrix.sigmas[number]), 1),
    }


# How far to trust a delay matrix by transport. Sockets were compared with recordings of real NCCL; InfiniBand's wire
# time ends with the acknowledgement, which is clearer, but we have only seen it simulated; others not even that.
CAPS: dict[str | None, float] = {"ib": 0.9, "socket": 0.9, "p2p": 0.8, "shm": 0.8, "ofi": 0.7, None: 0.6}
_LOWEST_CAP = 0.5


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """How much is said."""

    most_faults: int = 8  # at once in a small job; more, and the fabric is in trouble as a whole: nobody stands out
    hosts_per_fault: int = 16  # large jobs have more of them
    least_likelihood: float = 0.1  # less, and ten others are as good: naming one would be a guess
    caps: dict[str | None, float] = field(default_factory=lambda: CAPS)


DEFAULT = FaultOptions()


def find_faults(
    matrix: DelayMatrix, evidence: Evidence, context: Context, options: FaultOptions = DEFAULT
) -> list[Finding]:
    """Return the parts at fault, the one that explains most first; nothing when no pair is slow.

    Pairs of starved hosts have an excuse, and say nothing about the parts that they run through.
    """
    seen = _without_hosts(matrix, matrix.starved)
    cap = min((options.caps.get(transport, _LOWEST_CAP) for transport in matrix.transports), default=_LOWEST_CAP)
    faults = explain(seen, evidence, context)
    most = options.most_faults + len({pair.src.host for pair in seen.pairs}) // options.hosts_per_fault
    faults = [pass_on_to_dead_port(fault, evidence) for fault in faults]
    likely = [fault for fault in faults if fault.likelihood >= options.least_likelihood and len(faults) <= most]
    inner = (
        [report_inner(fault, matrix.inner, evidence) for fault in explain_inner(matrix, evidence)]
        if matrix.inner
        else []
    )
    slow = [replace(report_fault(fault, seen, evidence, context), cap=cap) for fault in likely]
    return [replace(finding, is_stale=matrix.is_stale) for finding in (*slow, *inner)]


def explain(matrix: DelayMatrix, evidence: Evidence, context: Context) -> list[Fault]:
    """Return the faults that together explain the slow pairs best."""
    if not matrix.slow.any():
        return []
    suspects = list_suspects(matrix, context.topology)
    # What is slow caps the rate: a pair that shared another link before loses less by it, by up to that much.
    times = matrix.ratio * np.sqrt(matrix.shared)
    miss = np.where(matrix.ns_per_byte > 0, MISS, MISS_UNSEEN)
    meeting = _count_meeting(matrix, context.topology)
    met = _MEETS_ANOTHER ** np.clip(matrix.ratio - 1, 1, _MOST_MET)
    chance = np.where(meeting > 0, met, FALSE_ALARM)
    normal, cables = np.where(matrix.hidden, 1.0, miss), Cables(context.topology)

    def explained(chance: np.ndarray) -> list[Fault]:
        return _explain(_weigh(suspects, times, matrix.slow, normal, chance, meeting), evidence, cables)

    faults = explained(chance)
    common = _share_unexplained(matrix, faults)
    return explained(np.maximum(chance, common)) if common > FALSE_ALARM else faults


def _share_unexplained(matrix: DelayMatrix, faults: list[Fault]) -> float:
    """Return how common slow pairs are among those that no fault explains: it needs none to be one of them."""
    explained = np.logical_or.reduce([np.zeros(len(matrix.pairs), bool), *(fault.members for fault in faults)])
    others = int((~explained).sum())
    return int((matrix.slow & ~explained).sum()) / others if others else 0.0


def explain_inner(matrix: DelayMatrix, evidence: Evidence) -> list[Fault]:
    """Return the faults that together explain the slow groups inside hosts; starved hosts have an excuse."""
    inner = matrix.inner
    if inner is None:
        return []
    excused = np.array([group.host in matrix.starved for group in inner.groups], bool)
    slow = inner.slow & ~excused
    suspects = list_inner_suspects(replace(inner, slow=slow))
    none = np.zeros(len(slow))
    weighed = _weigh(suspects, inner.ratio, slow, none + MISS, none + FALSE_ALARM, none)
    return _explain(weighed, evidence, Cables(None)) if slow.any() else []


def _count_meeting(matrix: DelayMatrix, topology: TopologyIndex | None) -> np.ndarray:
    """Return of each pair how many slow ones may share links between switches with it, as they may always have done.

    They go by one of several ways between the same leaves, nobody knows which, and were held against others alone. 0
    for all other pairs.
    """
    groups: dict[PathKey, list[int]] = defaultdict(list)
    paths = paths_through(topology) if topology and topology.topology.routing == "ecmp" else None
    for number in np.flatnonzero(matrix.slow & ~matrix.has_past).tolist() if paths else ():
        pair = matrix.pairs[number]
        if paths and not pair.path and any(hop.share < 1 for hop in paths.hops(pair)):
            groups[paths.path_of(pair)].append(number)
    meeting = np.zeros(len(matrix.pairs))
    for numbers in groups.values():
        meeting[numbers] = len(numbers)
    return meeting


def _weigh(
    suspects: Suspects,
    ratio: np.ndarray,
    slow: np.ndarray,
    miss: np.ndarray,
    chance: np.ndarray,
    meeting: np.ndarray,
) -> Likelihood:
    excess = np.log(np.clip(np.nan_to_num(ratio, nan=1.0), 1e-3, 1e3))  # a clock that jumped is no figure
    return Likelihood(suspects, excess, slow, miss, chance, 1 / np.maximum(meeting, 1))


def _explain(likelihood: Likelihood, evidence: Evidence, cables: Cables) -> list[Fault]:
    search = Search(likelihood, evidence, cables)
    return name_faults(search, search.explain(), cables)


def _without_hosts(matrix: DelayMatrix, hosts: frozenset[str]) -> DelayMatrix:
    """Return the matrix without the pairs of some hosts: they say nothing about the parts they run through."""
    if not hosts:
        return matrix
    kept = np.array([pair.src.host not in hosts and pair.dst.host not in hosts for pair in matrix.pairs], bool)
    return replace(
        matrix,
        pairs=tuple(pair for pair, is_kept in zip(matrix.pairs, kept.tolist(), strict=True) if is_kept),
        ratio=matrix.ratio[kept],
        sigmas=matrix.sigmas[kept],
        slow=matrix.slow[kept],
        ns_per_byte=matrix.ns_per_byte[kept],
        error=matrix.error[kept],
        operations=matrix.operations[kept],
        shared=matrix.shared[kept],
        hidden=matrix.hidden[kept],
        has_past=matrix.has_past[kept],
    )
