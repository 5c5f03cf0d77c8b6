"""Pictures of pages: the fabric, a small delay matrix, who arrives late, and sparklines of step times."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from api.views.fabric import FabricView, LinkView, NodeView
from api.views.matrix import Lags, Matrix
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
        boxes |= _place_boxes(row, _TOP + number * _ROW)
    high = _TOP + (len(shown) - 1) * _ROW + _BOX_HIGH + 14
    parts = [*_draw_cables(fabric, boxes, loads), *_draw_boxes(boxes)]
    return _FABRIC.format(_WIDE, high, _WIDE, len(fabric.nodes), len(fabric.links), Markup("").join(parts))


def _group_hosts(fabric: FabricView) -> list[list[NodeView]]:
    """Return the hosts each by itself, or where they are many by their first leaf, the suspects apart."""
    hosts = [node for node in fabric.nodes if node.kind == "host"]
    if len(hosts) <= _MOST_HOSTS:
        return [[host] for host in hosts]
    leaf_of: dict[str, str] = {}
    switches = {node.id for node in fabric.nodes if node.kind == "switch"}
    for link in fabric.links:
        a, b = (split_end(link.a)[0], split_end(link.b)[0])
        for near, far in ((a, b), (b, a)):
            if far in switches and near not in switches:
                leaf_of.setdefault(near, far)
    groups: dict[tuple[str, str], list[NodeView]] = {}
    for host in hosts:
        key = ("host", host.id) if host.suspects else ("leaf", leaf_of.get(host.id, ""))
        groups.setdefault(key, []).append(host)
    return list(groups.values())


def _place_boxes(groups: Sequence[Sequence[NodeView]], y: float) -> dict[str, _Box]:
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
    label = f"{link.id}, {link.gbps:g} Gbit/s" + ("" if link.up else ", down")
    label += "" if link.load is None else f", {100 * link.load:.0f} % used"
    return label + (f", {link.planned_flows} planned connections" if link.planned_flows else "")


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


HEAT_LEVELS = (1.15, 1.5, 2.5)  # times the usual delay, from which a cell is drawn darker
_MOST = 48  # cells each way: more are too small to point at
_HEAT_WIDE = 420.0
_HEAT = Markup(
    '<svg viewBox="0 0 {:g} {:g}" width="{:g}" role="img" aria-label="delay matrix of {} ranks, {} in a cell; '
    'the slowest pairs are in the table"><rect class="heat-0" width="{:g}" height="{:g}"/>{}</svg>'
)
_CELL = Markup(
    '<rect class="heat-{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}">'
    "<title>{} to {}: {:.2f} times the usual delay</title></rect>"
)


@dataclass(frozen=True, slots=True)
class Slow:
    """A cell of the matrix, told by name."""

    source: str
    target: str
    ms: float
    ratio: float  # over the usual delay


def heat_level(ratio: float) -> int:
    """Return how dark a cell is, 1 to 4.

    >>> heat_level(1.0), heat_level(9.0)
    (1, 4)
    """
    return 1 + sum(ratio >= limit for limit in HEAT_LEVELS)


def find_slowest(matrix: Matrix, most: int) -> list[Slow]:
    """Return the slowest cells by name, the slowest first: the matrix for whoever cannot see a picture."""
    if not matrix.usual_ms:
        return []
    order = np.argsort(-np.asarray(matrix.cells.ms), kind="stable")[:most]
    return [
        Slow(
            _name(matrix, matrix.cells.src[at]),
            _name(matrix, matrix.cells.dst[at]),
            matrix.cells.ms[at],
            matrix.cells.ms[at] / matrix.usual_ms,
        )
        for at in order.tolist()
    ]


def draw_heat(matrix: Matrix) -> Markup:
    """Return an SVG of the matrix, at most 48 cells each way; a cell shows the worst of those that share it."""
    if not matrix.usual_ms:
        return Markup("")
    bin_size = -(-len(matrix.ranks) // _MOST)
    count = -(-len(matrix.ranks) // bin_size)
    worst = np.zeros((count, count))
    src, dst = (np.asarray(column) // bin_size for column in (matrix.cells.src, matrix.cells.dst))
    np.maximum.at(worst, (src, dst), np.asarray(matrix.cells.ms) / matrix.usual_ms)
    side = _HEAT_WIDE / count
    inner = max(side - 0.5, 1)  # of a cell, with a gap around it
    cells = [
        _CELL.format(
            heat_level(worst[row, column]),
            column * side,
            row * side,
            inner,
            inner,
            _cell_label(matrix, row, bin_size),
            _cell_label(matrix, column, bin_size),
            worst[row, column],
        )
        for row, column in np.argwhere(worst > 0).tolist()
    ]
    return _HEAT.format(
        _HEAT_WIDE,
        _HEAT_WIDE,
        _HEAT_WIDE,
        len(matrix.ranks),
        bin_size,
        _HEAT_WIDE,
        _HEAT_WIDE,
        Markup("").join(cells),
    )


def _name(matrix: Matrix, index: int) -> str:
    return f"rank {matrix.ranks[index].rank} ({matrix.ranks[index].place})"


def _cell_label(matrix: Matrix, bin_number: int, bin_size: int) -> str:
    first, last = bin_number * bin_size, min((bin_number + 1) * bin_size, len(matrix.ranks)) - 1
    name = _name(matrix, first)
    return name if first == last else f"{name} to {_name(matrix, last)}"


@dataclass(frozen=True, slots=True)
class Late:
    """One rank and how late it came."""

    rank: int
    host: str
    gpu: int | None
    median_ms: float
    most_ms: float
    over_others_ms: float  # its median over the median of all ranks


def find_latest(lags: Lags, most: int) -> list[Late]:
    """Return the ranks that came latest on the median, the latest first; those of which nothing is known are not."""
    table = np.array(lags.lag_ms, dtype=float)
    known = [row for row in range(len(table)) if np.isfinite(table[row]).any()]
    if not known:
        return []
    medians = np.nanmedian(table[known], axis=1)
    usual = float(np.median(medians))
    latest = np.argsort(-medians, kind="stable")[:most].tolist()
    return [
        Late(
            rank=lags.ranks[known[at]].rank,
            host=lags.ranks[known[at]].host,
            gpu=lags.ranks[known[at]].gpu,
            median_ms=float(medians[at]),
            most_ms=float(np.nanmax(table[known[at]])),
            over_others_ms=float(medians[at]) - usual,
        )
        for at in latest
    ]


Points = Sequence[tuple[int, float]]  # moment in nanoseconds, seconds
Stretch = tuple[int, int]  # from, to

_SPARK_WIDE, _HIGH = 200.0, 40.0
_POINTS = 120  # more are not seen at this size
_FLOOR = 0.75  # of the shortest: a tenth more is seen, and noise stays small
_STRAY = 20  # of so many points one may lie below the picture: first steps are often cut short
_SPARK = Markup(
    '<svg class="spark" viewBox="0 0 {:g} {:g}" preserveAspectRatio="none" role="img" aria-label="{}">'
    '{}<path d="M{}"/></svg>'
)
_BAND = Markup('<rect class="fault" x="{:.1f}" y="0" width="{:.1f}" height="{:g}"/>')


def draw_sparkline(points: Points, faults: Sequence[Stretch], label: str) -> Markup:
    """Return an SVG of a curve; of many points the longest of each stretch stays."""
    if len(points) < 2:
        return Markup("")
    first, last = points[0][0], points[-1][0]
    span = max(last - first, 1)
    ordered = sorted(seconds for _, seconds in points)
    low, high = ordered[len(ordered) // _STRAY] * _FLOOR, ordered[-1] * 1.05 or 1.0
    every = -(-len(points) // _POINTS)
    kept = [max(points[at : at + every], key=lambda point: point[1]) for at in range(0, len(points), every)]
    curve = " ".join(
        f"{_SPARK_WIDE * (ts - first) / span:.1f},{_HIGH * (high - max(value, low)) / (high - low):.1f}"
        for ts, value in kept
    )
    bands = [
        _BAND.format(left, max(right - left, 1), _HIGH)
        for left, right in (_clip(fault, first, span) for fault in faults)
        if right > 0 and left < _SPARK_WIDE
    ]
    return _SPARK.format(_SPARK_WIDE, _HIGH, label, Markup("").join(bands), curve)


def _clip(fault: Stretch, first: int, span: int) -> tuple[float, float]:
    left, right = (_SPARK_WIDE * (timestamp - first) / span for timestamp in fault)
    return max(left, 0.0), min(right, _SPARK_WIDE)
