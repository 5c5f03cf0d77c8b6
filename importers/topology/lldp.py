"""What `lldpctl -f json` (or json0) shows on a host or a switch: the neighbour on each of its ports, a file per node.

The file does not say whose it is, so its name does. Linux hosts announce their MAC as port and the interface as its
description, SONiC the label on the front and the interface; the name that the port's own node uses is kept.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from importers.topology.survey import End, SeenCable, SeenNode, Source, Survey, read_json
from lockstep.errors import BadInput
from lockstep.topology import Kind

_MEDIUM = re.compile(r"(\d{1,4})(?:p(\d))?(G(?:ig)?)?base", re.IGNORECASE)  # 1000BaseT, 2p5GigBaseT, 100GbaseCR4
_FORWARDS = {"bridge", "router", "repeater"}


@dataclass(frozen=True)
class _Neighbour:
    own_port: str
    node: str
    ports: tuple[str, ...]  # names that the far port goes by, the likelier first
    kind: Kind | None
    gbps: float | None


def parse_lldp(sources: Sequence[Source]) -> list[Survey]:
    """Return a survey per file; names of nodes and ports are matched across all of them."""
    surveys = {source.name: Survey(source.name) for source in sources}
    seen: dict[str, list[_Neighbour]] = {}
    for source in sources:
        try:
            seen[source.name] = list(_neighbours(_interfaces(read_json(source)), source))
        except BadInput as error:
            surveys[source.name].complaints.append(str(error))
    by_node: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        by_node[source.node] |= {neighbour.own_port for neighbour in seen.get(source.name, [])}
    for source in sources:
        _fill(surveys[source.name], source.node, seen.get(source.name, []), by_node)
    return list(surveys.values())


def _fill(survey: Survey, node: str, neighbours: list[_Neighbour], by_node: Mapping[str, set[str]]) -> None:
    survey.nodes.append(SeenNode(node, survey.source))
    for port, times in Counter(neighbour.own_port for neighbour in neighbours).items():
        if times > 1:
            survey.complain(f"port {port} of {node} has {times} neighbours, but takes one cable")
    for neighbour in neighbours:
        short = neighbour.node.partition(".")[0]  # a file of the node itself may lack the domain
        far = short if neighbour.node not in by_node and short in by_node else neighbour.node
        ports = [port for port in neighbour.ports if port in by_node.get(far, ())] or neighbour.ports
        survey.nodes.append(SeenNode(far, survey.source, neighbour.kind, is_sure=False))
        end = End(far, ports[0] if ports else None)
        survey.cables.append(SeenCable(End(node, neighbour.own_port), end, survey.source, neighbour.gbps))


_Any = Any  # what JSON holds at a place, of any shape


def _interfaces(value: _Any) -> Iterator[tuple[str, dict[str, _Any]]]:
    """Yield ports with what is seen there, from either of the two shapes that lldpctl writes."""
    for whole in _listed(value.get("lldp") if isinstance(value, dict) else None):
        for entry in _listed(whole.get("interface")):
            if isinstance(entry.get("name"), str):  # json0 names it inside
                yield entry["name"], entry
            else:
                yield from ((name, inner) for name, inner in entry.items() if isinstance(inner, dict))


def _listed(value: _Any) -> list[dict[str, _Any]]:
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if isinstance(entry, dict)]


def _neighbours(interfaces: Iterator[tuple[str, dict[str, _Any]]], source: Source) -> Iterator[_Neighbour]:
    found = False
    for own_port, entry in interfaces:
        found = True
        name, chassis = _chassis(entry)
        port = next(iter(_listed(entry.get("port"))), {})
        if name is None:
            raise BadInput(f"{source.name}: the neighbour on {own_port[:60]} has neither a name nor an id")
        yield _Neighbour(own_port, name, tuple(_port_names(port)), _kind(chassis), _rate(port))
    if not found:
        raise BadInput(f"{source.name}: shows no neighbour; expected what `lldpctl -f json` prints")


def _chassis(entry: dict[str, _Any]) -> tuple[str | None, dict[str, _Any]]:
    chassis = next(iter(_listed(entry.get("chassis"))), {})
    if name := _text(chassis.get("name")):  # json0
        return name, chassis
    named = [(name, inner) for name, inner in chassis.items() if isinstance(inner, dict) and name != "id"]
    if "id" not in chassis and len(named) == 1:
        return named[0]
    return _text(chassis.get("id")), chassis


def _text(value: _Any) -> str | None:
    """Return the text of a value, which json0 wraps in a list and both wrap in an object."""
    if isinstance(value, str):
        return value or None
    inner = next(iter(_listed(value)), {}).get("value")
    return inner if isinstance(inner, str) and inner else None


def _port_names(port: dict[str, _Any]) -> Iterator[str]:
    is_mac = next(iter(_listed(port.get("id"))), {}).get("type") == "mac"
    given, described = _text(port.get("id")), _text(port.get("descr"))
    if given and not is_mac:
        yield given
    if described and not any(letter.isspace() for letter in described):
        yield described


def _kind(chassis: dict[str, _Any]) -> Kind | None:
    enabled = {
        str(entry.get("type")).lower() for entry in _listed(chassis.get("capability")) if entry.get("enabled") is True
    }
    if "station" in enabled or not enabled:
        return "host" if "station" in enabled else None
    return "switch" if enabled & _FORWARDS else None


def _rate(port: dict[str, _Any]) -> float | None:
    negotiated = next(iter(_listed(port.get("auto-negotiation"))), {})
    found = _MEDIUM.match(_text(negotiated.get("current")) or "")
    if found is None:
        return None
    value = float(f"{found[1]}.{found[2] or 0}")
    return (value if found[3] else value / 1000) or None
