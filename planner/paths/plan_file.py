"""A path plan as JSON: what other programs read, and what the next plan starts from."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.errors import BadInput
from planner.paths.flows import Flow, place_flows
from planner.paths.network import Network, build_intact
from planner.paths.planning import PathPlan
from planner.paths.roads import UNPLACED, Roads, find_use


def to_json(plan: PathPlan) -> dict[str, Any]:  # Any: JSON
    """Return the links of each flow, in order, with the highest use of a link and the least that it could be."""
    use = np.where(plan.network.fabric, find_use(plan.network, plan.load), 0.0)
    fullest = int(use.argmax()) if len(use) else -1
    has_load = fullest >= 0 and use[fullest] > 0
    return {
        "max_load": plan.highest_use,
        "bound": plan.bound,
        "max_load_gbps": float(plan.load[fullest]) if has_load else 0.0,
        "fullest": plan.network.name_lane(fullest) if has_load else None,
        "moved": {"must": plan.must_move, "may": plan.may_move},
        "unreachable": plan.unreachable,
        "enforceable": plan.network.topology.routing == "ecmp",
        "flows": dict(zip(plan.flows.ids, all_links(plan), strict=True)),
    }


def all_links(plan: PathPlan) -> list[list[str]]:
    """Return the ids of the links of every flow."""
    return [[plan.network.link_of(lane) for lane in lanes] for lanes in plan.all_lanes()]


def from_json(network: Network, flows: Sequence[Flow], written: Any) -> PathPlan:  # Any: JSON of any shape
    """Return the plan that was written, for the flows that are still there; others have no road in it.

    The network may have lost links since: the plan is read as on the intact one.
    """
    roads_of = written.get("flows") if isinstance(written, dict) else None
    if not isinstance(roads_of, dict):
        raise BadInput(
            "a plan is a JSON object with the links of each flow under flows, as `lockstep plan` writes it"
        )
    intact = build_intact(network.topology)
    table = place_flows(intact, flows)
    roads = Roads(intact, table)
    top = np.array([_find_top(roads, flow, name, roads_of) for flow, name in enumerate(table.ids)], np.int64)
    return PathPlan(intact, table, roads.height, top, roads.find_loads(top), bound=0.0)


def _find_top(roads: Roads, flow: int, name: str, roads_of: Mapping[str, Any]) -> int:
    """Return the top whose road is the written one; UNPLACED where there is none."""
    links = roads_of.get(name)
    tops = roads.tops(flow)
    if not isinstance(links, list) or not len(tops):
        return UNPLACED
    lanes = roads.lanes(flow, tops)
    if len(links) != lanes.shape[1] + 2:
        return UNPLACED
    wanted = [roads.network.parts.get(str(link), [-2])[0] // 2 for link in links[1:-1]]
    same = np.flatnonzero((lanes // 2 == np.array(wanted)).all(axis=1))
    return int(tops[same[0]]) if len(same) else UNPLACED
