"""Which address belongs to which NIC or switch port, as the topology or whoever asks says."""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address

from lockstep.topology import Topology, split_end


def addresses_in(topology: Topology) -> dict[str, str | Sequence[str]]:
    """Return the addresses that a topology tells, by NIC and by switch."""
    nics = {f"{host.id}/{nic.id}": nic.address for host in topology.hosts for nic in host.nics if nic.address}
    return {**nics, **{switch.id: switch.addresses for switch in topology.switches if switch.addresses}}


class AddressBook:
    """Addresses of hosts' NICs (`h3/eth1`) and of switches or their ports (`spine0`, `leaf1/swp7`).

    An entry whose node is not in the topology, or whose address is no IPv4 address or was given before, is left
    out; `complaints` names each of them.
    """

    def __init__(self, topology: Topology, addresses: Mapping[str, str | Sequence[str]]) -> None:
        self._nics = {node.id: {nic.id for nic in node.nics} for node in topology.hosts}
        self._switches = {node.id for node in topology.switches}
        self._ends: dict[str, str] = {}
        self._first: dict[str, str] = {}
        self.complaints = tuple(self._take(addresses))

    def address_of(self, host: str, nic: str) -> str | None:
        """Return the address of a NIC, the first where it has several."""
        return self._first.get(f"{host}/{nic}")

    def end_at(self, address: str) -> str | None:
        """Return who answers from an address: host/nic, switch or switch/port."""
        return self._ends.get(address)

    def host_at(self, address: str) -> str | None:
        """Return the host that has an address; None for switches and strangers."""
        node = split_end(self._ends.get(address, ""))[0]
        return node if node in self._nics else None

    def addresses_of(self, host: str) -> list[str]:
        """Return the first address of each NIC of a host, in the order in which they were given."""
        return [address for end, address in self._first.items() if split_end(end)[0] == host]

    def _take(self, addresses: Mapping[str, str | Sequence[str]]) -> Iterator[str]:
        for end, given in addresses.items():
            if not self._is_known(end):
                yield f"{end} is no NIC and no switch of the topology"
                continue
            for text in [given] if isinstance(given, str) else given:
                yield from self._take_one(end, text)

    def _take_one(self, end: str, text: str) -> Iterator[str]:
        try:
            address = str(IPv4Address(text))
        except ValueError:
            yield f"{text!r} of {end} is no IPv4 address"
            return
        if address in self._ends:
            yield f"{address} of {end} already belongs to {self._ends[address]}"
            return
        self._ends[address] = end
        self._first.setdefault(end, address)

    def _is_known(self, end: str) -> bool:
        node, port = split_end(end)
        return node in self._switches or port in self._nics.get(node, ())
