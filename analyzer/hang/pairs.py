"""Which pair an operation is stuck on, and whether several of them share a NIC.

On IB a step waits for the wire until the other side's NIC has acknowledged it, whatever the GPU there does: one that
waits for long is lost. On sockets it waits until the kernel took the bytes, so that a reader who does not read looks
the same; there the reader must itself be waiting for just that sender.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

from analyzer.hang.facts import Pair, PairKey
from analyzer.hang.processes import Scene, finding_of
from analyzer.hang.waits import StuckOperation
from analyzer.windows.window import End, Finding
from lockstep.clock import NS_PER_S
from lockstep.topology import Link, TopologyIndex, host_name, link_name, nic_name, split_end, switch_name
from lockstep.verdict import RuledOut

# A receiver that stops between two steps owes nothing either; but a process spends most of its time computing, when
# it owes the next one.
_COUNTED = 0.8
_WAKES_NS = NS_PER_S  # what a job needs to move again, as rows of progress show it
_FEWEST_FOR_LINK = 2  # one pair is its NICs' as well
_MOST_AT_NIC = 0.75  # of the stuck pairs: a NIC that has so many of them explains them better than a link does
_FEWEST_FOR_LEAF = 3  # two pairs that happen to meet at a leaf are more often two faults


@dataclass(frozen=True)
class StuckPair:
    """A connection over which a transfer does not end."""

    src: End
    dst: End
    sender: int  # process
    receiver: int
    transport: str | None
    is_counted: bool = False  # the sender has ended what the receiver has not, and the receiver owes nothing
    path: tuple[str, ...] = ()  # links that its packets take, where probes found them


def find_stuck_pairs(scene: Scene, operation: StuckOperation) -> list[StuckPair]:
    """Return the connections on which an operation is stuck."""
    lines, rows = scene.waits.lines, operation.members
    senders = rows[lines.state[rows] == "wire"].tolist()
    by_rank = {int(lines.rank[row]): row for row in rows.tolist()} if senders else {}
    found: list[StuckPair] = []
    for row in senders:
        peer, channel = int(lines.head_peer[row]), int(lines.head_channel[row])
        other = by_rank.get(peer)
        if other is None:
            continue
        key = (int(lines.comm[row]), int(lines.rank[row]), peer, channel)
        pair = scene.facts.pairs.get(key, Pair(None, None, None))
        waits_back = lines.state[other] == "recv_wait" and lines.head_peer[other] == lines.rank[row]
        if pair.transport == "ib" or waits_back:
            found.append(pair_of(scene, key, int(lines.process[row]), int(lines.process[other])))
    return found


def pair_of(scene: Scene, key: PairKey, sender: int, receiver: int, is_counted: bool = False) -> StuckPair:
    """Return the connection between two processes with the NICs at its ends, as far as anything tells them."""
    pair = scene.facts.pairs.get(key, Pair(None, None, None))
    src, dst = (
        end if end and end.nic else End(host, _only_nic(scene, host))
        for end, host in ((pair.src, scene.host_of(sender)), (pair.dst, scene.host_of(receiver)))
    )
    return StuckPair(src, dst, sender, receiver, pair.transport, is_counted, pair.path)


def _only_nic(scene: Scene, host: str) -> str | None:
    nics = scene.facts.nics.get(host, ())
    return nics[0] if len(nics) == 1 else None


def name_pairs(scene: Scene, pairs: list[StuckPair], topology: TopologyIndex | None) -> list[Finding]:
    """Return the fewest parts that all stuck pairs run through: a NIC with several of them first, then each alone."""
    findings: list[Finding] = []
    rest = list(pairs)
    if topology and (links := _find_shared_links(pairs, topology)):
        return [_link(scene, links, pairs)]
    if leaf := _find_leaf(pairs, topology):
        ends = sorted({end for pair in pairs for end in (pair.src, pair.dst)})
        return [_leaf(scene, leaf, ends, tuple(pairs))]
    while rest:
        shared = _most_shared(rest)
        mine = [pair for pair in rest if shared is None or shared in (pair.src, pair.dst)]
        mine = mine if shared else [pair for pair in rest if {pair.src, pair.dst} == {rest[0].src, rest[0].dst}]
        findings.append(_nic(scene, shared, mine, topology) if shared else _single(scene, mine, topology))
        rest = [pair for pair in rest if pair not in mine]
    return findings


def name_down_nics(scene: Scene, topology: TopologyIndex | None) -> list[Finding]:
    """Return the NICs of hosts in the standstill that lost their carrier with it.

    The host need not be in the operation that is stuck: its ranks may have got all of it, and wait in the next one.
    """
    hosts = {scene.host_of(process) for process in scene.involved.tolist()}
    down = {end: since_ns for end, since_ns in sorted(find_down(scene).items()) if end.host in hosts}
    leaves: dict[str | None, list[End]] = defaultdict(list)
    for end in down:
        leaves[topology.leaf_of(end.host, str(end.nic)) if topology else None].append(end)
    return [
        finding
        for leaf, ends in leaves.items()
        for finding in (
            [_leaf(scene, leaf, ends, ())]
            if leaf and len({end.host for end in ends}) > 1
            else [_down(scene, end, down[end], topology) for end in ends]
        )
    ]


def name_down_links(scene: Scene, pairs: list[StuckPair], topology: TopologyIndex | None) -> list[Finding]:
    """Return the links between switches that lost their carrier with the standstill and may carry what is stuck.

    Where several of them end at one switch, it is named.
    """
    down = {link: ns for link, ns in scene.facts.down_links.items() if ns >= scene.earliest_ns}
    if not down or topology is None:
        return []
    carrying = [_links_of(pair, topology) for pair in pairs]
    links = [link for link in topology.topology.links if link.id in down]
    links = [link for link in links if not carrying or any(link.id in ids for ids in carrying)]
    ends = [{split_end(end)[0] for end in (link.a, link.b)} for link in links]
    shared = set.intersection(*ends) if len(ends) > 1 else set()
    parts = [switch_name(switch) for switch in shared] or [link_name(link) for link in links]
    return [_lost_carrier(scene, part, min(down.values()), pairs) for part in parts]


def _links_of(pair: StuckPair, topology: TopologyIndex) -> set[str]:
    """Return the links that a pair's packets take, or may take."""
    if pair.path or not (pair.src.nic and pair.dst.nic):
        return set(pair.path)
    return {link.id for link in topology.links_between(pair.src.host, pair.src.nic, pair.dst.host, pair.dst.nic)}


def _find_shared_links(pairs: list[StuckPair], topology: TopologyIndex) -> list[Link]:
    """Return the links between switches that all stuck pairs take or may take, unless most share a NIC.

    Of several NICs that would have died together, each with transfers to other leaves only, none is the reason.
    """
    if len({(pair.src, pair.dst) for pair in pairs}) < _FEWEST_FOR_LINK:
        return []
    at_nic = Counter(end for pair in pairs for end in {pair.src, pair.dst})
    if max(at_nic.values()) >= _MOST_AT_NIC * len(pairs):
        return []
    shared = set.intersection(*(_links_of(pair, topology) for pair in pairs))
    switches = {switch.id for switch in topology.topology.switches}
    links = [link for link in topology.topology.links if link.id in shared]
    return [link for link in links if {split_end(link.a)[0], split_end(link.b)[0]} <= switches]


def find_down(scene: Scene) -> dict[End, int]:
    """Return the NICs that lost their carrier with the standstill, and have not got it back or only just.

    A connection that was cut sends again after twice as long each time: it may stand for as long again as the cable
    was out.
    """
    down = {end: since_ns for end, since_ns in scene.facts.down_since_ns.items() if since_ns >= scene.earliest_ns}
    for event in scene.timely(("link_down", "link_up")):
        host, _, nic = event.component.removeprefix("nic:").partition("/")
        end = End(host, nic)
        if event.kind == "link_down" and nic:
            down[end] = event.ts_ns
        elif scene.facts.now_ns - event.ts_ns > event.ts_ns - down.get(end, event.ts_ns) + _WAKES_NS:
            down.pop(end, None)
    if scene.seconds * NS_PER_S >= (scene.facts.period_ns or scene.options.unlearnt_ns):
        return down
    # What stands for less than a step may only take long, while a link flaps or a NIC of another network is down.
    nics, latest_ns = scene.facts.nics, scene.facts.now_ns - scene.options.event_ns
    return {end: ns for end, ns in down.items() if ns <= latest_ns and end.nic in nics.get(end.host, (end.nic,))}


def _find_leaf(pairs: list[StuckPair], topology: TopologyIndex | None) -> str | None:
    """Return the leaf under which all stuck pairs begin or end, unless a single NIC explains them as well."""
    if topology is None or len({(pair.src, pair.dst) for pair in pairs}) < _FEWEST_FOR_LEAF:
        return None
    ends = [{end for end in (pair.src, pair.dst) if end.nic} for pair in pairs]
    leaves = [{topology.leaf_of(end.host, str(end.nic)) for end in both} for both in ends]
    shared = set.intersection(*leaves) - {None}
    return shared.pop() if len(shared) == 1 and not set.intersection(*ends) else None


def _most_shared(pairs: list[StuckPair]) -> End | None:
    """Return the NIC through which most of the pairs run, if they lead to at least two different ones.

    Both directions between the same two say nothing about which of them it is.
    """
    others: dict[End, set[End]] = defaultdict(set)
    for pair in pairs:
        others[pair.src].add(pair.dst)
        others[pair.dst].add(pair.src)
    best = max(others, key=lambda end: (len(others[end]), end.host, end.nic or ""))
    return best if len(others[best]) > 1 else None


def _may_isolate(scene: Scene, pairs: list[StuckPair]) -> bool:
    failed = {event.component for event in scene.timely(("ib_completion_error", "link_down"))}
    has_event = any(
        nic_name(end.host, end.nic) in failed for pair in pairs for end in (pair.src, pair.dst) if end.nic
    )
    is_ib = all(pair.transport == "ib" for pair in pairs)
    return has_event or scene.seconds * NS_PER_S >= (
        scene.options.ib_retry_ns if is_ib else scene.options.tcp_retry_ns
    )


def _row(pair: StuckPair, scene: Scene) -> dict[str, object]:
    ranks = [scene.rank_of(pair.sender), scene.rank_of(pair.receiver)]
    return {"kind": "stuck_pair", "src": str(pair.src), "dst": str(pair.dst), "ranks": ranks}


def _cable(end: End, topology: TopologyIndex | None) -> tuple[str, ...]:
    link = topology.host_link(end.host, end.nic) if topology and end.nic else None
    return (link_name(link),) if link else ()


def _part(end: End) -> str:
    return nic_name(end.host, end.nic) if end.nic else host_name(end.host)


def _nic(scene: Scene, end: End, pairs: list[StuckPair], topology: TopologyIndex | None) -> Finding:
    others = sorted({other for pair in pairs for other in (pair.src, pair.dst) if other != end})
    sides = {("tx" if pair.src == end else "rx") for pair in pairs}
    return finding_of(
        scene,
        [pair.sender for pair in pairs],
        fault_class="comm_hang",
        component=_part(end),
        side=sides.pop() if len(sides) == 1 else None,
        likelihood=0.93,
        reason=f"{len(pairs)} transfers through {end} have stood on the wire {scene.how_long}",
        evidence=tuple(_row(pair, scene) for pair in pairs[:16]),
        ruled_out=tuple(
            RuledOut(component=_part(other), because="only its transfers with the other end stand")
            for other in others
        ),
        ambiguous_with=_cable(end, topology),
        may_isolate=_may_isolate(scene, pairs),
    )


def _single(scene: Scene, pairs: list[StuckPair], topology: TopologyIndex | None) -> Finding:
    """Return one pair; nothing tells which of its ends it is."""
    pair = pairs[0]
    has_one_source = len({each.src for each in pairs}) == 1
    parts = (_part(pair.src), _part(pair.dst), *_cable(pair.src, topology), *_cable(pair.dst, topology))
    # A sender that was stopped just then looks the same; where it has ended what never arrived, only its receiver.
    suspect = pair.dst if pair.is_counted else pair.src
    return finding_of(
        scene,
        [pair.sender, pair.receiver],
        fault_class="comm_hang",
        component=f"link:{pair.src}--{pair.dst}",
        side="tx" if has_one_source else None,
        likelihood=_COUNTED if pair.is_counted and has_one_source else 0.4,
        reason=f"what rank {scene.rank_of(pair.sender)} sends to rank {scene.rank_of(pair.receiver)} has stood on "
        f"the wire from {pair.src} to {pair.dst} {scene.how_long}",
        evidence=tuple(_row(each, scene) for each in pairs[:16]),
        ambiguous_with=(*dict.fromkeys(parts), host_name(suspect.host)),
    )


def _leaf(scene: Scene, leaf: str, ends: list[End], pairs: tuple[StuckPair, ...]) -> Finding:
    return finding_of(
        scene,
        [],
        fault_class="comm_hang",
        component=switch_name(leaf),
        likelihood=0.85,
        reason=f"nothing passes {leaf} any more: {len(ends)} NICs of several hosts stand with it {scene.how_long}",
        evidence=({"kind": "stuck_ends", "ends": [str(end) for end in ends[:16]]},),
        ruled_out=tuple(
            RuledOut(component=_part(end), because="others under the leaf stand too") for end in ends[:16]
        ),
        may_isolate=bool(pairs) and _may_isolate(scene, list(pairs)),
    )


def _link(scene: Scene, links: list[Link], pairs: list[StuckPair]) -> Finding:
    """Return a link that all stuck pairs take; where they may share several, the others stand beside it."""
    first, *others = links
    which = f"{first.id} or one of {len(others)} other links" if others else first.id
    return finding_of(
        scene,
        [pair.sender for pair in pairs],
        fault_class="comm_hang",
        component=link_name(first),
        likelihood=0.85 / len(links),
        reason=f"{len(pairs)} transfers that share no NIC have stood on the wire {scene.how_long}: {which} is dead",
        evidence=tuple(_row(pair, scene) for pair in pairs[:16]),
        ambiguous_with=tuple(link_name(link) for link in others[:16]),
        may_isolate=not others and _may_isolate(scene, pairs),
    )


def _lost_carrier(scene: Scene, part: str, since_ns: int, pairs: list[StuckPair]) -> Finding:
    return finding_of(
        scene,
        [],
        fault_class="comm_hang",
        component=part,
        likelihood=0.93,
        reason=f"{part} lost its carrier, and {len(pairs)} transfers that may run over it do not end",
        evidence=(
            {"kind": "link_down", "component": part, "ts_ns": since_ns},
            *(_row(pair, scene) for pair in pairs[:8]),
        ),
        may_isolate=scene.seconds * NS_PER_S >= scene.options.before_ns,
    )


def _down(scene: Scene, end: End, since_ns: int, topology: TopologyIndex | None) -> Finding:
    name = nic_name(end.host, str(end.nic))
    return finding_of(
        scene,
        [],
        fault_class="comm_hang",
        component=name,
        likelihood=0.97,
        reason=f"{name} lost its carrier, and operations through it do not end",
        evidence=({"kind": "link_down", "component": name, "ts_ns": since_ns},),
        ambiguous_with=_cable(end, topology),
        may_isolate=scene.seconds * NS_PER_S >= scene.options.before_ns,  # sooner it may be a flap
    )
