"""The topology as it is now: every link with its load, every node, and the parts that an open incident names."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from api.dependencies import show_timestamp
from api.views.hosts import incidents_by_name, load_of, rate_gbps
from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_isolated
from lockstep.state.fabric import TopologyVersion, find_topology, list_host_paths, newest_path_plan
from lockstep.state.incidents import open_incidents
from lockstep.store.store import Store
from lockstep.topology import Link, Node, Topology, link_name, split_end
from lockstep.verdict import Frozen

_RECENT_NS = 120 * NS_PER_S  # counters older than this say nothing about the load now

_RATES = """
SELECT node, port, argMax(tx, ts_ns) AS tx_now, argMin(tx, ts_ns) AS tx_then, argMax(rx, ts_ns) AS rx_now,
       argMin(rx, ts_ns) AS rx_then, max(ts_ns) AS seen_ns, max(ts_ns) - min(ts_ns) AS span_ns
FROM (SELECT host AS node, nic AS port, ts_ns, tx_bytes AS tx, rx_bytes AS rx FROM nic_counters
      WHERE ts_ns >= {since:Int64} AND ts_ns <= {now:Int64}
      UNION ALL
      SELECT switch AS node, port, ts_ns, tx_bytes AS tx, rx_bytes AS rx FROM fabric_counters
      WHERE ts_ns >= {since:Int64} AND ts_ns <= {now:Int64})
GROUP BY node, port
"""


class LinkView(Frozen):
    """A cable and what goes over it."""

    id: str
    component: str = Field(description="its name in verdicts")
    a: str
    b: str
    gbps: float = Field(description="nominal rate of each direction")
    up: bool
    ab_gbps: float | None = Field(None, description="from a to b in the last two minutes; None: not known")
    ba_gbps: float | None = None
    load: float | None = Field(None, ge=0, description="busier direction over the rate")
    planned_flows: int = Field(ge=0, description="connections that the path plan leads over it")
    weight: float | None = Field(None, description="share of its rate that the plan counts on; None: all of it")
    suspects: tuple[str, ...] = Field((), description="ids of open incidents that name it or its NIC")


class NodeView(Frozen):
    """A host or a switch."""

    id: str
    kind: str
    tier: str | None = None
    rack: str | None = None
    gpus: int = 0
    nics: int = 0
    is_isolated: bool = False
    suspects: tuple[str, ...] = Field((), description="ids of open incidents that name it or a part of it")


class FabricView(Frozen):
    """The whole topology with loads and suspects."""

    version: TopologyVersion | None = Field(None, description="None: it came from a file")
    routing: str
    seen_at: str | None = None
    nodes: tuple[NodeView, ...]
    links: tuple[LinkView, ...]
    path_plan: int | None = Field(None, description="number of the path plan in force; None: there is none")


def read_fabric(store: Store, control: ControlDatabase, topology: Topology | None, now_ns: int) -> FabricView:
    """Return the topology with loads and suspects: the given one, else the one published last; or NotPresent."""
    version, topology = _choose(control, topology)
    rows = store.query(_RATES, {"since": max(now_ns - _RECENT_NS, 0), "now": now_ns}).to_pylist()
    rates = {(row["node"], row["port"]): _rates(row) for row in rows}
    suspects = incidents_by_name(open_incidents(control))
    out = {each.node for each in list_isolated(control) if each.state != "returned"}
    flows = Counter(link for host in list_host_paths(control) for choice in host.choices for link in choice.links)
    plan = newest_path_plan(control)
    weights = plan.weights if plan else {}
    return FabricView(
        version=version,
        routing=topology.routing,
        seen_at=show_timestamp(now_ns),
        nodes=tuple(_node(node, suspects, out) for node in topology.nodes),
        links=tuple(_link(link, rates, flows, weights, suspects) for link in topology.links),
        path_plan=plan.generation if plan else None,
    )


_Rates = Mapping[tuple[str, str], tuple[float | None, float | None]]  # sent and received, by node and port


def _choose(control: ControlDatabase, topology: Topology | None) -> tuple[TopologyVersion | None, Topology]:
    if topology is not None:
        return None, topology
    try:
        return find_topology(control)
    except NotPresent:
        raise NotPresent("no topology is known: publish one with `lockstep topology import`") from None


def _rates(row: dict[str, Any]) -> tuple[float | None, float | None]:  # Any: columns of several types
    sent, received = (rate_gbps(row[f"{side}_then"], row[f"{side}_now"], row["span_ns"]) for side in ("tx", "rx"))
    return sent, received


def _node(node: Node, suspects: Mapping[str, tuple[str, ...]], out: set[str]) -> NodeView:
    return NodeView(
        id=node.id,
        kind=node.kind,
        tier=node.tier,
        rack=node.rack,
        gpus=len(node.gpus),
        nics=len(node.nics),
        is_isolated=node.id in out,
        suspects=suspects.get(node.id, ()),
    )


def _link(
    link: Link,
    rates: _Rates,
    flows: Mapping[str, int],
    weights: Mapping[str, float],
    suspects: Mapping[str, tuple[str, ...]],
) -> LinkView:
    """Return a link; either end counts what is sent, and where it does not, the other one what it received."""
    (a_sent, a_received), (b_sent, b_received) = (
        _rates_at(near, far, rates) for near, far in ((link.a, link.b), (link.b, link.a))
    )
    ab = a_sent if a_sent is not None else b_received
    ba = b_sent if b_sent is not None else a_received
    component = link_name(link)
    names = (component, f"nic:{link.a}", f"nic:{link.b}")
    return LinkView(
        id=link.id,
        component=component,
        a=link.a,
        b=link.b,
        gbps=link.gbps,
        up=link.up,
        ab_gbps=ab,
        ba_gbps=ba,
        load=load_of(ab, ba, round(link.gbps * 1000)),
        planned_flows=flows.get(link.id, 0),
        weight=weights.get(component, weights.get(link.id)),
        suspects=tuple(dict.fromkeys(each for name in names for each in suspects.get(name, ()))),
    )


def _rates_at(near: str, far: str, rates: _Rates) -> tuple[float | None, float | None]:
    """Return what goes out and comes in at an end; a port that has no name goes by what it leads to."""
    node, port = split_end(near)
    return rates.get((node, port or far), (None, None))
