"""Brings the cables of a fabric into the condition that is wanted: rates, loss, delay, and carrier."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.management import find_interface
from tests.testbed.fabric.plan import Cable, Port
from tests.testbed.fabric.routes import plan_routes
from tests.testbed.fabric.shaping import lay_route, shape
from tests.testbed.faults.conditions import HEALTHY, Condition, down_end
from tests.testbed.faults.delay import DelayLine
from tests.testbed.faults.loss import lose, stop_losing


class Wires:
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
            self._set_state(port, "down")
        for port in was - now:
            self._set_state(port, "up")
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

    def _set_state(self, port: Port, state: str) -> None:
        self._fabric.homes[port.node].change(
            lambda route: route.link("set", index=find_interface(route, port.name), state=state)
        )

    def _restore_routes(self, node: str, down: set[str]) -> None:
        """Set a switch's routes again: the kernel dropped those that had no way left."""
        cables = self._fabric.plan.cables_of(node)
        usable = {cable.far_end(near).address for cable, near in cables if cable.link.up and near.name not in down}
        for route in self._routes:
            gateways = tuple(gateway for gateway in route.gateways if gateway in usable)
            if route.node == node and gateways:
                self._fabric.homes[node].change(partial(lay_route, route=replace(route, gateways=gateways)))
