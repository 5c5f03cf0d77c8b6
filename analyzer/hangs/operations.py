"""Why an operation that all have entered does not end: arguments that differ, a dead part, a wire, or a GPU."""

from typing import Any

import numpy as np

from analyzer.finding import Finding
from analyzer.hangs.delivery import Delivery, find_idle, trace_delivery
from analyzer.hangs.facts import PAIRED
from analyzer.hangs.processes import Scene, find_stopped, finding_of, name_processes
from analyzer.hangs.waits import StuckOperation
from analyzer.hangs.wires import StuckWire, find_stuck_wires, name_down_nics, name_wires
from lockstep.topology import TopologyIndex, host_name

_MOST_NAMED = 16


def name_operations(scene: Scene, job: str, topology: TopologyIndex | None) -> list[Finding]:
    """Return what the stuck operations are stuck on; the first kind of cause that explains any of them is told."""
    stuck = scene.waits.stuck
    if mismatched := [each for each in stuck if _differs(scene, each)]:
        return [_mismatch(scene, mismatched[0], job)]
    if len(stopped := find_stopped(scene, scene.involved)):
        return name_processes(scene, stopped)
    if down := name_down_nics(scene, topology):
        return down
    delivery = trace_delivery(scene, stuck)
    wires = [*(wire for each in stuck for wire in find_stuck_wires(scene, each)), *delivery.wires]
    debtor = _find_debtor(wires, delivery)
    if debtor is not None:
        return [_holder(scene, [debtor])]
    if wires:
        return name_wires(scene, _once(wires), topology)
    holders = [process for each in stuck for process in _find_holders(scene, each)]
    holders = holders or [process for each in stuck for process in find_idle(scene, each)]
    return [_holder(scene, holders)] if len({scene.host_of(process) for process in holders}) == 1 else []


def name_circle(scene: Scene, job: str) -> Finding:
    """Return that ranks wait for each other in a circle, which no hardware does."""
    ranks = [scene.rank_of(process) for process in scene.waits.circling.tolist()]
    lines = scene.waits.lines
    comms = np.unique(lines.comm[np.isin(lines.process, scene.waits.circling) & scene.waits.late])
    return finding_of(
        scene,
        scene.waits.circling.tolist(),
        fault_class="software",
        component=f"job:{job}",
        likelihood=0.95,
        reason=f"{len(ranks)} ranks wait for each other in {len(comms)} communicators, entered in different "
        "orders or with different functions",
        evidence=({"kind": "circle", "ranks": ranks[:_MOST_NAMED], "comms": [f"{comm:016x}" for comm in comms[:8]]},),
    )


def _differs(scene: Scene, operation: StuckOperation) -> bool:
    """Return whether those inside the same operation were called with different arguments."""
    lines, rows = scene.waits.lines, operation.members
    if scene.facts.is_dump:  # counts of dumps are of all functions together, and all-to-all may be uneven
        return False
    sizes, dtypes = lines.open_bytes[rows], lines.open_dtype[rows]
    return len(np.unique(sizes[sizes >= 0])) > 1 or len({*dtypes.tolist()} - {""}) > 1


def _mismatch(scene: Scene, operation: StuckOperation, job: str) -> Finding:
    lines, rows = scene.waits.lines, operation.members
    calls = list(zip(lines.open_bytes[rows].tolist(), lines.open_dtype[rows].tolist(), strict=True))
    usual = max(sorted(set(calls)), key=calls.count)
    odd = [row for row, call in zip(rows.tolist(), calls, strict=True) if call != usual]
    ranks = [scene.rank_of(int(lines.process[row])) for row in odd]
    evidence: dict[str, Any] = {
        "kind": "mismatch",
        "ranks": ranks[:_MOST_NAMED],
        "bytes": lines.open_bytes[odd[0]].item(),
    }
    evidence |= {"dtype": str(lines.open_dtype[odd[0]]), "usual_bytes": usual[0], "usual_dtype": usual[1]}
    func, number = str(lines.func[rows[0]]), operation.number
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks ({ranks[0]} and others)"
    return finding_of(
        scene,
        lines.process[odd].tolist(),
        fault_class="software",
        component=f"job:{job}",
        likelihood=0.97,
        reason=f"{who} called {func} number {number} with {evidence['bytes']} bytes of {evidence['dtype']}, the "
        f"others with {usual[0]} of {usual[1]}",
        evidence=(evidence,),
    )


def _once(wires: list[StuckWire]) -> list[StuckWire]:
    """Return each wire once, as counts tell it where they do."""
    best: dict[tuple[int, int], StuckWire] = {}
    for wire in sorted(wires, key=lambda wire: not wire.is_counted):
        best.setdefault((wire.sender, wire.receiver), wire)
    return list(best.values())


def _find_debtor(wires: list[StuckWire], delivery: Delivery) -> int | None:
    """Return the process to which all goes that does not arrive, if it owes something itself."""
    receivers = {wire.receiver for wire in wires}
    return receivers.pop() if len(receivers) == 1 and receivers <= delivery.debtors else None


def _find_holders(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return the processes inside an operation that do not do their part of it, as the states of the others show.

    In a collective they hold data which they do not take, while the next rank waits for what they send: the buffers
    before them are full, and those behind them are empty. Between two ranks it is the one that waits for its own GPU.
    """
    lines, rows = scene.waits.lines, operation.members
    is_pair = str(lines.func[rows[0]]) in PAIRED
    if is_pair:  # who waits to receive something that it enqueued before cannot come to this
        rows = rows[scene.awaits_ns[lines.process[rows]] >= lines.open_ns[rows]]
    awaited = set(lines.head_peer[rows][lines.state[rows] == "recv_wait"].tolist())
    keeps = {"recv_gpu_wait", "gpu_wait"} if is_pair and len(operation.members) == 2 else {"recv_gpu_wait"}
    holds = [row for row in rows.tolist() if lines.state[row] in keeps]
    holds = [row for row in holds if is_pair or int(lines.rank[row]) in awaited]
    return [int(lines.process[row]) for row in holds]


def _gpu_stands(scene: Scene, process: int) -> bool:
    """Return whether a process waits for its GPU in an operation in which it sends and receives.

    If it did not run, it would mostly wait to receive: it would not have noticed what arrived for it meanwhile.
    """
    lines, stuck = scene.waits.lines, scene.waits.stuck
    rows = np.concatenate([each.members for each in stuck])
    mine = rows[(lines.process[rows] == process) & ~np.isin(lines.func[rows].astype(str), PAIRED)]
    return bool((lines.state[mine] == "gpu_wait").any())


def _holder(scene: Scene, processes: list[int]) -> Finding:
    """Return who holds an operation up: the GPU, where a collector would have told of a stopped process."""
    process = processes[0]
    rank, host, gpu = scene.rank_of(process), scene.host_of(process), scene.gpu_of(process)
    is_gpu = gpu is not None and len(set(processes)) == 1
    is_gpu &= host in scene.facts.heard_ns or _gpu_stands(scene, process)
    return finding_of(
        scene,
        sorted(set(processes)),
        fault_class="noncomm_hang",
        component=str(gpu) if is_gpu else host_name(host),
        likelihood=0.85 if not is_gpu or host in scene.facts.heard_ns else 0.7,
        reason=f"rank {rank} on {host} has done nothing in an operation {scene.how_long} while its neighbours "
        f"wait for it: {'its GPU stands' if is_gpu else 'its process or its GPU stands'}",
        ambiguous_with=(host_name(host) if is_gpu else gpu,) if gpu else (),
    )
