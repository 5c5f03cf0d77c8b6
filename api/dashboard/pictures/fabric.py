"""The fabric as a picture: switches above, hosts below, cables coloured by what goes over them, the suspects lit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from api.reading.fabric import FabricView, LinkView, NodeView
from lockstep.topology import split_end

_WIDE = 1180.0
_ROW = 130.0  # between tiers
_TOP = 12.0
_BOX_HIGH = 30.0
_WIDEST = 110.0
_MOST_HOSTS = 96  # more are drawn as one box per leaf: each would be narrower than its cable
_LETTER = 6.2  # width of a letter of a label
_LABEL_WIDE = 26.0  # from which a box has room for a name
_TIERS = ("core", "spine", "leaf")
LEVELS = (0.1, 0.5, 0.8, 1.0)  # share of a link's rate, from which it is drawn hotter

_FABRIC = Markup(
    '<svg class="fabric" viewBox="0 0 {:g} {:g}" width="{:g}" role="img" aria-label="Fabric: {} nodes, {} links; '
    'loads and suspects are in the table">{}</svg>'
)
_CABLE = Markup('<line class="cable {}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"><title>{}</title></line>')
_NODE = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:g}" rx="5"><title>{}</title></rect>')
_LABEL = Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>')


@dataclass(frozen=True, slots=True)
class _Box:
    """A node, or many hosts under one leaf, and where it is drawn."""

    label: str
    x: float
    y: float
    wide: float
    is_suspect: bool

    @property
    def middle(self) -> float:
        return self.x + self.wide / 2


def level_of(load: float | None) -> int:
    """Return how hot a link is drawn, 0 to 4; 0 also where nothing is known.

    >>> level_of(None), level_of(0.3), level_of(1.2)
    (0, 1, 4)
    """
    return 0 if load is None else sum(load >= limit for limit in LEVELS)


def draw_fabric(fabric: FabricView, loads: Mapping[str, float]) -> Markup:
    """Return an SVG of the fabric; `loads` are shares from 0 to 1 by link id. Cost: O(nodes + links)."""
    rows = [[node for node in fabric.nodes if node.kind == "switch" and (node.tier or "leaf") == t] for t in _TIERS]
    shown = [[[node] for node in row] for row in rows if row] + [_group_hosts(fabric)]
    boxes: dict[str, _Box] = {}
    for number, row in enumerate(shown):
        boxes |= _place(row, _TOP + number * _ROW)
    high = _TOP + (len(shown) - 1) * _ROW + _BOX_HIGH + 14
    parts = [*_draw_cables(fabric, boxes, loads), *_draw_boxes(boxes)]
    return _FABRIC.format(_WIDE, high, _WIDE, len(fabric.nodes), len(fabric.links), Markup("").join(parts))


def _group_hosts(fabric: FabricView) -> list[list[NodeView]]:
    """Return the hosts each by itself, or where they are many by their first leaf, the suspects apart."""
    hosts = [node for node in fabric.nodes if node.kind == "host"]
    if len(hosts) <= _MOST_HOSTS:
        return [[host] for host in hosts]
    leaf_of = _first_leaves(fabric)
    groups: dict[tuple[str, str], list[NodeView]] = {}
    for host in hosts:
        key = ("host", host.id) if host.suspects else ("leaf", leaf_of.get(host.id, ""))
        groups.setdefault(key, []).append(host)
    return list(groups.values())


def _first_leaves(fabric: FabricView) -> dict[str, str]:
    leaves: dict[str, str] = {}
    switches = {node.id for node in fabric.nodes if node.kind == "switch"}
    for link in fabric.links:
        a, b = split_end(link.a)[0], split_end(link.b)[0]
        for near, far in ((a, b), (b, a)):
            if far in switches and near not in switches:
                leaves.setdefault(near, far)
    return leaves


def _place(groups: Sequence[Sequence[NodeView]], y: float) -> dict[str, _Box]:
    """Return the box of each node of a row, spread evenly; a group shares one."""
    room = _WIDE / max(len(groups), 1)
    wide = min(_WIDEST, room * 0.8)
    boxes: dict[str, _Box] = {}
    for number, group in enumerate(groups):
        label = group[0].id if len(group) == 1 else f"{len(group)} hosts"
        box = _Box(label, (number + 0.5) * room - wide / 2, y, wide, any(node.suspects for node in group))
        boxes |= dict.fromkeys((node.id for node in group), box)
    return boxes


def _draw_cables(fabric: FabricView, boxes: Mapping[str, _Box], loads: Mapping[str, float]) -> Iterator[Markup]:
    """Yield the cables, the suspects last so that they lie on top."""
    ports = _ports_of(fabric)
    for link in sorted(fabric.links, key=lambda each: (bool(each.suspects), loads.get(each.id, 0.0))):
        (x1, y1), (x2, y2) = (_plug(end, ports, boxes) for end in (link.a, link.b))
        yield _CABLE.format(_style(link, loads), x1, y1, x2, y2, _describe(link))


def _style(link: LinkView, loads: Mapping[str, float]) -> str:
    if link.suspects:
        return "suspect"
    return f"line-{level_of(loads.get(link.id))}" if link.up else "down"


def _describe(link: LinkView) -> str:
    said = f"{link.id}, {link.gbps:g} Gbit/s" + ("" if link.up else ", down")
    said += "" if link.load is None else f", {100 * link.load:.0f} % used"
    return said + (f", {link.planned_flows} planned connections" if link.planned_flows else "")


def _ports_of(fabric: FabricView) -> dict[str, list[str]]:
    """Return the NICs of each host in the order of its cables."""
    hosts = {node.id for node in fabric.nodes if node.kind == "host"}
    ports: dict[str, list[str]] = {}
    for end in (end for link in fabric.links for end in (link.a, link.b)):
        if split_end(end)[0] in hosts:
            ports.setdefault(split_end(end)[0], []).append(end)
    return ports


def _plug(end: str, ports: Mapping[str, list[str]], boxes: Mapping[str, _Box]) -> tuple[float, float]:
    """Return where a cable meets its node: at its own place on a host, in the middle of a switch."""
    node = split_end(end)[0]
    box = boxes[node]
    if node not in ports:
        return box.middle, box.y + _BOX_HIGH / 2
    return box.x + (ports[node].index(end) + 0.5) / len(ports[node]) * box.wide, box.y


def _draw_boxes(boxes: Mapping[str, _Box]) -> Iterator[Markup]:
    for box in dict.fromkeys(boxes.values()):
        style = "node suspect" if box.is_suspect else "node"
        yield _NODE.format(style, box.x, box.y, box.wide, _BOX_HIGH, box.label)
        if box.wide >= _LABEL_WIDE:
            text = "suspect-name" if box.is_suspect else "name"
            yield _LABEL.format(text, box.middle, box.y + 19, box.label[: int(box.wide / _LETTER)])
