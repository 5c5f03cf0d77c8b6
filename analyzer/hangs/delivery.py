"""What stuck operations still had to deliver: over which wires, and which rank owes the next step."""

from dataclasses import dataclass

import numpy as np

from analyzer.hangs.facts import PAIRED, TOGETHER
from analyzer.hangs.flow import Edge, find_lost, find_lost_pairs, owes, pair_leads
from analyzer.hangs.processes import Scene
from analyzer.hangs.waits import StuckOperation
from analyzer.hangs.wires import StuckWire, wire_of


@dataclass(frozen=True)
class Delivery:
    """What was sent and did not arrive, and who of those it was sent to has not sent what he could."""

    wires: tuple[StuckWire, ...] = ()
    debtors: frozenset[int] = frozenset()  # processes


def trace_delivery(scene: Scene, stuck: tuple[StuckOperation, ...]) -> Delivery:
    """Return how far the data of all stuck operations got. Cost: O(members of the stuck operations)."""
    lines = scene.waits.lines
    pairs = [each for each in stuck if str(lines.func[each.members[0]]) in PAIRED]
    parts = [_of_pairs(scene, pairs)] if pairs else []
    parts += [_of_collective(scene, each) for each in stuck if str(lines.func[each.members[0]]) in TOGETHER]
    return Delivery(
        tuple(wire for part in parts for wire in part.wires),
        frozenset(process for part in parts for process in part.debtors),
    )


def find_idle(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return the only process of an operation of which no step has ended, if all others have ended some."""
    lines, rows, steps = scene.waits.lines, operation.members, scene.facts.steps
    here = (steps.comm == lines.comm[rows[0]]) & (steps.func == lines.func[rows[0]])
    active = np.unique(steps.rank[here & (steps.seq == operation.number - 1)])
    idle = lines.process[rows[~np.isin(lines.rank[rows], active)]].tolist()
    is_together = str(lines.func[rows[0]]) in TOGETHER
    return idle if is_together and len(idle) == 1 and len(active) > 1 else []


def _of_pairs(scene: Scene, pairs: list[StuckOperation]) -> Delivery:
    lines = scene.waits.lines
    inside = np.zeros(len(lines), bool)
    inside[np.concatenate([each.members for each in pairs])] = True
    wires: list[StuckWire] = []
    debtors: set[int] = set()
    for row in find_lost_pairs(lines, inside):
        edge = Edge(*(int(column[row]) for column in (lines.comm, lines.peer, lines.rank, lines.head_channel)))
        wires += _wire(scene, edge)
        if owes(pair_leads(lines, edge.comm), edge.dst, edge.src):
            debtors.add(int(lines.process[row]))
    return Delivery(tuple(wires), frozenset(debtors))


def _of_collective(scene: Scene, operation: StuckOperation) -> Delivery:
    lines, row = scene.waits.lines, int(operation.members[0])
    comm = int(lines.comm[row])
    lost, leads = find_lost(scene.facts.steps, comm, str(lines.func[row]), operation.number - 1)
    if not leads and len({(edge.src, edge.dst) for edge in lost}) > 1:
        return Delivery()  # in a tree a rank takes nothing from one child while it waits for another
    debtors = {edge.dst for edge in lost for ranks in leads.values() if _owes(ranks, edge)}
    processes = [process for rank in debtors if (process := _process(scene, comm, rank)) is not None]
    return Delivery(tuple(wire for edge in lost for wire in _wire(scene, edge)), frozenset(processes))


def _owes(leads: dict[int, int], edge: Edge) -> bool:
    """Return whether the receiver of a lost step owes one; of two ranks the one that has neither sent nor received."""
    return owes(leads, edge.dst, edge.src) or (leads.keys() == {edge.src})


def _wire(scene: Scene, edge: Edge) -> list[StuckWire]:
    sender, receiver = (_process(scene, edge.comm, rank) for rank in (edge.src, edge.dst))
    if sender is None or receiver is None:
        return []
    key = (edge.comm, edge.src, edge.dst, edge.channel)
    return [wire_of(scene, key, sender, receiver, is_counted=True)]


def _process(scene: Scene, comm: int, rank: int) -> int | None:
    lines = scene.waits.lines
    found = np.flatnonzero((lines.comm == comm) & (lines.rank == rank))
    return int(lines.process[found[0]]) if len(found) else None
