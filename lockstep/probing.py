"""Which pair of NICs a host probes at which moment, so that all pairs have their turn and nobody is probed by many.

All hosts take steps of equal length, counted from the epoch, so that they agree on the step without talking. In one
step a NIC probes one other NIC of its plane, by turns one on its own leaf and one on another leaf:

- on its leaf, the NIC a certain number of seats further; all seats use the same number, so each is probed once;
- beyond, the leaf a certain number of leaves further, seat by seat another one, and there a seat that also moves.

Leaves of equal size make both a permutation: in a step each NIC is the target of one probe. A seed turns the order.
"""

import math
import random
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from lockstep.topology import Topology, TopologyIndex

Port = tuple[str, str]  # host and NIC


@dataclass(frozen=True, slots=True)
class Pair:
    """What to probe in one step."""

    src_nic: str
    dst: str
    dst_nic: str
    lap: int  # how often the whole list had been gone through before


@dataclass(frozen=True, slots=True)
class _Seat:
    """Where one of our NICs sits: which of its plane's leaves, and the how manieth NIC there."""

    nic: str
    leaves: tuple[tuple[Port, ...], ...]  # of its plane, all seats of each
    leaf: int
    position: int

    @property
    def inside(self) -> int:
        """Slots after which all NICs of the own leaf have been probed."""
        return len(self.leaves[self.leaf]) - 1

    @property
    def share(self) -> int:
        """How many of the other leaves each NIC of the leaf takes, so that all together reach them all."""
        return math.ceil((len(self.leaves) - 1) / len(self.leaves[self.leaf]))

    @property
    def beyond(self) -> int:
        """Slots after which all NICs of all other leaves have been probed."""
        return (len(self.leaves) - 1) * max(map(len, self.leaves))


class Mesh:
    """The order in which one host probes all others.

    >>> from lockstep.fabrics import leaf_spine
    >>> mesh = Mesh(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=1), "h0")
    >>> sorted({mesh.pair_at(step).dst for step in range(mesh.steps_per_lap)})
    ['h1', 'h2', 'h3']
    """

    def __init__(self, topology: Topology, host: str, seed: int = 0) -> None:
        self._host, self._seed = host, seed
        self._seats = _find_seats(topology, host)

    @property
    def steps_per_lap(self) -> int:
        """Steps within which this host probes every other NIC of its planes at least once; 0: there is none."""
        rounds = [max(seat.inside, seat.beyond) * _kinds(seat) for seat in self._seats]
        return max(rounds, default=0) * len(self._seats)

    def pair_at(self, step: int) -> Pair | None:
        """Return the pair of a step, the same for everybody who asks; None where it would be the host itself."""
        if not self._seats:
            return None
        slot, which = divmod(step, len(self._seats))
        seat = self._seats[which]
        if not _kinds(seat):
            return None
        slot, is_beyond = divmod(slot, 2) if _kinds(seat) == 2 else (slot, int(seat.beyond > 0))
        lap, slot = divmod(slot, seat.beyond if is_beyond else seat.inside)
        dst, dst_nic = self._beyond(seat, slot) if is_beyond else self._inside(seat, slot)
        return None if dst == self._host else Pair(seat.nic, dst, dst_nic, lap)

    def _inside(self, seat: _Seat, slot: int) -> Port:
        ports = seat.leaves[seat.leaf]
        return ports[(seat.position + 1 + _shuffled(slot, seat.inside, self._seed)) % len(ports)]

    def _beyond(self, seat: _Seat, slot: int) -> Port:
        others, widest = len(seat.leaves) - 1, max(map(len, seat.leaves))
        further = 1 + _shuffled(slot + seat.position * seat.share, others, self._seed)
        ports = seat.leaves[(seat.leaf + further) % len(seat.leaves)]
        return ports[(seat.position + _shuffled(slot // others, widest, self._seed)) % len(ports)]


def _find_seats(topology: Topology, host: str) -> tuple[_Seat, ...]:
    """Return a host's seats; leaves of a plane, and the NICs plugged into them, are in the topology's order."""
    index = TopologyIndex(topology)
    planes: dict[int | None, dict[str, list[Port]]] = defaultdict(lambda: defaultdict(list))
    for node in topology.hosts:
        for nic in node.nics:
            if leaf := index.leaf_of(node.id, nic.id):
                planes[nic.plane][leaf].append((node.id, nic.id))
    return tuple(
        _Seat(name, tuple(map(tuple, leaves.values())), number, ports.index((host, name)))
        for leaves in planes.values()
        for number, ports in enumerate(leaves.values())
        for owner, name in ports
        if owner == host
    )


def _kinds(seat: _Seat) -> int:
    return (seat.inside > 0) + (seat.beyond > 0)


def _shuffled(slot: int, size: int, seed: int) -> int:
    """Return a number below `size`, each once in `size` slots, in an order that the seed decides."""
    start, stride = _order(size, seed)
    return (start + stride * slot) % size


@lru_cache(maxsize=1024)
def _order(size: int, seed: int) -> tuple[int, int]:
    chance = random.Random(f"{seed}:{size}")  # noqa: S311  # an order, no secret
    start, first = chance.randrange(size), chance.randrange(size)
    # Steps that share no factor with the size visit everything before they repeat.
    return start, next(stride for stride in count(first) if math.gcd(stride, size) == 1)
