"""What failures together mean for every direction of every cable; they may overlap and heal in any order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from lockstep.errors import BadStory
from lockstep.sim.timeline import Turn
from lockstep.topology import link_name
from testbed.fabric.plan import Cable, FabricPlan, Port

WIRE_EFFECTS = ("rate", "losing", "delayed", "down", "gone")
_WIRE_KINDS = ("nic", "link", "switch", "host", "fabric")


class Failure(NamedTuple):
    """A turn that is there now, and how much of it, 0 to 1."""

    turn: Turn
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
        if failure.turn.effect in WIRE_EFFECTS and failure.turn.kind in _WIRE_KINDS:
            for port in senders_of(plan, failure.turn):
                found[port] = _worsen(found.get(port, HEALTHY), failure)
    return {port: condition for port, condition in found.items() if condition != HEALTHY}


def senders_of(plan: FabricPlan, turn: Turn) -> list[Port]:
    """Return the sending ports of what a turn is about; BadStory when the fabric has no such part.

    tx of a NIC is what its host sends, tx of a link what its first end sends; without a side both are meant.
    """
    cables = _cables_of(plan, turn)
    if not cables:
        raise BadStory(f"there is no {turn.part} in this fabric")
    if turn.side is None:
        return [port for cable, _ in cables for port in cable.ends]
    return [near if turn.side == "tx" else cable.far_end(near) for cable, near in cables]


def down_end(cable: Cable, plan: FabricPlan) -> Port:
    """Return the port that is switched off when a cable is down: of a switch, and of two the one named first.

    A host's own interface stays on: switched off it would lose its routes, and it notices the lost carrier anyway.
    """
    return cable.b if cable.a.node in plan.hosts else cable.a


def silent_hosts(failures: Iterable[Failure]) -> set[str]:
    """Return the hosts whose telemetry does not get through."""
    return {failure.turn.name for failure in failures if failure.turn.effect in ("silent", "gone")}


def _cables_of(plan: FabricPlan, turn: Turn) -> list[tuple[Cable, Port]]:
    """Return the cables of a part, each with the end from which `tx` leaves."""
    ports: Mapping[tuple[str, str], tuple[Cable, Port]] = plan.cable_by_port
    if turn.kind == "nic":
        host, _, nic = turn.name.partition("/")
        return [ports[host, nic]] if host in plan.hosts and (host, nic) in ports else []
    if turn.kind == "link":
        return [(cable, cable.a) for cable in plan.cables if link_name(cable.link) == turn.part]
    if turn.kind == "fabric":
        return [(cable, cable.a) for cable in plan.cables if {cable.a.node, cable.b.node} <= set(plan.switches)]
    known = plan.switches if turn.kind == "switch" else plan.hosts
    return list(plan.cables_of(turn.name)) if turn.name in known else []


def _worsen(before: Condition, failure: Failure) -> Condition:
    turn, level = failure
    amount = turn.amount if turn.amount is not None else 0.0
    match turn.effect:
        case "rate":
            return replace(before, share=min(before.share, 1 - level * (1 - amount)))
        case "losing":
            return replace(before, loss=1 - (1 - before.loss) * (1 - level * amount))
        case "delayed":
            return replace(before, delay_s=before.delay_s + level * amount)
        case "down" if turn.side:  # a cable has carrier in both directions or in none: one of them dies silently
            return replace(before, loss=1.0)
        case _:
            return replace(before, is_up=False)
