"""Hosts without namespaces: each is an address of the loopback interface, so that nobody needs root."""

import subprocess
from collections.abc import Mapping, Sequence


class Loopback:
    """Gives every host and NIC an address of 127.0.0.0/8 in the order in which they are asked for."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[str, str], str] = {}

    def address_of(self, host: str, nic: str) -> str:
        """Return the address of a NIC; the same each time.

        >>> place = Loopback()
        >>> place.address_of("h0", "eth0"), place.address_of("h0", "eth1"), place.address_of("h0", "eth0")
        ('127.77.0.1', '127.77.0.2', '127.77.0.1')
        """
        number = (
            self._addresses.get((host, nic))
            or f"127.77.{len(self._addresses) // 250}.{len(self._addresses) % 250 + 1}"
        )
        return self._addresses.setdefault((host, nic), number)

    def run_in(self, host: str, command: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Start a process as if on that host."""
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
