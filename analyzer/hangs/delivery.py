"""What stuck operations still had to deliver: over which wires, and which rank owes the next step."""

from dataclasses import dataclass

import numpy as np

from analyzer.hangs.facts import PAIRED, TOGETHER
from analyzer.hangs.flow import Edge, find_lost, find_lost_pairs, owes, pair_leads
from analyzer.hangs.processes import Scene
from analyzer.hangs.waits import StuckOperation
from analyzer.hangs.wires import StuckWire, wire_of

_MOST_LOST = 256  # a NIC that is gone loses fewer; more than that are missing from the records, not on wires
_RINGS = ("RING", "")  # how far a rank runs ahead is the same for all only here; unknown ones are told by their shape


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
    lines, rows = scene.waits.lines, operation.members
    active = _active_ranks(scene, operation)
    idle = lines.process[rows[~np.isin(lines.rank[rows], active)]].tolist()
    is_together = str(lines.func[rows[0]]) in TOGETHER
    return idle if is_together and len(idle) == 1 and len(active) > 1 else []


def _active_ranks(scene: Scene, operation: StuckOperation) -> np.ndarray:
    """Return the ranks that have ended any step of an operation."""
    lines, row, steps = scene.waits.lines, operation.members[0], scene.facts.steps
    low, high = (int(np.searchsorted(steps.comm, lines.comm[row], side)) for side in ("left", "right"))
    here = (steps.func[low:high] == lines.func[row]) & (steps.seq[low:high] == operation.number - 1)
    return np.unique(steps.rank[low:high][here])


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
    if not 0 < len(lost) <= _MOST_LOST:
        return Delivery()
    if lines.open_algo[row] not in _RINGS:
        leads = {}
    if not leads and not _is_plain(lost, np.isin(lines.rank[operation.members], _active_ranks(scene, operation))):
        return Delivery()
    debtors = {edge.dst for edge in lost for ranks in leads.values() if _owes(ranks, edge)}
    processes = [process for rank in debtors if (process := _process(scene, comm, rank)) is not None]
    return Delivery(tuple(wire for edge in lost for wire in _wire(scene, edge)), frozenset(processes))


def _is_plain(lost: list[Edge], is_active: np.ndarray) -> bool:
    """Return whether what is lost in a tree tells of a wire or a NIC.

    There a rank takes nothing from one child while it waits for another, so that much looks lost around a rank that
    does nothing. A single wire is believed where everybody has done something; several where one rank neither gets
    nor gets rid of anything.
    """
    if len({(edge.src, edge.dst) for edge in lost}) < 2:
        return bool(is_active.all())
    sources, targets = {edge.src for edge in lost}, {edge.dst for edge in lost}
    return any(all(rank in (edge.src, edge.dst) for edge in lost) for rank in sources & targets)


def _owes(leads: dict[int, int], edge: Edge) -> bool:
    """Return whether the receiver of a lost step owes one; of two ranks the one that has done nothing."""
    return owes(leads, edge.dst, edge.src) or (leads.keys() == {edge.src})


def _wire(scene: Scene, edge: Edge) -> list[StuckWire]:
    sender, receiver = (_process(scene, edge.comm, rank) for rank in (edge.src, edge.dst))
    if sender is None or receiver is None or receiver in scene.waits.unheard:  # what it got, nobody tells
        return []
    key = (edge.comm, edge.src, edge.dst, edge.channel)
    return [wire_of(scene, key, sender, receiver, is_counted=True)]


def _process(scene: Scene, comm: int, rank: int) -> int | None:
    lines = scene.waits.lines
    found = np.flatnonzero((lines.comm == comm) & (lines.rank == rank))
    return int(lines.process[found[0]]) if len(found) else None
