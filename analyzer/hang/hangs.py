"""Who never arrived: one evaluation of a job, from how far everybody has come to the part that keeps them."""

from dataclasses import dataclass, replace

import numpy as np

from analyzer.hang.arguments import find_mismatch, find_slip, name_mismatch, name_slip
from analyzer.hang.facts import PAIRED, TOGETHER, HangMemory, HangOptions, ProgressFacts, find_standstill
from analyzer.hang.flow import Edge, date_by_steps, find_lost, find_lost_pairs, owes, pair_leads
from analyzer.hang.holders import find_holders, name_holder
from analyzer.hang.pairs import StuckPair, find_stuck_pairs, name_down_links, name_down_nics, name_pairs, pair_of
from analyzer.hang.processes import (
    Scene,
    find_stopped,
    finding_of,
    name_first_ended,
    name_missing,
    name_processes,
    was_ended_by_request,
    was_first_asked_to_end,
)
from analyzer.hang.waits import StuckOperation, trace_waits
from analyzer.windows.window import Context, Finding
from lockstep.clock import NS_PER_S
from lockstep.topology import TopologyIndex

_MOST_LOST = 256  # a NIC that is gone loses fewer; more than that are missing from the records, not on wires
_RINGS = ("RING", "")  # how far a rank runs ahead is the same for all only here; unknown ones are told by their shape


@dataclass(frozen=True)
class Delivery:
    """What was sent and did not arrive, and who of those it was sent to has not sent what he could."""

    pairs: tuple[StuckPair, ...] = ()
    debtors: frozenset[int] = frozenset()  # processes


def trace_delivery(scene: Scene, stuck: tuple[StuckOperation, ...]) -> Delivery:
    """Return how far the data of all stuck operations got. Cost: O(members of the stuck operations)."""
    lines = scene.waits.lines
    paired = [each for each in stuck if str(lines.func[each.members[0]]) in PAIRED]
    parts = [_of_paired(scene, paired)] if paired else []
    parts += [_of_collective(scene, each) for each in stuck if str(lines.func[each.members[0]]) in TOGETHER]
    return Delivery(
        tuple(pair for part in parts for pair in part.pairs),
        frozenset(process for part in parts for process in part.debtors),
    )


def find_idle(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return the only process of an operation of which no step has ended, if all others have ended some."""
    lines, rows = scene.waits.lines, operation.members
    active, unsampled = _active_ranks(scene, operation), _unsampled_ranks(scene, operation)
    idle = lines.process[rows[~np.isin(lines.rank[rows], [*active, *unsampled])]].tolist()
    is_together = str(lines.func[rows[0]]) in TOGETHER
    return idle if is_together and len(idle) == 1 and len(active) > 1 else []


def _active_ranks(scene: Scene, operation: StuckOperation) -> np.ndarray:
    """Return the ranks that have ended any step of an operation."""
    lines, row, steps = scene.waits.lines, operation.members[0], scene.facts.steps
    low, high = (int(np.searchsorted(steps.comm, lines.comm[row], side)) for side in ("left", "right"))
    here = (steps.func[low:high] == lines.func[row]) & (steps.seq[low:high] == operation.number - 1)
    return np.unique(steps.rank[low:high][here])


def _of_paired(scene: Scene, paired: list[StuckOperation]) -> Delivery:
    lines = scene.waits.lines
    inside = np.zeros(len(lines), bool)
    inside[np.concatenate([each.members for each in paired])] = True
    pairs: list[StuckPair] = []
    debtors: set[int] = set()
    for row in find_lost_pairs(lines, inside):
        edge = Edge(*(int(column[row]) for column in (lines.comm, lines.peer, lines.rank, lines.head_channel)))
        pairs += _pair(scene, edge)
        if owes(pair_leads(lines, edge.comm), edge.dst, edge.src):
            debtors.add(int(lines.process[row]))
    return Delivery(tuple(pairs), frozenset(debtors))


def _of_collective(scene: Scene, operation: StuckOperation) -> Delivery:
    lines, row = scene.waits.lines, int(operation.members[0])
    comm = int(lines.comm[row])
    lost, leads = find_lost(scene.facts.steps, comm, str(lines.func[row]), operation.number - 1)
    unsampled = _unsampled_ranks(scene, operation)
    lost = [edge for edge in lost if edge.dst not in unsampled]
    if not 0 < len(lost) <= _MOST_LOST:
        return Delivery()
    if lines.open_algo[row] not in _RINGS or unsampled:
        leads = {}
    if not leads and not _is_plain(lost, np.isin(lines.rank[operation.members], _active_ranks(scene, operation))):
        return Delivery()
    debtors = {  # of two ranks, the one that has done nothing owes the step
        edge.dst
        for edge in lost
        for ranks in leads.values()
        if owes(ranks, edge.dst, edge.src) or ranks.keys() == {edge.src}
    }
    processes = [process for rank in debtors if (process := _process(scene, comm, rank)) is not None]
    return Delivery(tuple(pair for edge in lost for pair in _pair(scene, edge)), frozenset(processes))


def _unsampled_ranks(scene: Scene, operation: StuckOperation) -> set[int]:
    """Return the ranks that are in the kernel of an operation and record no steps of it, as others may do.

    Ranks begin to sample at different operations. What such a rank got, nobody tells.
    """
    lines, rows = scene.waits.lines, operation.members
    return set(lines.rank[rows[lines.state[rows] == "kernel_begun"]].tolist())


def _is_plain(lost: list[Edge], is_active: np.ndarray) -> bool:
    """Return whether what is lost in a tree tells of a pair or a NIC.

    There a rank takes nothing from one child while it waits for another, so that much looks lost around a rank that
    does nothing. A single pair is believed where everybody has done something; several where one rank neither gets
    nor gets rid of anything.
    """
    if len({(edge.src, edge.dst) for edge in lost}) < 2:
        return bool(is_active.all())
    sources, targets = {edge.src for edge in lost}, {edge.dst for edge in lost}
    return any(all(rank in (edge.src, edge.dst) for edge in lost) for rank in sources & targets)


def _pair(scene: Scene, edge: Edge) -> list[StuckPair]:
    sender, receiver = (_process(scene, edge.comm, rank) for rank in (edge.src, edge.dst))
    if sender is None or receiver is None or receiver in scene.waits.missing:  # what it got, nobody tells
        return []
    key = (edge.comm, edge.src, edge.dst, edge.channel)
    return [pair_of(scene, key, sender, receiver, is_counted=True)]


def _process(scene: Scene, comm: int, rank: int) -> int | None:
    lines = scene.waits.lines
    found = np.flatnonzero((lines.comm == comm) & (lines.rank == rank))
    return int(lines.process[found[0]]) if len(found) else None


_MOST_NAMED = 16


def name_operations(scene: Scene, job: str, topology: TopologyIndex | None) -> list[Finding]:
    """Return what the stuck operations are stuck on; the first kind of cause that explains any of them is told."""
    stuck = scene.waits.stuck
    if not scene.facts.is_dump and (slip := find_slip(scene.waits.lines)):
        return [name_slip(scene, slip, job)]
    if len(stopped := find_stopped(scene, scene.involved)):
        return name_processes(scene, stopped)
    if down := name_down_nics(scene, topology):
        return down
    if not scene.is_long:  # how long an operation takes whose like nobody has ended yet, nobody knows
        stuck = tuple(each for each in stuck if each.number > 1)
    delivery = trace_delivery(scene, stuck)
    pairs = [*(pair for each in stuck for pair in find_stuck_pairs(scene, each)), *delivery.pairs]
    if down := name_down_links(scene, pairs, topology):
        return down
    receivers = {pair.receiver for pair in pairs}
    if len(receivers) == 1 and receivers <= delivery.debtors:  # all goes to it that does not arrive
        return [name_holder(scene, [*receivers])]
    if pairs:
        return name_pairs(scene, _once(pairs), topology)
    holders = [process for each in stuck for process in find_holders(scene, each)]
    holders = holders or [process for each in stuck for process in find_idle(scene, each)]
    return [name_holder(scene, holders)] if len({scene.host_of(process) for process in holders}) == 1 else []


def name_circle(scene: Scene, job: str) -> Finding:
    """Return that ranks wait for each other in a circle, which no hardware does."""
    ranks = [scene.rank_of(process) for process in scene.waits.circling.tolist()]
    lines = scene.waits.lines
    comms = np.unique(lines.comm[np.isin(lines.process, scene.waits.circling) & scene.waits.behind])
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


def name_nobody(scene: Scene, job: str) -> Finding:
    """Return that all ranks stand inside operations of which nothing tells who holds them up."""
    lines, stuck = scene.waits.lines, scene.waits.stuck
    processes = np.unique(lines.process[np.concatenate([each.members for each in stuck])]).tolist()
    func = lines.func[stuck[0].members[0]]
    return finding_of(
        scene,
        processes,
        fault_class="comm_hang",
        component=f"job:{job}",
        likelihood=0.5,
        reason=(
            f"{len(processes)} ranks are inside {func} number {stuck[0].number} or others, "
            f"nothing moved {scene.how_long}, and no part stands out: look for a kernel that does not end, and for "
            "hosts that lost the network without a word"
        ),
    )


def _once(pairs: list[StuckPair]) -> list[StuckPair]:
    """Return each pair once, as counts tell it where they do."""
    best: dict[tuple[int, int], StuckPair] = {}
    for pair in sorted(pairs, key=lambda pair: not pair.is_counted):
        best.setdefault((pair.sender, pair.receiver), pair)
    return list(best.values())


# If more than half of a job keeps the others waiting, nobody in particular does: it loads, saves or compiles.
_MOST_ORIGINS = 0.5


def find_hangs(
    facts: ProgressFacts, memory: HangMemory, context: Context, options: HangOptions
) -> tuple[list[Finding], HangMemory]:
    """Return the parts that a standstill comes from; nothing while the job moves, or pauses as a whole.

    Assumes that counts of one function in one communicator mean the same on all its ranks; groups in which they
    cannot are left out. Cost: O(lines log lines).
    """
    if facts.all_move:
        return [], HangMemory()
    if len(facts.lines) == 0:
        return list(memory.findings), memory
    facts = _with_collector_interval(date_by_steps(facts))
    standstill = find_standstill(facts, context.silent, options)
    is_sure = standstill.is_hang
    if not is_sure:
        standstill = find_standstill(facts, context.silent, options, has_event=True)
    if not standstill.is_hang:
        # A job of which hardly anything is heard any more has not moved.
        return (list(memory.findings), memory) if 2 * len(facts.lines) < memory.lines else ([], HangMemory())
    # The evaluation before knows better when it began, as long as it is the same standstill.
    since_ns = standstill.since_ns if memory.since_ns is None else min(memory.since_ns, standstill.since_ns)
    scene = Scene(facts, trace_waits(facts, standstill, context.roster), since_ns, options)
    named = _name(scene, context, int(standstill.present.sum())) if is_sure else _name_by_events(scene, context)
    if not is_sure and not named:
        return named, HangMemory()
    return named, HangMemory(since_ns, tuple(named), max(memory.lines, len(facts.lines)))


def _with_collector_interval(facts: ProgressFacts) -> ProgressFacts:
    """Return the facts with the rhythm of a collector where there is one, though few of its rows came."""
    is_slow = facts.reports and not facts.is_dump
    return replace(facts, interval_ns=max(facts.interval_ns, NS_PER_S)) if is_slow else facts


def _name(scene: Scene, context: Context, present: int) -> list[Finding]:
    waits = scene.waits
    if was_ended_by_request(scene):
        return []
    if crashed := name_first_ended(scene):
        return crashed
    if mismatch := find_mismatch(scene.facts):
        return [name_mismatch(scene, mismatch, context.job)]
    if len(waits.origins) > _MOST_ORIGINS * max(present, 2):
        return []
    findings = name_processes(scene, waits.origins) + name_missing(scene, context.lost, is_new=True)
    if not findings and waits.stuck:  # who died or fell silent leaves operations behind that look stuck by themselves
        findings += name_operations(scene, context.job, context.topology)
    if not findings and len(waits.circling):
        findings.append(name_circle(scene, context.job))
    findings = findings or name_missing(scene, context.lost, is_new=False)
    is_told = waits.stuck and scene.is_long and not scene.facts.is_dump
    return findings or ([name_nobody(scene, context.job)] if is_told else [])


def _name_by_events(scene: Scene, context: Context) -> list[Finding]:
    """Return what events tell of a standstill that is too short to be told by itself."""
    if was_ended_by_request(scene):
        return []
    if crashed := name_first_ended(scene):
        # Who was asked to end may be the first of all: the rest of the job follows while the standstill lasts.
        return [] if was_first_asked_to_end(scene) else crashed
    stopped = find_stopped(scene, scene.involved)
    return name_processes(scene, stopped) if len(stopped) else name_down_nics(scene, context.topology)
