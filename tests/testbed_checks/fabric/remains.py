"""What is left of a fabric on this machine, for tests that want nothing to be."""

import os
from pathlib import Path

from pyroute2 import IPRoute

from tests.testbed.fabric import ownership
from tests.testbed.fabric.cgroups import list_groups
from tests.testbed.fabric.namespaces import list_names


def find_remains(prefix: str) -> list[str]:
    """Return the names of all namespaces, interfaces, control groups and notes of a fabric."""
    with IPRoute() as route:
        interfaces = [link.get_attr("IFLA_IFNAME") for link in route.get_links()]
    names = [*list_names(), *interfaces, *list_groups(), *os.listdir(ownership.FOLDER)]
    return [name for name in names if ownership.prefix_of(name) == prefix]


def is_running(pid: int) -> bool:
    """Return whether a process has not ended, whoever its parent is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
