"""The hosts: what runs there, how the collector is, what is out of service, and which open incident names what."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from pydantic import Field

from api.reading.agents import AgentView, list_agents
from api.reading.devices import GpuView, NicView, list_gpus, list_nics
from api.reading.part_names import nodes_of
from lockstep.control.database import ControlDatabase
from lockstep.control.executions import list_isolated
from lockstep.control.incidents import open_incidents
from lockstep.errors import NotPresent
from lockstep.execution import Isolated
from lockstep.incident import Incident
from lockstep.store.store import Store
from lockstep.topology import Node, Topology
from lockstep.verdict import Frozen

_ALL = 1_000_000
_MOST_DEVICES = 1_000  # of one host
_RUNNING = """
SELECT host, groupUniqArray(job) AS jobs FROM comms FINAL
WHERE destroy_ns IS NULL AND job IN (
    SELECT job FROM op_stats WHERE ts_ns >= {since:Int64} GROUP BY job
    UNION DISTINCT SELECT job FROM progress WHERE ts_ns >= {since:Int64} GROUP BY job)
GROUP BY host
"""
_ALIVE_NS = 120 * 10**9  # as long as the analyzer looks back for signs of life


class HostView(Frozen):
    """A host of the topology, or one whose collector was heard."""

    host: str
    rack: str | None = None
    in_topology: bool
    gpus: int | None = Field(None, description="in the topology; None: it is not there")
    nics: int | None = None
    jobs: tuple[str, ...] = Field((), description="that run there now")
    agent: AgentView | None = Field(None, description="its collector; None: not heard of lately")
    isolated: Isolated | None = Field(None, description="how far it is on its way back, while it is out of service")
    incidents: tuple[str, ...] = Field((), description="ids of open incidents that name a part of it")


class HostDetail(HostView):
    """A host with its devices."""

    gpu_readings: tuple[GpuView, ...] = ()
    nic_readings: tuple[NicView, ...] = ()


def list_hosts(store: Store, control: ControlDatabase, topology: Topology | None, now_ns: int) -> list[HostView]:
    """Return all hosts by name: those of the topology and those whose collectors were heard in the last hour."""
    agents = {agent.host: agent for agent in list_agents(store, now_ns, _ALL)}
    nodes = {node.id: node for node in topology.hosts} if topology else {}
    running = store.query(_RUNNING, {"since": max(now_ns - _ALIVE_NS, 0)}).to_pylist()
    jobs = {row["host"]: tuple(sorted(row["jobs"])) for row in running}
    out = {each.node: each for each in list_isolated(control) if each.state != "returned"}
    named = incidents_by_host(open_incidents(control))
    return [
        _as_host(host, nodes.get(host), agents.get(host), jobs, out, named)
        for host in sorted({*agents, *nodes, *jobs, *out})
    ]


def find_host(
    store: Store, control: ControlDatabase, topology: Topology | None, host: str, now_ns: int
) -> HostDetail:
    """Return one host with its devices, or raise NotPresent."""
    found = next((each for each in list_hosts(store, control, topology, now_ns) if each.host == host), None)
    if found is None:
        raise NotPresent(f"no host {host!r} is in the topology or was heard of in the last hour")
    return HostDetail(
        **dict(found),
        gpu_readings=tuple(list_gpus(store, now_ns, _MOST_DEVICES, host=host)),
        nic_readings=tuple(list_nics(store, now_ns, _MOST_DEVICES, host=host)),
    )


def incidents_by_host(incidents: Iterable[Incident]) -> dict[str, tuple[str, ...]]:
    """Return the ids of incidents by the nodes that they name."""
    found: dict[str, list[str]] = defaultdict(list)
    for incident in incidents:
        for host in nodes_of(incident.verdict.component):
            found[host].append(incident.id)
    return {host: tuple(ids) for host, ids in found.items()}


def _as_host(
    host: str,
    node: Node | None,
    agent: AgentView | None,
    jobs: Mapping[str, tuple[str, ...]],
    out: Mapping[str, Isolated],
    named: Mapping[str, tuple[str, ...]],
) -> HostView:
    return HostView(
        host=host,
        rack=node.rack if node else None,
        in_topology=node is not None,
        gpus=len(node.gpus) if node else None,
        nics=len(node.nics) if node else None,
        jobs=jobs.get(host, ()),
        agent=agent,
        isolated=out.get(host),
        incidents=named.get(host, ()),
    )
