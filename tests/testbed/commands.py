"""What `lockstep testbed up` and `lockstep testbed down` do: a fabric that outlives the process that built it."""

import os
from collections.abc import Iterator
from contextlib import closing

from lockstep.errors import NotPresent
from lockstep.topology import Topology
from tests.testbed.fabric import ownership
from tests.testbed.fabric.building import build_fabric, open_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.namespaces import Home
from tests.testbed.fabric.options import ShapeOptions
from tests.testbed.fabric.sweeping import list_fabrics, sweep


def bring_up(topology: Topology, options: ShapeOptions | None = None) -> Iterator[str]:
    """Build a fabric that stays, and yield what a person wants to know about it, line by line."""
    fabric = build_fabric(topology, options, is_kept=True)
    lines = list(describe(fabric))
    fabric.leave()
    yield from lines


def take_down(prefix: str | None = None) -> list[str]:
    """Remove a kept fabric, or all of them, and whatever dead processes left; return the names of what is gone."""
    if os.geteuid() != 0:
        raise NotPresent("the testbed needs root: it removes network namespaces")
    kept = list_kept()
    if prefix is not None and prefix not in kept:
        known = f"there are: {', '.join(kept)}" if kept else "none is up"
        raise NotPresent(f"there is no fabric {prefix}; {known}")
    wanted = kept if prefix is None else [prefix]
    for each in wanted:
        open_fabric(each).destroy()
    return sorted([*wanted, *sweep()])


def list_kept() -> list[str]:
    """Return the names of the fabrics that are up and belong to no running process."""
    with closing(Home(None)) as root:
        notes = {prefix: ownership.read_note(prefix) for prefix in list_fabrics(root)}
    return [prefix for prefix, note in notes.items() if note and note.is_kept]


def describe(fabric: Fabric) -> Iterator[str]:
    """Yield name, addresses and rates of a fabric, and how to get into a host."""
    plan = fabric.plan
    yield f"{fabric.prefix}: {len(plan.hosts)} hosts, {len(plan.switches)} switches, {len(plan.cables)} links"
    yield f"this machine is {fabric.head_address} on every host's {fabric.management.interface}"
    for host in fabric.topology.hosts:
        nics = (f"{nic.id} {nic.address}" for nic in host.nics if nic.address)
        yield f"  {host.id}: {', '.join(nics)}"
    rates = sorted({f"{cable.rate_mbps:g}" for cable in plan.cables})
    yield f"links carry {' or '.join(rates)} Mbit/s"
    if plan.hosts:
        yield f"a shell on {plan.hosts[0]}: ip netns exec {fabric.namespace_of(plan.hosts[0])} bash"
