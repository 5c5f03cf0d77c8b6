"""Lockstep's own planner, as trials call it: every flow of a NIC wants an equal part of what the NIC can send."""

from collections import Counter
from collections.abc import Sequence

from lockstep.topology import Topology, TopologyIndex
from planner.paths.flows import Flow
from planner.paths.network import build_network
from planner.paths.planning import plan_paths
from planner.paths.report import all_links, from_json
from tests.testbed.paths.flows import PlannedFlow, Ways


def plan_by_lockstep(
    topology: Topology, flows: Sequence[PlannedFlow], before: Ways
) -> dict[PlannedFlow, tuple[str, ...]]:
    """Return all links of each flow; with paths `before` of this planner, few flows move that need not."""
    network, rows = build_network(topology), _as_rows(topology, flows)
    held = from_json(network, rows, {"flows": {flow.name: list(path) for flow, path in before.items()}})
    plan = plan_paths(network, rows, held if before else None)
    return {flow: tuple(links) for flow, links in zip(flows, all_links(plan), strict=True)}


def _as_rows(topology: Topology, flows: Sequence[PlannedFlow]) -> list[Flow]:
    index, links = TopologyIndex(topology), Counter(flow.src for flow in flows)
    cables = {flow.src: index.host_link(*flow.src) for flow in flows}
    rates = {nic: cable.gbps / links[nic] for nic, cable in cables.items() if cable}
    return [
        Flow(id=flow.name, src="/".join(flow.src), dst="/".join(flow.dst), gbps=rates[flow.src]) for flow in flows
    ]
