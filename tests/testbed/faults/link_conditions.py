"""What failures together mean for every direction of every cable, and how cables are brought into that condition."""

import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from collector.kernel.netlink import pack_attribute
from lockstep.errors import BadScenario, NotPresent
from lockstep.topology import link_name
from simulator.faults import Fault
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.management import find_interface, set_state
from tests.testbed.fabric.namespaces import Home
from tests.testbed.fabric.nftables import INGRESS, REGISTER, add_rule, expression, nest, number, remove_rule
from tests.testbed.fabric.plan import Cable, FabricPlan, Port, lay_route, plan_routes, shape

WIRE_EFFECTS = ("rate", "losing", "delayed", "down", "gone")
_WIRE_KINDS = ("nic", "link", "switch", "host", "fabric")
_SCRIPT = Path(__file__).with_name("delay_line.py")
_INGRESS = 0xFFFF_FFF2  # entrance of a clsact queue, linux/pkt_sched.h
_IP = 0x0800  # linux/if_ether.h
_QUEUE_PACKETS = 5_000  # between kernel and process; the default of 500 is 30 ms at 200 Mbit/s
_STOP_S = 20.0
# linux/netfilter/nf_tables.h
_DROP, _VERDICT_REGISTER = 0, 0
_RANDOM, _TO_NETWORK_ORDER, _LESS_THAN = 1, 1, 2
_ONE_IN = 1_000_000


class Failure(NamedTuple):
    """A fault that is there now, and how much of it, 0 to 1."""

    fault: Fault
    level: float = 1.0


@dataclass(frozen=True, slots=True)
class Condition:
    """How one direction of a cable is: what is left of its rate, what it loses, by how much it is late."""

    share: float = 1.0
    loss: float = 0.0
    delay_s: float = 0.0
    is_up: bool = True


HEALTHY = Condition()


def conditions(plan: FabricPlan, failures: Iterable[Failure]) -> dict[Port, Condition]:
    """Return the directions that are not healthy, by the port that sends.

    Of several failures of one direction the lowest rate counts, losses are independent, and delays add up.
    """
    found: dict[Port, Condition] = {}
    for failure in failures:
        if failure.fault.effect in WIRE_EFFECTS and failure.fault.kind in _WIRE_KINDS:
            for port in senders_of(plan, failure.fault):
                found[port] = _worsen(found.get(port, HEALTHY), failure)
    return {port: condition for port, condition in found.items() if condition != HEALTHY}


def senders_of(plan: FabricPlan, fault: Fault) -> list[Port]:
    """Return the sending ports of what a fault is about; BadScenario when the fabric has no such part.

    tx of a NIC is what its host sends, tx of a link what its first end sends; without a side both are meant.
    """
    cables = _cables_of(plan, fault)
    if not cables:
        raise BadScenario(f"there is no {fault.part} in this fabric")
    if fault.side is None:
        return [port for cable, _ in cables for port in cable.ends]
    return [near if fault.side == "tx" else cable.far_end(near) for cable, near in cables]


def down_end(cable: Cable, plan: FabricPlan) -> Port:
    """Return the port that is switched off when a cable is down: of a switch, and of two the one named first.

    A host's own interface stays on: switched off it would lose its routes, and it notices the lost carrier anyway.
    """
    return cable.b if cable.a.node in plan.hosts else cable.a


def silent_hosts(failures: Iterable[Failure]) -> set[str]:
    return {failure.fault.name for failure in failures if failure.fault.effect in ("silent", "gone")}


def _cables_of(plan: FabricPlan, fault: Fault) -> list[tuple[Cable, Port]]:
    """Return the cables of a part, each with the end from which `tx` leaves."""
    ports: Mapping[tuple[str, str], tuple[Cable, Port]] = plan.cable_by_port
    if fault.kind == "nic":
        host, _, nic = fault.name.partition("/")
        return [ports[host, nic]] if host in plan.hosts and (host, nic) in ports else []
    if fault.kind == "link":
        return [(cable, cable.a) for cable in plan.cables if link_name(cable.link) == fault.part]
    if fault.kind == "fabric":
        return [(cable, cable.a) for cable in plan.cables if {cable.a.node, cable.b.node} <= set(plan.switches)]
    known = plan.switches if fault.kind == "switch" else plan.hosts
    return list(plan.cables_of(fault.name)) if fault.name in known else []


def _worsen(before: Condition, failure: Failure) -> Condition:
    fault, level = failure
    amount = fault.amount if fault.amount is not None else 0.0
    match fault.effect:
        case "rate":
            return replace(before, share=min(before.share, 1 - level * (1 - amount)))
        case "losing":
            return replace(before, loss=1 - (1 - before.loss) * (1 - level * amount))
        case "delayed":
            return replace(before, delay_s=before.delay_s + level * amount)
        case "down" if fault.side:  # a cable has carrier in both directions or in none: one of them dies silently
            return replace(before, loss=1.0)
        case _:
            return replace(before, is_up=False)


class DelayLine:
    """A delay that is there from now on until it is stopped.

    The kernel has no netem here. A filter at the port's entrance sends every IP packet into a tun interface; the
    process behind it writes it back later, and the packet enters the node there instead: before it was routed, so
    that neither its time to live nor its way changes. Frames that are not IP, such as ARP, are not held.
    """

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


def lose(home: Home, interface: str, share: float) -> None:
    """Drop this share of what arrives at an interface from now on, each packet on its own.

    Silently: no counter of the interface or of its queue knows. Bundles of segments (GSO) are lost whole, as on veth.
    """
    try:
        add_rule(home, _table(interface), interface, INGRESS, _expressions(share))
    except OSError as refusal:
        raise NotPresent(f"packets cannot be lost here: {refusal}") from refusal


def stop_losing(home: Home, interface: str) -> None:
    remove_rule(home, _table(interface))


def _table(interface: str) -> str:
    return f"loss-{interface}"


def _expressions(share: float) -> list[bytes]:
    """Return the rule `numgen random mod 1000000 < n drop`; numbers are compared in network order."""
    threshold = struct.pack("!I", round(share * _ONE_IN))
    return [
        expression(b"numgen", number(1, REGISTER), number(2, _ONE_IN), number(3, _RANDOM)),
        expression(
            b"byteorder",
            number(1, REGISTER),
            number(2, REGISTER),
            number(3, _TO_NETWORK_ORDER),
            number(4, 4),
            number(5, 4),
        ),
        expression(b"cmp", number(1, REGISTER), number(2, _LESS_THAN), nest(3, pack_attribute(1, threshold))),
        expression(b"immediate", number(1, _VERDICT_REGISTER), nest(2, nest(2, number(1, _DROP)))),
    ]


class LinkConditions:
    """All cables of a fabric; knows what was done to each, so that only differences are done."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._now: dict[Port, Condition] = {}
        self._delays: dict[Port, DelayLine] = {}  # by the port that receives
        self._losing: dict[Port, str] = {}  # by the port that receives: the interface where packets are dropped
        self._down: set[Port] = set()
        self._routes = plan_routes(fabric.plan)

    def bring_into(self, wanted: Mapping[Port, Condition]) -> None:
        """Make these directions so, and all others healthy."""
        changed = [port for port in {**self._now, **wanted} if self._now.get(port) != wanted.get(port)]
        for port in changed:
            before, after = self._now.get(port, HEALTHY), wanted.get(port, HEALTHY)
            self._now[port] = after  # before it is done: what fails halfway is healed, too
            self._change(port, before, after)
        self._switch(self._find_down(wanted))
        self._now = dict(wanted)

    def _change(self, sender: Port, before: Condition, after: Condition) -> None:
        cable, _ = self._fabric.plan.cable_by_port[sender.node, sender.name]
        if before.share != after.share:
            self._set_rate(sender, cable.rate_mbps * after.share)
        if (before.loss, before.delay_s) != (after.loss, after.delay_s):
            self._disturb(cable.far_end(sender), after)

    def _set_rate(self, port: Port, rate_mbps: float) -> None:
        options = self._fabric.options
        self._fabric.homes[port.node].change(
            lambda route: shape(route, find_interface(route, port.name), rate_mbps, options)
        )

    def _disturb(self, receiver: Port, condition: Condition) -> None:
        """Lose and delay where packets arrive: a sender that saw its packets dropped would slow down at once."""
        home = self._fabric.homes[receiver.node]
        if receiver in self._losing:
            stop_losing(home, self._losing.pop(receiver))
        if receiver in self._delays:
            self._delays.pop(receiver).stop()
        interface = receiver.name
        if condition.delay_s > 0:
            self._delays[receiver] = DelayLine(self._fabric, receiver, condition.delay_s)
            interface = self._delays[receiver].interface  # where packets come out again
        if condition.loss > 0:
            lose(home, interface, condition.loss)
            self._losing[receiver] = interface

    def _switch(self, now: set[Port]) -> None:
        """Switch these ports off, and on those that were off."""
        was, self._down = self._down, now
        for port in now - was:
            set_state(self._fabric.homes[port.node], port.name, "down")
        for port in was - now:
            set_state(self._fabric.homes[port.node], port.name, "up")
        for node in {port.node for port in was - now}:
            self._restore_routes(node, {port.name for port in now if port.node == node})

    def _find_down(self, conditions: Mapping[Port, Condition]) -> set[Port]:
        plan = self._fabric.plan
        cables: list[Cable] = [
            plan.cable_by_port[port.node, port.name][0]
            for port, condition in conditions.items()
            if not condition.is_up
        ]
        return {down_end(cable, plan) for cable in cables}

    def _restore_routes(self, node: str, down: set[str]) -> None:
        """Set a switch's routes again: the kernel dropped those that had no way left."""
        cables = self._fabric.plan.cables_of(node)
        usable = {cable.far_end(near).address for cable, near in cables if cable.link.up and near.name not in down}
        for route in self._routes:
            gateways = tuple(gateway for gateway in route.gateways if gateway in usable)
            if route.node == node and gateways:
                self._fabric.homes[node].change(partial(lay_route, route=replace(route, gateways=gateways)))
