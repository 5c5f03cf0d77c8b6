"""What failures together mean for every direction of every cable; they may overlap and heal in any order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from lockstep.errors import BadScenario
from lockstep.topology import link_name
from simulator.faults import Fault
from tests.testbed.fabric.plan import Cable, FabricPlan, Port

WIRE_EFFECTS = ("rate", "losing", "delayed", "down", "gone")
_WIRE_KINDS = ("nic", "link", "switch", "host", "fabric")


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
    """Return the hosts whose telemetry does not get through."""
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
