"""A plan as hosts read it: for each connection its road, its ports, its plane and how much its road can give."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lockstep.host_paths import PathChoice, Proto
from lockstep.topology import Topology
from planner.paths.demand import Demand
from planner.paths.planning import PathPlan
from planner.paths.ports import PortChoice

_PROTOS: Mapping[str | None, Proto] = {"socket": "tcp", "ofi": "udp"}  # RDMA is RoCE to a switch that hashes


def describe_choices(
    plan: PathPlan, ports: Sequence[PortChoice], demand: Demand, topology: Topology, weights: Mapping[str, float]
) -> dict[str, list[PathChoice]]:
    """Return the choices of each host, for those flows that have a way; in the order of the plan.

    The listening port of a socket is not known before it listens, so the ports of sockets are left to the host's own
    agent; weights are those of the weakest link of a road.
    """
    addresses = {f"{host.id}/{nic.id}": (nic.address, nic.plane) for host in topology.hosts for nic in host.nics}
    told: dict[str, list[PathChoice]] = defaultdict(list)
    for choice in ports:
        if not choice.links:
            continue
        host, _, nic = choice.src.partition("/")
        dst, _, dst_nic = choice.dst.partition("/")
        (source, plane), (destination, _) = addresses[choice.src], addresses[choice.dst]
        wiring = demand.wiring.get(choice.flow)
        proto = _PROTOS.get(wiring.transport if wiring else None, "roce")
        told[host].append(
            PathChoice(
                connection=choice.flow,
                nic=nic,
                dst=dst,
                dst_nic=dst_nic,
                links=choice.links,
                proto=proto,
                source=source,
                destination=destination,
                dport=None if proto == "tcp" else choice.dport,
                sports=() if proto == "tcp" else choice.ports,
                plane=plane,
                weight=min((weights.get(link, 1.0) for link in choice.links), default=1.0),
            )
        )
    return dict(told)
