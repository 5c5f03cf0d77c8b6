"""How far two clocks are apart, from the four times of some questions and answers, and whom to ask.

A packet takes some time, never less than none. So each exchange bounds the difference from both sides, by its two
ways; the bounds of a burst together are at least as tight as those of its shortest round trip alone, half of which is
the usual bound (RFC 5905). Nothing is assumed about both ways taking equally long.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockstep.topology import Topology, TopologyIndex

_DRIFT_PPM = 200  # IEEE 802.3 allows the oscillators of a network card 100 parts in a million, each of the two


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer: sent and returned on our clock, received and answered on the other's."""

    asked_ns: int
    received_ns: int
    answered_ns: int
    returned_ns: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """One clock minus another; the truth is within `error_ns` of `offset_ns`."""

    offset_ns: int
    error_ns: int

    def aged(self, age_ns: int) -> "Estimate":
        """Return what is still known after a while in which both clocks ran freely."""
        return Estimate(self.offset_ns, self.error_ns + max(0, age_ns) * _DRIFT_PPM // 1_000_000)

    def plus(self, other: "Estimate") -> "Estimate":
        """Return our clock minus a third one, when the other's difference to that is known."""
        return Estimate(self.offset_ns + other.offset_ns, self.error_ns + other.error_ns)


EXACT = Estimate(0, 0)  # what the reference knows about itself


def estimate_offset(burst: Iterable[Exchange]) -> Estimate | None:
    """Return our clock minus the other's, or None without an answer or when a clock was set during the burst.

    >>> estimate_offset([Exchange(asked_ns=100, received_ns=60, answered_ns=70, returned_ns=130)])
    Estimate(offset_ns=50, error_ns=10)
    """
    answered = list(burst)
    if not answered:
        return None
    # received = asked - offset + way there, and returned = answered + offset + way back, both ways >= 0
    lowest_ns = max(each.asked_ns - each.received_ns for each in answered)
    highest_ns = min(each.returned_ns - each.answered_ns for each in answered)
    if lowest_ns > highest_ns:
        return None
    # Half of the width rounded up, so that the bound holds although the offset is rounded down.
    return Estimate((lowest_ns + highest_ns) // 2, (highest_ns - lowest_ns + 1) // 2)


def choose_elders(topology: Topology, host: str, reference: str) -> list[str]:
    """Return whom a host asks for the time, best first: the reference, then the first host of its leaf.

    The second stands in where the way to the first is broken; what it knows has aged, and its bound says so.
    """
    if host == reference:
        return []
    first = _first_of_leaf(topology, host)
    return [reference] if first in (None, host, reference) else [reference, str(first)]


def _first_of_leaf(topology: Topology, host: str) -> str | None:
    index = TopologyIndex(topology)
    nics: Sequence[str] = [nic.id for nic in index.nics_of(host)]
    leaf = next((leaf for nic in nics if (leaf := index.leaf_of(host, nic))), None)
    if leaf is None:
        return None
    return next(
        node.id for node in topology.hosts if any(index.leaf_of(node.id, nic.id) == leaf for nic in node.nics)
    )
