"""How a topology is made smaller, so that this machine can carry it."""

from dataclasses import dataclass

from lockstep.errors import BadInput
from lockstep.topology import Topology, split_end

MOST_MBPS = 1500.0  # all NICs together; two cores saturate at some 2,200, each byte being shaped four times
_REAL_MBPS = 1000.0  # of a gigabit: nothing runs faster than told


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """Rates and queues of a fabric, and how its switches spread flows."""

    mbps_per_gbps: float | None = None  # None: as much as `most_mbps` allows
    most_mbps: float = MOST_MBPS
    burst_bytes: int = 32_768  # larger bundles of segments are cut up by the kernel before they are sent
    queue_ms: float = 20.0  # what waits in a port at most, at its nominal rate
    hash_seed: int = 7  # fixed, so that a port takes the same spine in every build


def scale_of(topology: Topology, options: ShapeOptions) -> float:
    """Return the Mbit/s that stand for a Gbit/s of the topology; BadInput when the sum would be too much.

    >>> from lockstep.fabrics import leaf_spine
    >>> scale_of(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1), ShapeOptions())
    1.875
    """
    hosts = {host.id for host in topology.hosts}
    rates = [link.gbps for link in topology.links for end in (link.a, link.b) if split_end(end)[0] in hosts]
    if not rates:
        return _REAL_MBPS
    allowed = options.most_mbps / sum(rates)
    wanted = options.mbps_per_gbps
    if wanted is not None and wanted > allowed * (1 + 1e-9):
        raise BadInput(
            f"at {wanted:g} Mbit/s for a Gbit/s the NICs would send {wanted * sum(rates):.0f} Mbit/s in all, "
            f"but this testbed carries {options.most_mbps:.0f}"
        )
    return min(allowed, _REAL_MBPS) if wanted is None else wanted
