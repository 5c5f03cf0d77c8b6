"""A fabric that answers probes as switches do, without packets: named a fake, because no network is asked."""

from collections.abc import Sequence

from collector.path_ports import PortProber, Send
from collector.probes.packets import Arrival, Shot
from collector.probes.paths import AddressBook, addresses_in
from lockstep.fabrics import leaf_spine
from lockstep.topology import Topology

SPINES = 4


def addressed_fabric() -> Topology:
    """Return 4 hosts under 2 leaves and 4 spines, with addresses for everybody."""
    plain = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=SPINES)
    nodes = []
    for number, node in enumerate(plain.nodes):
        if node.kind == "host":
            nics = tuple(nic.model_copy(update={"address": f"10.0.0.{number + 1}"}) for nic in node.nics)
            nodes.append(node.model_copy(update={"nics": nics}))
        else:
            nodes.append(node.model_copy(update={"addresses": (f"10.1.0.{number + 1}",)}))
    return plain.model_copy(update={"nodes": tuple(nodes)})


def fake_switches(topology: Topology, lost: int = 0) -> Send:
    """Return what answers from leaf, spine and leaf by the hash of the ports; every `lost`-th probe gets none."""
    address = {node.id: node.addresses[0] for node in topology.switches if node.addresses}

    def send(shots: Sequence[Shot]) -> list[Arrival | None]:
        return [
            None if lost and number % lost == 0 else Arrival(0, 1, address[_who(shot)], "expired")
            for number, shot in enumerate(shots)
        ]

    return send


def spine_of(sport: int, dport: int) -> str:
    return f"spine{hash((sport, dport)) % SPINES}"


def _who(shot: Shot) -> str:
    return {1: "leaf0", 2: spine_of(shot.flow.sport, shot.flow.dport), 3: "leaf1"}[shot.ttl]


def prober(topology: Topology, lost: int = 0) -> PortProber:
    return PortProber(topology, "h0", AddressBook(topology, addresses_in(topology)), fake_switches(topology, lost))
