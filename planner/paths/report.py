"""A path plan as JSON: what other programs read, and what the next plan starts from."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from lockstep.errors import BadInput
from lockstep.host_paths import PathChoice, Proto
from lockstep.topology import Topology, split_end
from planner.paths.demand import Demand
from planner.paths.flows import UNPLACED, Flow, FlowPaths, find_use, place_flows
from planner.paths.network import Network, build_intact
from planner.paths.planning import PathPlan
from planner.paths.ports import ROCE_PORT, PortChoice


def to_json(plan: PathPlan) -> dict[str, Any]:  # Any: JSON
    """Return the links of each flow, in order, with the highest use of a link and the least that it could be."""
    use = np.where(plan.network.fabric, find_use(plan.network, plan.load), 0.0)
    fullest = int(use.argmax()) if len(use) else -1
    has_load = fullest >= 0 and use[fullest] > 0
    return {
        "max_load": plan.highest_use,
        "bound": plan.bound,
        "max_load_gbps": float(plan.load[fullest]) if has_load else 0.0,
        "fullest": plan.network.name_directed_link(fullest) if has_load else None,
        "moved": {"must": plan.must_move, "may": plan.may_move},
        "unreachable": plan.unreachable,
        "enforceable": plan.network.topology.routing == "ecmp",
        "flows": dict(zip(plan.flows.ids, all_links(plan), strict=True)),
    }


def all_links(plan: PathPlan) -> list[list[str]]:
    """Return the ids of the links of every flow."""
    return [[plan.network.link_of(link) for link in links] for links in plan.all_directed_links()]


def from_json(network: Network, flows: Sequence[Flow], written: Any) -> PathPlan:  # Any: JSON of any shape
    """Return the plan that was written, for the flows that are still there; others have no path in it.

    The network may have lost links since: the plan is read as on the intact one.
    """
    links_by_flow = written.get("flows") if isinstance(written, dict) else None
    if not isinstance(links_by_flow, dict):
        raise BadInput(
            "a plan is a JSON object with the links of each flow under flows, as `lockstep plan` writes it"
        )
    intact = build_intact(network.topology)
    table = place_flows(intact, flows)
    paths = FlowPaths(intact, table)
    spine = np.array([_find_spine(paths, flow, name, links_by_flow) for flow, name in enumerate(table.ids)], np.int64)
    return PathPlan(intact, table, paths.height, spine, paths.find_loads(spine), bound=0.0)


def _find_spine(paths: FlowPaths, flow: int, name: str, links_by_flow: Mapping[str, Any]) -> int:
    """Return the spine whose path is the written one; UNPLACED where there is none."""
    links = links_by_flow.get(name)
    spines = paths.spines(flow)
    if not isinstance(links, list) or not len(spines):
        return UNPLACED
    directed_links = paths.links(flow, spines)
    if len(links) != directed_links.shape[1] + 2:
        return UNPLACED
    wanted = [paths.network.parts.get(str(link), [-2])[0] // 2 for link in links[1:-1]]
    same = np.flatnonzero((directed_links // 2 == np.array(wanted)).all(axis=1))
    return int(spines[same[0]]) if len(same) else UNPLACED


_PROTOS: Mapping[str | None, Proto] = {"socket": "tcp", "ofi": "udp"}  # RDMA is RoCE to a switch that hashes


def describe_choices(
    plan: PathPlan, ports: Sequence[PortChoice], demand: Demand, topology: Topology, weights: Mapping[str, float]
) -> dict[str, list[PathChoice]]:
    """Return the choices of each host, for those flows that have a path; in the order of the plan.

    The listening port of a socket is not known before it listens, so the ports of sockets are left to the host's own
    agent; weights are those of the weakest link of a path.
    """
    addresses = {f"{host.id}/{nic.id}": (nic.address, nic.plane) for host in topology.hosts for nic in host.nics}
    reported: dict[str, list[PathChoice]] = defaultdict(list)
    for choice in ports:
        if not choice.links:
            continue
        host, _, nic = choice.src.partition("/")
        dst, _, dst_nic = choice.dst.partition("/")
        (source, plane), (destination, _) = addresses[choice.src], addresses[choice.dst]
        wiring = demand.wiring.get(choice.flow)
        proto = _PROTOS.get(wiring.transport if wiring else None, "roce")
        reported[host].append(
            PathChoice(
                connection=choice.flow,
                nic=nic,
                dst=dst,
                dst_nic=dst_nic,
                links=choice.links,
                proto=proto,
                source=source,
                destination=destination,
                dport=None if proto == "tcp" else ROCE_PORT,
                sports=() if proto == "tcp" or choice.port is None else (choice.port,),
                plane=plane,
                weight=min((weights.get(link, 1.0) for link in choice.links), default=1.0),
            )
        )
    return dict(reported)


_FEW = 5  # names in a sentence; the rest is counted


def explain(plan: PathPlan, before: PathPlan | None = None) -> list[str]:
    """Return what an SRE would ask, answered."""
    return [
        *_explain_size(plan),
        *_explain_quality(plan),
        *_explain_limit(plan),
        *_explain_moves(plan, before),
        *_explain_lost(plan),
    ]


def _explain_size(plan: PathPlan) -> Iterator[str]:
    inside = int((plan.height == 0).sum())
    spines = len(np.unique(np.stack([plan.height, plan.spine])[:, plan.spine != UNPLACED], axis=1).T)
    yield f"{len(plan.flows):,} flows, {inside:,} of them inside one leaf; the others go over {spines:,} switches"
    dead = sorted({plan.network.link_of(link) for link in np.flatnonzero(plan.network.gbps <= 0).tolist()})
    if dead:
        yield f"nothing goes over {_list(dead)}"
    routing = plan.network.topology.routing
    if routing != "ecmp":
        yield (
            f"this fabric routes by itself ({routing}): there is no port to choose, so these paths are a picture of "
            "an even load and no instruction; what can be planned here is which hosts a job gets"
        )


def _explain_quality(plan: PathPlan) -> Iterator[str]:
    highest, bound = plan.highest_use, plan.bound
    if highest <= 0:
        yield "no link between switches is used"
    elif highest <= bound * (1 + 1e-9):
        yield f"the fullest link is used to {_share(highest)}, and no plan can do better"
    else:
        yield (
            f"the fullest link is used to {_share(highest)}; flows that could be split at will would need "
            f"{_share(bound)} at least, whole ones often a little more"
        )
    if highest > 1 + 1e-9:
        yield f"that is more than it carries: flows slow down to {1 / highest:.0%} of what they ask for"


def _explain_limit(plan: PathPlan) -> Iterator[str]:
    use = np.where(plan.network.fabric, find_use(plan.network, plan.load), 0.0)
    if use.max(initial=0.0) <= 0:
        return
    fullest = np.flatnonzero(use >= use.max() * (1 - 1e-9))
    names = [plan.network.name_directed_link(link) for link in fullest.tolist()]
    yield f"the fullest {'link is' if len(names) == 1 else f'{len(names):,} links are'} {_list(names)}"


def _explain_moves(plan: PathPlan, before: PathPlan | None) -> Iterator[str]:
    if before is None:
        return
    kept = len(plan.flows) - plan.must_move - plan.may_move
    yield (
        f"{plan.must_move:,} flows had to move because their path is gone, {plan.may_move:,} moved to make room, "
        f"{kept:,} stay or are new; the fullest link was used to {_share(before.highest_use)} before"
    )


def _explain_lost(plan: PathPlan) -> Iterator[str]:
    lost = plan.unreachable
    if not lost:
        return
    ends = Counter(
        plan.network.name_directed_link(int(link)).split(" -> ")[side]
        for flow in np.flatnonzero(plan.height < 0).tolist()
        for side, link in enumerate(plan.flows.ends[flow])
    )
    most, times = ends.most_common(1)[0]
    yield f"{len(lost):,} flows have no path at all: {_list(lost)}; {most} is an end of {times:,} of them"


def _share(use: float) -> str:
    return "beyond measure" if use == float("inf") else f"{use:.1%}"


def _list(names: list[str]) -> str:
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more:,} more" if more > 0 else "")


_WIDTH = 560  # of one picture, in the unit of the SVG
_LARGEST, _SMALLEST = 22.0, 2.0  # side of a square: readable, and still to be seen
_LABELS = 10.0  # side from which there is room for names
# Up to its rate a link is well used, and blue; beyond it flows wait for each other.
_COLOURS = (
    (0.0, (237, 242, 247)),
    (0.5, (158, 202, 225)),
    (1.0, (49, 130, 189)),
    (1.5, (250, 176, 84)),
    (2.0, (190, 30, 45)),
)


@dataclass(frozen=True)
class _Grid:
    """Links between two tiers: lower switches as rows, higher ones as columns."""

    rows: list[str]
    columns: list[str]
    links: dict[tuple[int, int], list[int]]  # by row and column, those that go up

    @property
    def side(self) -> float:
        return min(_LARGEST, max(_SMALLEST, (_WIDTH - 70) / max(len(self.columns), 1)))


def draw_loads(network: Network, loads: Mapping[str, np.ndarray]) -> str:
    """Return an SVG with one column of grids per named load; colour is the use of a link, over its rate."""
    grids = _find_grids(network)
    uses = {name: find_use(network, load) for name, load in loads.items()}
    height = 70 + sum(len(grid.rows) * grid.side + 46 for grid in grids)
    width = _WIDTH * len(uses) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" font-size="11">',
        f'<rect width="{width}" height="{height:.0f}" fill="white"/>',
        '<g font-family="sans-serif">',
        '<text x="10" y="20" font-size="14">Link loads</text>',
        *_draw_scale(width),
    ]
    for index, (name, use) in enumerate(uses.items()):
        parts += _draw_column(network, grids, use, name, 10 + index * _WIDTH)
    return "\n".join([*parts, "</g></svg>", ""])


def _find_grids(network: Network) -> list[_Grid]:
    """Return a grid per step of the up paths: leaf to spine, spine to core."""
    grids = []
    for up_paths in network.up_paths:
        step = up_paths.links.shape[2] - 1
        links = np.unique(up_paths.links[:, :, step][up_paths.exists])
        ends = [
            [split_end(end)[0] for end in network.name_directed_link(link).split(" -> ")] for link in links.tolist()
        ]
        rows, columns = (list(dict.fromkeys(end[side] for end in ends)) for side in (0, 1))
        cells: dict[tuple[int, int], list[int]] = {}
        for (low, high), link in zip(ends, links.tolist(), strict=True):
            cells.setdefault((rows.index(low), columns.index(high)), []).append(link)
        grids.append(_Grid(rows, columns, cells))
    return grids


def _draw_column(network: Network, grids: Sequence[_Grid], use: np.ndarray, name: str, left: float) -> Iterator[str]:
    highest = float(use[network.fabric].max(initial=0.0))
    yield f'<text x="{left}" y="44">{escape(name)}: fullest link {highest:.0%}</text>'
    top = 60.0
    for grid in grids:
        label = f"{len(grid.rows)} switches below, {len(grid.columns)} above"
        yield f'<text x="{left}" y="{top + 8}" fill="#555">{label}</text>'
        yield from _draw_grid(network, grid, use, left, top + 16)
        top += len(grid.rows) * grid.side + 46


def _draw_grid(network: Network, grid: _Grid, use: np.ndarray, left: float, top: float) -> Iterator[str]:
    side, margin = grid.side, 62.0
    if side >= _LABELS:
        for row, name in enumerate(grid.rows):
            yield f'<text x="{left}" y="{top + (row + 0.7) * side:.1f}" font-size="9">{escape(name)}</text>'
    for (row, column), links in grid.links.items():
        x, y = left + margin + column * side, top + row * side
        up, down = (max(float(use[link ^ direction]) for link in links) for direction in (0, 1))
        is_dead = any(network.gbps[link] <= 0 for link in links)
        label = f"{grid.rows[row]} - {grid.columns[column]}: up {up:.0%}, down {down:.0%}" + (
            ", dead" if is_dead else ""
        )
        half = (side - 1) / 2
        yield f"<g><title>{escape(label)}</title>"
        for direction, value in enumerate((up, down)):
            fill = "#333" if is_dead else _colour(value)
            box = f'x="{x:.1f}" y="{y + direction * half:.1f}" width="{side - 1:.1f}" height="{half:.1f}"'
            yield f'<rect {box} fill="{fill}"/>'
        yield "</g>"


def _draw_scale(width: float) -> Iterator[str]:
    for index, (use, _) in enumerate(_COLOURS):
        x = width - 310 + 60 * index
        yield f'<rect x="{x}" y="10" width="14" height="14" fill="{_colour(use)}"/>'
        yield f'<text x="{x + 18}" y="21">{use:.0%}</text>'


def _colour(use: float) -> str:
    """Return the colour of a use, between those of the scale; everything beyond it is the last.

    >>> _colour(0.0), _colour(9.0)
    ('#edf2f7', '#be1e2d')
    """
    indices, colours = [index for index, _ in _COLOURS], np.array([colour for _, colour in _COLOURS])
    red, green, blue = (round(float(np.interp(min(use, 99.0), indices, colours[:, part]))) for part in range(3))
    return f"#{red:02x}{green:02x}{blue:02x}"
