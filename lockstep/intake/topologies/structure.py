"""What cables alone show of a fabric: the tier of each switch, planes that never meet, and rails."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from lockstep.topology import Tier

_TIERS: Mapping[int, Tier] = {1: "leaf", 2: "spine", 3: "core"}

Plugs = Mapping[tuple[str, str], str]  # host and NIC to the switch at the other end
Neighbours = Mapping[str, set[str]]  # switches that are cabled to each other


def infer_tiers(leaves: Iterable[str], neighbours: Neighbours) -> dict[str, Tier]:
    """Return the tier of each switch that reaches a host: leaves have some, and the further away, the higher.

    An empty leaf looks like a core switch: no cable tells the two apart. Cost: O(switches + links).

    >>> infer_tiers(["l"], {"l": {"s"}, "s": {"l", "c"}, "c": {"s"}})
    {'l': 'leaf', 's': 'spine', 'c': 'core'}
    """
    tiers: dict[str, Tier] = {}
    front = sorted(set(leaves))
    distance = 1
    while front:
        tiers |= dict.fromkeys(front, _TIERS[min(distance, len(_TIERS))])
        front = sorted({far for near in front for far in neighbours.get(near, ())} - tiers.keys())
        distance += 1
    return tiers


def infer_planes(plugs: Plugs, neighbours: Neighbours) -> dict[tuple[str, str], int]:
    """Return the plane of each NIC where switches fall into parts that never meet and share hosts; else nothing."""
    part_of = _find_parts(neighbours)
    used: dict[str, set[int]] = defaultdict(set)
    for (host, _), switch in plugs.items():
        used[host].add(part_of[switch])
    if not any(len(parts) > 1 for parts in used.values()):
        return {}
    numbers = {
        part: number for number, part in enumerate(sorted({part for parts in used.values() for part in parts}))
    }
    return {nic: numbers[part_of[switch]] for nic, switch in plugs.items()}


def infer_rails(plugs: Plugs) -> dict[tuple[str, str], int]:
    """Return the rail of each NIC where every leaf has NICs of one name and there are several; else nothing."""
    names: dict[str, set[str]] = defaultdict(set)
    hosts: dict[str, set[str]] = defaultdict(set)
    for (host, nic), switch in plugs.items():
        names[switch].add(nic)
        hosts[switch].add(host)
    kinds = {
        nic: number for number, nic in enumerate(sorted({nic for _, nic in plugs}, key=lambda nic: (len(nic), nic)))
    }
    is_railed = len(kinds) > 1 and all(len(here) == 1 for here in names.values())
    if not is_railed or max(map(len, hosts.values())) < 2:  # one host on a leaf of its own proves nothing
        return {}
    return {(host, nic): kinds[nic] for host, nic in plugs}


def _find_parts(neighbours: Neighbours) -> dict[str, int]:
    """Return a number per switch, the same for all that can be reached from each other."""
    part_of: dict[str, int] = {}
    for number, start in enumerate(sorted(neighbours)):
        front = set() if start in part_of else {start}
        while front:
            part_of |= dict.fromkeys(front, number)
            front = {far for near in front for far in neighbours[near]} - part_of.keys()
    return part_of
