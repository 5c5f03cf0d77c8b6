"""What the rows call a NIC: what NCCL, the kernel and the topology each name in their own way."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from collector.kernel.rdma import find_ports
from lockstep.records import Transport
from lockstep.topology import Node, Topology

_MOST_INTERFACES = 4_096


@dataclass(frozen=True)
class HostNics:
    """The NICs of this host at one moment."""

    ports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # RDMA port -> its network interfaces
    interfaces: tuple[str, ...] = ()  # network interfaces that are hardware
    node: Node | None = None  # this host in the topology

    def name_port(self, port: str) -> str:
        """Return the row's name of an RDMA port that NCCL calls `mlx5_0:1`.

        >>> HostNics({"mlx5_0": ("eth0",)}).name_port("mlx5_0:1")
        'mlx5_0'
        """
        nic = port if port in self.ports else port.rpartition(":")[0] or port
        return self._as_in_topology(nic, self.ports.get(nic, ()))

    def name_interface(self, interface: str) -> str:
        """Return the row's name of a network interface."""
        return self._as_in_topology(
            interface, [port for port, interfaces in self.ports.items() if interface in interfaces]
        )

    def name_devices(self, devices: Iterable[str], transport: Transport) -> str | None:
        """Return the name of what NCCL uses as one device: its parts with commas between them."""
        names = map(self.name_interface if transport == "socket" else self.name_port, devices)
        return ",".join(dict.fromkeys(names)) or None

    def transport_of(self, nic: str) -> Transport:
        """Return what NCCL uses a NIC with, if nobody tells it otherwise."""
        return "ib" if nic in self.ports or any(nic in names for names in self.ports.values()) else "socket"

    def only_nic(self) -> str | None:
        """Return the NIC of a host that has one; the topology knows better than the kernel which ones count."""
        names = [nic.id for nic in self.node.nics] if self.node else list(self.ports) or list(self.interfaces)
        return names[0] if len(names) == 1 else None

    def nic_of_gpu(self, gpu: int | None) -> str | None:
        """Return the NIC that the topology gives a GPU, if that is one."""
        gpus = self.node.gpus if self.node else ()
        found = next((each.nics for each in gpus if each.index == gpu), ())
        return found[0] if len(found) == 1 else None

    def _as_in_topology(self, nic: str, other_names: Iterable[str]) -> str:
        known = {each.id for each in self.node.nics} if self.node else set()
        return nic if nic in known else next((name for name in other_names if name in known), nic)


def read_nics(root: Path, host: str, topology: Topology | None) -> HostNics:
    """Return the NICs as the kernel shows them, and this host's entry in the topology."""
    ports = {
        nic: tuple(sorted(path.name for path in (folder.parent.parent / "device/net").glob("*")))
        for nic, folder in find_ports(root / "sys/class/infiniband").items()
    }
    found = sorted((root / "sys/class/net").glob("*"))[:_MOST_INTERFACES]
    interfaces = tuple(path.name for path in found if (path / "device").exists())  # what is only software has none
    node = next((node for node in topology.hosts if node.id == host), None) if topology else None
    return HostNics(ports, interfaces, node)
