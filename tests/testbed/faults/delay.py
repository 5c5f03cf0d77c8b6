"""Delay on a cable: what arrives at a port goes through a process that holds it, and comes in after that.

The kernel has no netem here. A filter at the port's entrance sends every IP packet into a tun interface; the process
behind it writes it back later, and the packet enters the node there instead: before it was routed, so that neither
its time to live nor its way changes. Frames that are not IP, such as ARP, are not held.
"""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.errors import NotPresent
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.management import find_interface
from tests.testbed.fabric.plan import Port

_SCRIPT = Path(__file__).with_name("delay_line.py")
_INGRESS = 0xFFFF_FFF2  # entrance of a clsact queue, linux/pkt_sched.h
_IP = 0x0800  # linux/if_ether.h
_QUEUE_PACKETS = 5_000  # between kernel and process; the default of 500 is 30 ms at 200 Mbit/s
_STOP_S = 20.0


class DelayLine:
    """A delay that is there from now on until it is stopped."""

    def __init__(self, fabric: Fabric, receiver: Port, delay_s: float) -> None:
        self._home, self._port = fabric.homes[receiver.node], receiver
        self.interface = f"d-{receiver.name}"[:15]
        command = [sys.executable, "-S", str(_SCRIPT), self.interface, str(delay_s)]
        self._process = fabric.run_in(receiver.node, command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise NotPresent(f"packets cannot be delayed here: {' '.join(command)} ended")
        self._home.change(self._divert)

    def stop(self) -> None:
        """Let packets in directly again; those that are held come in now."""
        self._home.change(lambda route: route.tc("del", "clsact", find_interface(route, self._port.name)))
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self._process.kill()

    def _divert(self, route: Any) -> None:
        tun = find_interface(route, self.interface)
        port = find_interface(route, self._port.name)
        # A switch answers probes from the address of the interface where they came in: it stays the same.
        route.addr("add", index=tun, address=self._port.address, prefixlen=32)
        route.link("set", index=tun, state="up", txqlen=_QUEUE_PACKETS)
        route.tc("add", "clsact", port)
        action = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": tun}
        everything = {"protocol": _IP, "prio": 1, "target": 0x10001, "keys": ["0x0/0x0+0"], "action": action}
        route.tc("add-filter", "u32", port, parent=_INGRESS, **everything)
