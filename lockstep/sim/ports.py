"""The ports of a simulated fabric: every NIC and every port of a switch, with the directed links at it."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lockstep.sim.network import Ints, Network
from lockstep.topology import Topology, split_end


@dataclass(frozen=True)
class Ports:
    """Ports in a fixed order; all columns have the same length."""

    owner: pa.Array  # host or switch
    name: pa.Array
    tx: Ints  # directed link that it sends into
    rx: Ints  # directed link that it receives from
    mbps: Ints

    def __len__(self) -> int:
        return len(self.tx)


def nic_ports(topology: Topology, network: Network) -> Ports:
    """Return the NICs of all hosts, in the order in which the simulation counts them."""
    names = [(host.id, nic.id) for host in topology.hosts for nic in host.nics]
    links = [network.links_of_nic(number) for number in range(len(names))]
    return _ports(topology, [(*name, *ways) for name, ways in zip(names, links, strict=True)])


def switch_ports(topology: Topology) -> Ports:
    """Return the ports of all switches, named after what they lead to: fabrics do not name them."""
    switches = {switch.id for switch in topology.switches}
    ends = [
        (split_end(near)[0], far, 2 * number + way, 2 * number + 1 - way)
        for number, link in enumerate(topology.links)
        for way, (near, far) in enumerate(((link.a, link.b), (link.b, link.a)))
    ]
    return _ports(topology, [end for end in ends if end[0] in switches])


def _ports(topology: Topology, rows: list[tuple[str, str, int, int]]) -> Ports:
    owner, name, tx, rx = zip(*rows, strict=True)
    mbps = np.rint([link.gbps * 1e3 for link in topology.links]).astype(np.int64)
    return Ports(pa.array(owner), pa.array(name), np.array(tx), np.array(rx), mbps[np.array(tx) // 2])
