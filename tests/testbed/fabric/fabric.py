"""A running fabric: start processes on its hosts, read its ports, ask which way a flow takes, take it down."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from lockstep.errors import BadInput
from lockstep.topology import Topology
from tests.testbed.fabric import ownership
from tests.testbed.fabric.counters import PortCounters, read_ports
from tests.testbed.fabric.management import Management
from tests.testbed.fabric.namespaces import Home
from tests.testbed.fabric.options import ShapeOptions
from tests.testbed.fabric.oracle import Flow, find_way
from tests.testbed.fabric.plan import FabricPlan, Port
from tests.testbed.fabric.sweeping import remove_fabric

File = int | IO[bytes] | None
_DEATH_S = 20.0  # a killed process is gone at once, unless a disk holds it


class Fabric:
    """Namespaces by the names of the topology's nodes; a context manager that leaves nothing behind."""

    def __init__(
        self, prefix: str, plan: FabricPlan, options: ShapeOptions, management: Management, root: Home
    ) -> None:
        self.prefix, self.plan, self.options, self.management, self.root = prefix, plan, options, management, root
        self.homes: dict[str, Home] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Fabric":
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    @property
    def topology(self) -> Topology:
        """What was built, with the address of every NIC and the rates that the links really have."""
        return self.plan.topology

    @property
    def head_address(self) -> str:
        """Where processes on hosts reach this machine, without touching the fabric."""
        return self.management.head

    def address_of(self, host: str, nic: str) -> str:
        """Return the address of a NIC."""
        return self._port(host, nic).address

    def namespace_of(self, node: str) -> str:
        """Return the name of a node's namespace, as `ip netns` shows it."""
        return f"{self.prefix}-{node}"

    def run_in(
        self,
        host: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        stdin: File = subprocess.DEVNULL,
        stdout: File = None,
        stderr: File = None,
        cwd: Path | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Start a process on a host; it sees that host's interfaces only, below /sys too, and ends with us."""
        home = self._home(host)
        process = home.start(command, env, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd)
        self._processes.append(process)
        return process

    def counters(self) -> dict[tuple[str, str], PortCounters]:
        """Return what every port of the fabric has counted, by node and interface."""
        return {
            (node, name): counted
            for node in self.homes
            for name, counted in self.homes[node].change(read_ports).items()
            if (node, name) in self.plan.cable_by_port
        }

    def route_of(self, src: tuple[str, str], dst: tuple[str, str], flow: Flow) -> tuple[str, ...]:
        """Return the ids of the links that a flow between two NICs takes now, as the kernels of the switches say."""
        return find_way(self.plan, self.homes, self._port(*src), self._port(*dst), flow)

    def leave(self) -> None:
        """Let go of the fabric without taking it down, as the process does that built it to be kept."""
        for home in (*self.homes.values(), self.root):
            home.close()
        self.homes = {}

    def destroy(self) -> None:
        """Kill what runs in the fabric and remove all of it."""
        remove_fabric(self.prefix, self.root)
        for process in self._processes:
            process.kill()  # it may have left for a namespace of its own
            process.wait(_DEATH_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
        self.leave()
        ownership.remove_note(self.prefix)

    def _home(self, node: str) -> Home:
        if node not in self.homes:
            raise BadInput(f"there is no {node} in this fabric; there are {', '.join(self.homes)}")
        return self.homes[node]

    def _port(self, host: str, nic: str) -> Port:
        found = self.plan.cable_by_port.get((host, nic))
        if found is None:
            raise BadInput(f"there is no cabled NIC {host}/{nic} in this fabric")
        return found[1]
