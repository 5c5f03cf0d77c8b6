"""The stages in their order: facts of one window in, verdicts on that window out."""

from dataclasses import dataclass, field

import numpy as np

from analyzer.blame import Blame, find_blame
from analyzer.delay import DelayMatrix, DelayOptions, build_matrix
from analyzer.facts import WindowFacts
from lockstep.clock import rfc3339
from lockstep.topology import TopologyIndex
from lockstep.verdict import Impact, Verdict

# How far to trust a delay matrix by transport. InfiniBand's wire time ends with the acknowledgement, but we have only
# seen it simulated; a socket's ends when the kernel took the bytes, so megabytes of buffer can hide a slow link.
CONFIDENCE_CAPS: dict[str | None, float] = {"ib": 0.9, "ofi": 0.7, "socket": 0.5, None: 0.5}
_LOWEST_CAP = 0.5
_PAIRS_IN_EVIDENCE = 8


@dataclass(frozen=True, slots=True)
class AnalyzerOptions:
    """All thresholds of all stages, with their reasons beside them."""

    delay: DelayOptions = field(default_factory=DelayOptions)
    isolate_confidence: float = 0.95  # above every cap: nothing here has been proven on hardware yet


def judge(
    facts: WindowFacts, topology: TopologyIndex | None, usual_pace: float | None, options: AnalyzerOptions
) -> list[Verdict] | None:
    """Return one verdict per part at fault in this window; an empty list means silence, not health.

    None means that there was too little to compare: the window says nothing, not even that a fault is over.
    """
    matrix = build_matrix(facts.pairs, topology, options.delay)
    if matrix is None:
        return None
    return [_verdict(blame, matrix, facts, usual_pace, options) for blame in find_blame(matrix, topology)]


def _verdict(
    blame: Blame, matrix: DelayMatrix, facts: WindowFacts, usual_pace: float | None, options: AnalyzerOptions
) -> Verdict:
    cap = min(CONFIDENCE_CAPS.get(transport, _LOWEST_CAP) for transport in matrix.transports)
    confidence = round(min(blame.likelihood, cap), 3)
    return Verdict(
        id="",
        job=facts.job,
        attempt=facts.attempt,
        fault_class="comm_slow",
        component=blame.component,
        side=blame.side,
        confidence=confidence,
        grade="isolate" if confidence >= options.isolate_confidence else "alert",
        since_ns=facts.window.start_ns,
        last_seen_ns=facts.window.end_ns,
        impact=_impact(facts, usual_pace),
        reason=_reason(blame, matrix),
        evidence=(_evidence(blame, matrix, facts),),
        ruled_out=blame.ruled_out,
        ambiguous_with=blame.ambiguous_with,
        coverage=round(facts.coverage, 4),
    )


def _impact(facts: WindowFacts, usual_pace: float | None) -> Impact:
    ratio = round(usual_pace / facts.pace, 3) if usual_pace and facts.pace else None
    return Impact(step_time_ratio=ratio, ranks_waiting=max(facts.ranks - 1, 0))


def _reason(blame: Blame, matrix: DelayMatrix) -> str:
    times = float(np.median(matrix.ratio[blame.members]))
    count, normal = int(blame.members.sum()), int((~matrix.hot).sum())
    which = {None: "both ways", "tx": "sending", "rx": "receiving"}[blame.side]
    doubt = f"; it could as well be {' or '.join(blame.ambiguous_with)}" if blame.ambiguous_with else ""
    connections = "connection" if count == 1 else "connections"
    return (
        f"{blame.component} needs {times:.1f} times the wire time per byte, {which}, on {count} {connections}, "
        f"while {normal} others that carry the same are normal{doubt}"
    )


def _evidence(blame: Blame, matrix: DelayMatrix, facts: WindowFacts) -> dict[str, object]:
    worst = sorted(np.flatnonzero(blame.members), key=lambda index: -matrix.ratio[index])[:_PAIRS_IN_EVIDENCE]
    return {
        "kind": "delay_matrix",
        "from": rfc3339(facts.window.start_ns),
        "to": rfc3339(facts.window.end_ns),
        "pairs_compared": len(matrix.pairs),
        "median_ns_per_byte": round(float(np.median(matrix.ns_per_byte)), 4),
        "slow_pairs": [
            {
                "from": str(matrix.pairs[index][0]),
                "to": str(matrix.pairs[index][1]),
                "ns_per_byte": round(float(matrix.ns_per_byte[index]), 4),
                "ratio": round(float(matrix.ratio[index]), 2),
                "sigmas": round(float(matrix.sigmas[index]), 1),
            }
            for index in worst
        ],
        "silent_hosts": sorted(facts.silent),
    }
