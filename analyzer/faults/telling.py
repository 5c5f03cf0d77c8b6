"""From a fault to a finding: a sentence a person can act on, and the figures behind it."""

from typing import Any

import numpy as np

from analyzer.context import Context
from analyzer.faults.naming import Fault
from analyzer.finding import Finding
from analyzer.signs.signs import Signs
from analyzer.wires.matrix import DelayMatrix, InnerMatrix
from lockstep.clock import rfc3339
from lockstep.topology import host_name
from lockstep.verdict import Side

_WIRES_IN_EVIDENCE = 8
_SIGNS_IN_EVIDENCE = 4
_WHICH: dict[Side | None, str] = {None: "both ways", "tx": "sending", "rx": "receiving"}
_INNER_CAP = 0.8  # kernels' durations stand for links; seen simulated only
_STARVED_LIKELIHOOD = (
    0.9  # the waits that only a slow proxy thread lengthens were long, too; one in ten is something else
)


def tell_fault(fault: Fault, matrix: DelayMatrix, signs: Signs, context: Context) -> Finding:
    """Return the finding on a part that makes wires slow."""
    seen = signs.evidence(fault.component, fault.side)[:_SIGNS_IN_EVIDENCE]
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


def tell_inner(fault: Fault, inner: InnerMatrix, signs: Signs) -> Finding:
    """Return the finding on an NVLink that makes operations inside a host slow, or on the host that has it."""
    seen = signs.evidence(fault.component, fault.side)[:_SIGNS_IN_EVIDENCE]
    slow = np.flatnonzero(fault.members).tolist()
    times = float(np.median(inner.ratio[slow]))
    doubt = f"; which of {', '.join(fault.ambiguous_with)} it is cannot be told" if fault.ambiguous_with else ""
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
                    for number in slow[:_WIRES_IN_EVIDENCE]
                ],
            },
            *seen,
        ),
        ruled_out=fault.ruled_out,
        ambiguous_with=fault.ambiguous_with,
        cap=_INNER_CAP,
        may_isolate=True,  # whichever it is, it is in that host
    )


def tell_starved(host: str, matrix: DelayMatrix, signs: Signs, context: Context) -> Finding:
    """Return the finding on a host whose proxy threads do not keep up, which makes its wires look slow."""
    touched = np.array([host in (wire.src.host, wire.dst.host) for wire in matrix.wires], bool)
    component = host_name(host)
    return Finding(
        fault_class="noncomm_slow",
        component=component,
        likelihood=_STARVED_LIKELIHOOD,
        reason=(
            f"the proxy threads of {component} do not keep up: waits that need no wire grew along with its "
            f"{int(touched.sum())} connections; look for what takes its CPUs"
        ),
        evidence=(_matrix_evidence(touched, matrix, context), *signs.evidence(component)[:_SIGNS_IN_EVIDENCE]),
        may_isolate=True,
    )


def _may_isolate(fault: Fault) -> bool:
    """Return whether draining one node would help: one part of it is named, and nothing but its own cable beside."""
    host = fault.component.partition(":")[2].split("/")[0]
    others = (name.partition(":")[2].split("/")[0] for name in fault.ambiguous_with)
    return fault.kind in ("nic", "host", "pcie", "nvlink") and all(other == host for other in others)


def _reason(fault: Fault, matrix: DelayMatrix, seen: tuple[dict[str, Any], ...]) -> str:
    times = float(np.median(matrix.ratio[fault.members]))
    count, normal = int(fault.members.sum()), int((~matrix.hot).sum())
    if fault.moved_to:
        return _failover(fault, count, times)
    doubt = f"; it could as well be {' or '.join(fault.ambiguous_with)}" if fault.ambiguous_with else ""
    connections = "connection" if count == 1 else "connections"
    which = f", {_WHICH[fault.side]}," if fault.kind in ("nic", "host", "link", "wire") else ""
    return (
        f"{fault.component} needs {times:.1f} times the wire time per byte{which} on {count} {connections}, "
        f"while {normal} others that carry the same are normal{_agreeing(seen)}{doubt}"
    )


def _failover(fault: Fault, count: int, times: float) -> str:
    return (
        f"{fault.component} has no carrier, and {fault.moved_to}, which carries its traffic as well, "
        f"needs {times:.1f} times the wire time per byte on {count} connections"
    )


def _agreeing(seen: tuple[dict[str, Any], ...]) -> str:
    """Return the weightiest sign that speaks for a part, as the end of a sentence."""
    return next((f"; {sign['what']}" for sign in seen if sign["weight"] > 0 and "what" in sign), "")


def _matrix_evidence(members: np.ndarray, matrix: DelayMatrix, context: Context) -> dict[str, Any]:
    worst = sorted(np.flatnonzero(members).tolist(), key=lambda number: -matrix.ratio[number])[:_WIRES_IN_EVIDENCE]
    return {
        "kind": "delay_matrix",
        "from": rfc3339(context.window.start_ns),
        "to": rfc3339(context.window.end_ns),
        "wires_compared": len(matrix.wires),
        "median_ns_per_byte": round(float(np.median(matrix.ns_per_byte)), 4),
        "slow_wires": [_wire_evidence(matrix, number) for number in worst],
        "silent_hosts": sorted(context.silent),
    }


def _wire_evidence(matrix: DelayMatrix, number: int) -> dict[str, Any]:
    wire = matrix.wires[number]
    return {
        "from": str(wire.src),
        "to": str(wire.dst),
        **({"path": list(wire.path)} if wire.path else {}),
        "ns_per_byte": round(float(matrix.ns_per_byte[number]), 4),
        "ratio": round(float(matrix.ratio[number]), 2),
        "sigmas": round(float(matrix.sigmas[number]), 1),
    }
