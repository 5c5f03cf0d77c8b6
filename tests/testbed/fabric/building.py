"""Builds fabrics of namespaces and shaped veths, also such as outlive their builder, for `lockstep testbed up`."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

from lockstep.errors import NotPresent
from lockstep.topology import Topology
from tests.testbed.fabric import ownership
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.management import (
    INTERFACE,
    Management,
    build_management,
    choose_subnet,
    find_interface,
    list_addresses,
)
from tests.testbed.fabric.namespaces import Home
from tests.testbed.fabric.plan import (
    PREFIX_BITS,
    Cable,
    FabricPlan,
    Port,
    ShapeOptions,
    SourceRule,
    lay_route,
    plan_fabric,
    plan_routes,
    plan_rules,
    shape,
)
from tests.testbed.fabric.sweeping import list_fabrics, sweep

_ALL_SETTINGS = {
    "ipv6/conf/all/disable_ipv6": 1,
    "ipv6/conf/default/disable_ipv6": 1,
    "ipv4/conf/all/rp_filter": 0,
    "ipv4/conf/default/rp_filter": 0,
}
_HOST_SETTINGS = {
    "ipv4/tcp_no_metrics_save": 1  # else a connection remembers how slow the path was before it was healed
}
_SWITCH_SETTINGS = {
    "ipv4/ip_forward": 1,
    # Policy 1 would not do: over veth it follows the sender's random socket hash instead of the ports.
    "ipv4/fib_multipath_hash_policy": 3,
    "ipv4/fib_multipath_hash_fields": 0x37,  # addresses, protocol and ports
    "ipv4/icmp_ratelimit": 0,  # the defaults answer a few probes in a second
    "ipv4/icmp_msgs_per_sec": 1_000_000,
    "ipv4/icmp_msgs_burst": 100_000,
    "ipv4/icmp_errors_use_inbound_ifaddr": 1,  # so that an answer names the link and not only the switch
}
# Kernels before 6.11 have no seed, older ones one limit for all namespaces; some have no IPv6.
_OPTIONAL_SETTINGS = ("ipv4/fib_multipath_hash_seed", "ipv4/icmp_msgs_", "ipv6/")
_LOOPBACK = 1  # index of lo in every namespace
_REAL_MBPS = 1000.0  # of a gigabit: a note's topology has real rates


def build_fabric(topology: Topology, options: ShapeOptions | None = None, is_kept: bool = False) -> Fabric:
    """Return a running fabric, which the caller closes; NotPresent without root.

    What dead owners left is swept first. A kept fabric stays when this process ends, until somebody takes it down.
    """
    if os.geteuid() != 0:
        raise NotPresent("the testbed needs root: it makes network namespaces and shapes their links")
    options = options or ShapeOptions()
    plan = plan_fabric(topology, options)
    sweep()
    with ExitStack() as undo:
        fabric = _claim(plan, options, is_kept)
        undo.callback(fabric.destroy)
        try:
            _build(fabric)
        except PermissionError as refusal:
            raise NotPresent(f"the testbed needs the right to make network namespaces: {refusal}") from refusal
        undo.pop_all()
    return fabric


def open_fabric(prefix: str) -> Fabric:
    """Return a fabric that another process built and kept; NotPresent when there is none of that name.

    `leave` lets go of it again, `destroy` takes it down.
    """
    note = ownership.read_note(prefix)
    if note is None or os.geteuid() != 0:
        raise NotPresent(f"there is no fabric {prefix} here" if note is None else "the testbed needs root")
    plan = plan_fabric(note.topology, replace(note.options, mbps_per_gbps=_REAL_MBPS))
    fabric = Fabric(prefix, plan, note.options, Management(prefix, note.subnet, plan.hosts), Home(None))
    for node in plan.hosts + plan.switches:
        fabric.homes[node] = Home(fabric.namespace_of(node), has_own_sysfs=node in plan.hosts)
    return fabric


def _claim(plan: FabricPlan, options: ShapeOptions, is_kept: bool) -> Fabric:
    """Take a prefix and a subnet, note them, and make the namespaces and the bridge under the lock."""
    with ownership.one_at_a_time():
        prefix, root = ownership.choose_prefix(), Home(None)
        subnet = choose_subnet([*list_addresses(root), *ownership.noted_heads()])
        started = ownership.start_of(os.getpid())
        assert started is not None
        note = ownership.Note(
            owner=os.getpid(),
            owner_start=started,
            is_kept=is_kept,
            subnet=subnet,
            topology=plan.topology,
            options=options,
        )
        ownership.write_note(prefix, note)
        return Fabric(prefix, plan, options, Management(prefix, subnet, plan.hosts), root)


def _build(fabric: Fabric) -> None:
    for node in fabric.plan.hosts + fabric.plan.switches:
        fabric.homes[node] = Home(fabric.namespace_of(node), is_new=True, has_own_sysfs=node in fabric.plan.hosts)
        _prepare(fabric.homes[node], node in fabric.plan.hosts, fabric.options)
    build_management(fabric.management, fabric.root, [fabric.homes[host] for host in fabric.plan.hosts])
    for cable in fabric.plan.cables:
        _lay(cable, fabric.homes, fabric.options)
    for route in plan_routes(fabric.plan):
        fabric.homes[route.node].change(partial(lay_route, route=route))
    for rule in plan_rules(fabric.plan):
        fabric.homes[rule.host].change(partial(_lay_rule, rule=rule))


def _prepare(home: Home, is_host: bool, options: ShapeOptions) -> None:
    home.change(lambda route: route.link("set", index=_LOOPBACK, state="up"))
    special = _HOST_SETTINGS if is_host else _SWITCH_SETTINGS | {"ipv4/fib_multipath_hash_seed": options.hash_seed}
    home.write_settings(_ALL_SETTINGS | special, _OPTIONAL_SETTINGS)


def _lay(cable: Cable, homes: Mapping[str, Home], options: ShapeOptions) -> None:
    """Lay a veth, made with its peer in the other namespace at once, so that no name is ever in two places."""
    peer = {"ifname": cable.b.name, "net_ns_fd": homes[cable.b.node].fd}
    homes[cable.a.node].change(lambda route: route.link("add", ifname=cable.a.name, kind="veth", peer=peer))
    for port in cable.ends:
        homes[port.node].change(partial(_set_up, port=port, cable=cable, options=options))


def _set_up(route: Any, port: Port, cable: Cable, options: ShapeOptions) -> None:
    index = find_interface(route, port.name)
    route.addr("add", index=index, address=port.address, prefixlen=PREFIX_BITS)
    shape(route, index, cable.rate_mbps, options)
    if cable.link.up:
        route.link("set", index=index, state="up")


def _lay_rule(route: Any, rule: SourceRule) -> None:
    route.rule("add", src=rule.address, src_len=32, table=rule.table, priority=rule.table)


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
    yield f"this machine is {fabric.head_address} on every host's {INTERFACE}"
    for host in fabric.topology.hosts:
        nics = (f"{nic.id} {nic.address}" for nic in host.nics if nic.address)
        yield f"  {host.id}: {', '.join(nics)}"
    rates = sorted({f"{cable.rate_mbps:g}" for cable in plan.cables})
    yield f"links carry {' or '.join(rates)} Mbit/s"
    if plan.hosts:
        yield f"a shell on {plan.hosts[0]}: ip netns exec {fabric.namespace_of(plan.hosts[0])} bash"
