"""The nodes of a cluster from what is known about them: where they are cabled to, and how often each has failed."""

from collections.abc import Collection, Mapping

from lockstep.topology import Topology, TopologyIndex
from planner.recovery.allocation.jobs import Node

_FLEET_FAILURES_PER_DAY = 0.0065  # where nothing failed yet: Meta's RSC-1, 6.50 per 1,000 node-days


def estimate_failure_rates(failures: Mapping[str, int], days_seen: Mapping[str, float]) -> dict[str, float]:
    """Return failures per day of each node that was watched: that of all nodes, moved by the node's own record.

    The rate is the mean of a gamma distribution that starts with the weight of one failure at the rate of the fleet,
    so that a node without a record is like the others, and one that failed three times is not.

    >>> rates = estimate_failure_rates({"h0": 3}, {"h0": 100.0, "h1": 100.0})
    >>> round(rates["h0"] / rates["h1"], 6)
    4.0
    """
    days = sum(days_seen.values())
    failed = sum(failures.get(name, 0) for name in days_seen)
    fleet = failed / days if failed and days > 0 else _FLEET_FAILURES_PER_DAY
    return {name: (failures.get(name, 0) + 1) / (seen + 1 / fleet) for name, seen in days_seen.items()}


def place_nodes(
    topology: Topology, failures_per_day: Mapping[str, float], unusable: Collection[str] = ()
) -> tuple[Node, ...]:
    """Return the hosts of a topology as nodes; those on the leaves of the same rails are on one leaf here."""
    index = TopologyIndex(topology)
    typical = sorted(failures_per_day.values())[len(failures_per_day) // 2] if failures_per_day else 0.0
    return tuple(
        Node(
            host.id,
            "+".join(sorted({leaf for nic in host.nics if (leaf := index.leaf_of(host.id, nic.id))})) or None,
            host.rack,
            failures_per_day.get(host.id, typical),
            host.id not in unusable,
        )
        for host in topology.nodes
        if host.kind == "host"
    )
