"""Cuts a link between switches as a cable is cut: the carrier goes at once, and a moment later routes lead around."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.management import find_interface
from tests.testbed.fabric.plan import FabricPlan
from tests.testbed.fabric.routes import Route, plan_routes
from tests.testbed.fabric.shaping import lay_route
from tests.testbed.paths.flows import without


class LinkCut:
    """One link of a fabric; whole again when the block ends."""

    def __init__(self, fabric: Fabric, link: str, withdraw_s: float = 0.2) -> None:
        """`withdraw_s`: what a routing protocol takes to tell the others; BGP with fast fallover takes some 0.1 s."""
        self._fabric, self._withdraw_s = fabric, withdraw_s
        (self._cable,) = (cable for cable in fabric.plan.cables if cable.link.id == link)
        broken = without(fabric.topology, [link])
        links = {each.id: each for each in broken.links}
        cables = tuple(replace(cable, link=links[cable.link.id]) for cable in fabric.plan.cables)
        whole = plan_routes(fabric.plan)
        around = plan_routes(FabricPlan(broken, cables, fabric.plan.prefixes))
        kept = set(around)
        self._changed = [route for route in around if route not in set(whole) and route.gateways]
        self._whole = [route for route in whole if route not in kept]

    def __enter__(self) -> "LinkCut":
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()

    def cut(self) -> None:
        """Take the carrier away: the switches at both ends see it; the others do not."""
        for port in self._cable.ends:
            self._set_state(port.node, port.name, "down")

    def withdraw(self) -> None:
        """Let the other switches know, as long after the cut as that takes."""
        time.sleep(self._withdraw_s)
        self._lay(self._changed)

    def heal(self) -> None:
        for port in self._cable.ends:
            self._set_state(port.node, port.name, "up")
        self._lay(self._whole)

    def _lay(self, routes: Sequence[Route]) -> None:
        for route in routes:
            self._fabric.homes[route.node].change(partial(lay_route, route=route))

    def _set_state(self, node: str, name: str, state: str) -> None:
        self._fabric.homes[node].change(
            lambda route: route.link("set", index=find_interface(route, name), state=state)
        )
