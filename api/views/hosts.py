"""The hosts: what runs there, how the collector is, what is out of service, and which open incident names what."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pydantic import Field

from api.dependencies import SortKey, show_timestamp
from api.views.ledger import nodes_of
from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent
from lockstep.execution import Isolated
from lockstep.plugin_summary import PluginSummary, summarize_plugins
from lockstep.records import PluginHealth
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_isolated
from lockstep.state.incidents import open_incidents
from lockstep.store.store import Store
from lockstep.topology import Topology, gpu_name, nic_name
from lockstep.verdict import Frozen, Incident
from lockstep.words import timestamp

SILENT_NS = 15 * NS_PER_S  # as the analyzer does by default
_RECENT_NS = 300 * NS_PER_S  # drops in this time are news

_AGENTS = f"""
SELECT host, argMax(version, ts_ns) AS version, max(ts_ns) AS last_seen_ns, max(watermark_ns) AS watermark_ns,
       argMax(agents.dropped, ts_ns) AS dropped,
       toUInt64(greatest(toInt64(maxIf(agents.dropped, ts_ns >= {{recent:Int64}}))
           - toInt64(minIf(agents.dropped, ts_ns >= {{recent:Int64}})), 0)) AS dropped_lately,
       argMax(spool_bytes, ts_ns) AS spool_bytes, argMax(cpu_ns, ts_ns) AS cpu_ns,
       argMax(plugin_cost_ns, ts_ns) AS plugin_cost_ns, argMax(ifNull(agents.ended, false), ts_ns) AS has_ended,
       argMax(agents.gateway, ts_ns) AS gateway, argMax(agents.stalled, ts_ns) AS stalled
FROM agents WHERE host > {{after:String}} AND ts_ns >= {{since:Int64}} AND ts_ns <= {{now:Int64}} + {NS_PER_S}
GROUP BY host ORDER BY host LIMIT {{most:UInt64}}
"""


_PLUGINS = f"""
SELECT * FROM plugins
WHERE host IN {{hosts:Array(String)}} AND ts_ns >= {{since:Int64}} AND ts_ns <= {{now:Int64}} + {NS_PER_S}
ORDER BY ts_ns DESC LIMIT 1 BY host, job, attempt, pid
"""
_PLUGIN_NS = 30 * NS_PER_S  # rows of a rank that lives come every ten seconds


class AgentView(Frozen):
    """The collector of a host, as of its last heartbeat."""

    host: str
    version: str
    is_silent: bool = Field(description="whether nothing came for 15 s, though it has not said that it ends")
    has_ended: bool = Field(False, description="whether it was stopped in order, and said so")
    gateway: str | None = Field(None, description="address of the gateway that it sends to")
    missing: tuple[str, ...] = Field((), description="sources without readings and since when, a sentence each")
    last_seen_ns: int = Field(ge=0)
    last_seen_at: str | None = None
    watermark_ns: int = Field(ge=0, description="every row older than this has been sent")
    lag_s: float = Field(ge=0, description="how far what it has sent is behind its last heartbeat")
    dropped: int = Field(ge=0, description="rows lost since its start")
    dropped_lately: int = Field(ge=0, description="of these, in the last five minutes")
    spool_bytes: int = Field(ge=0)
    cpu_ns: int = Field(ge=0)
    plugin_cost_ns: int | None = None
    plugins: PluginSummary | None = Field(None, description="how the plugins in its ranks do; None: there are none")


def list_agents(
    store: Store, now_ns: int, limit: int, after: SortKey | None = None, since_s: int = 3600
) -> list[AgentView]:
    """Return the agents heard of in the last `since_s` seconds by host; `after` is (host,) of the last known one."""
    asked = {
        "after": after[0] if after else "",
        "since": max(now_ns - since_s * NS_PER_S, 0),
        "recent": max(now_ns - _RECENT_NS, 0),
        "now": now_ns,
        "most": limit,
    }
    agents = store.query(_AGENTS, asked).to_pylist()
    lately = {"hosts": [row["host"] for row in agents], "since": max(now_ns - _PLUGIN_NS, 0), "now": now_ns}
    plugins = defaultdict[str, list[PluginHealth]](list)
    for row in store.query(_PLUGINS, lately).to_pylist():
        plugins[row["host"]].append(PluginHealth(**row))
    return [_as_agent(row, plugins[row["host"]], now_ns) for row in agents]


def _as_agent(row: dict[str, Any], plugins: list[PluginHealth], now_ns: int) -> AgentView:  # Any: several types
    stalled = sorted(row.pop("stalled"))
    return AgentView(
        **row,
        plugins=summarize_plugins(plugins) if plugins else None,
        is_silent=not row["has_ended"] and now_ns - row["last_seen_ns"] > SILENT_NS,
        missing=tuple(f"no readings from {name} on {row['host']} since {timestamp(ns)} UTC" for name, ns in stalled),
        last_seen_at=show_timestamp(row["last_seen_ns"]),
        lag_s=max(row["last_seen_ns"] - row["watermark_ns"], 0) / NS_PER_S,
    )


_RATE_NS = 60 * NS_PER_S  # over which rates are counted: some collectors read counters every ten seconds

_WHERE = "ts_ns >= {since:Int64} AND ts_ns <= {now:Int64}"
_GPUS = f"""
SELECT host, gpu, argMax(gpu_uuid, ts) AS uuid, max(ts) AS seen_ns, argMax(sm_mhz, ts) AS sm_mhz,
       argMax(temp_c, ts) AS temp_c, argMax(power_w, ts) AS power_w, argMax(throttle, ts) AS throttle,
       argMax(ecc_sbe, ts) AS ecc_sbe, argMax(ecc_dbe, ts) AS ecc_dbe, argMax(nvlink_errors, ts) AS nvlink_errors,
       argMax(pcie_replays, ts) AS pcie_replays, argMax(util, ts) AS util
FROM (SELECT *, ts_ns AS ts FROM gpu_health
      WHERE {_WHERE} AND (host, gpu) > ({{after_host:String}}, {{after:Int32}}) %(whose)s)
GROUP BY host, gpu ORDER BY host, gpu LIMIT {{most:UInt64}}
"""
_NICS = f"""
SELECT host, nic, max(ts) AS seen_ns, argMax(is_up, ts) AS up, argMax(speed_mbps, ts) AS speed_mbps,
       argMax(rx_bytes, ts) AS rx, argMax(tx_bytes, ts) AS tx, argMin(rx_bytes, ts) AS rx_then,
       argMin(tx_bytes, ts) AS tx_then, max(ts) - min(ts) AS span_ns,
       argMax(rx_errors, ts) AS rx_errors, argMax(tx_errors, ts) AS tx_errors, argMax(rx_drops, ts) AS rx_drops,
       argMax(tx_drops, ts) AS tx_drops, argMax(retrans, ts) AS retrans
FROM (SELECT *, ts_ns AS ts, up AS is_up, max(ts_ns) OVER (PARTITION BY host, nic) AS newest FROM nic_counters
      WHERE {_WHERE} AND (host, nic) > ({{after_host:String}}, {{after:String}}) %(whose)s)
WHERE ts >= newest - {_RATE_NS}
GROUP BY host, nic ORDER BY host, nic LIMIT {{most:UInt64}}
"""


class GpuView(Frozen):
    """A GPU and its last reading; what its model does not report is None."""

    component: str = Field(description="its name in verdicts")
    host: str
    gpu: int = Field(ge=0, description="NVML index")
    gpu_uuid: str
    seen_ns: int = Field(ge=0)
    seen_at: str | None = None
    sm_mhz: int | None = None
    temp_c: float | None = None
    power_w: float | None = None
    throttle: str = Field("", description="reasons for a lowered clock, comma-separated")
    ecc_sbe: int | None = None
    ecc_dbe: int | None = None
    nvlink_errors: int | None = None
    pcie_replays: int | None = None
    util: float | None = None


class NicView(Frozen):
    """A NIC, its last reading and its load over the last minute."""

    component: str = Field(description="its name in verdicts")
    host: str
    nic: str
    seen_ns: int = Field(ge=0)
    seen_at: str | None = None
    up: bool
    speed_mbps: int | None = None
    rx_gbps: float | None = Field(None, ge=0, description="received in the last minute; None: read only once in it")
    tx_gbps: float | None = Field(None, ge=0)
    load: float | None = Field(None, ge=0, description="busier direction over its rate; None: one is not known")
    rx_errors: int = Field(ge=0)
    tx_errors: int = Field(ge=0)
    rx_drops: int = Field(ge=0)
    tx_drops: int = Field(ge=0)
    retrans: int | None = None


def list_gpus(
    store: Store, now_ns: int, limit: int, after: SortKey | None = None, host: str | None = None, since_s: int = 3600
) -> list[GpuView]:
    """Return GPUs that were read in the last `since_s` seconds by host and index; `after` is (host, gpu)."""
    rows = _ask(store, _GPUS, now_ns, limit, after or ("", -1), host, since_s)
    return [
        GpuView(
            **{name: value for name, value in row.items() if name != "uuid"},
            gpu_uuid=row["uuid"],
            component=gpu_name(row["host"], row["gpu"]),
            seen_at=show_timestamp(row["seen_ns"]),
        )
        for row in rows
    ]


def list_nics(
    store: Store, now_ns: int, limit: int, after: SortKey | None = None, host: str | None = None, since_s: int = 3600
) -> list[NicView]:
    """Return NICs that were read in the last `since_s` seconds by host and name; `after` is (host, nic)."""
    return [_as_nic(row) for row in _ask(store, _NICS, now_ns, limit, after or ("", ""), host, since_s)]


Row = dict[str, Any]  # Any: columns of several types


def _ask(
    store: Store, sql: str, now_ns: int, limit: int, after: SortKey, host: str | None, since_s: int
) -> list[Row]:
    asked = {
        "since": max(now_ns - since_s * NS_PER_S, 0),
        "now": now_ns,
        "after_host": after[0],
        "after": after[1],
        "host": host or "",
        "most": limit,
    }
    rows: list[Row] = store.query(sql % {"whose": "AND host = {host:String}" if host else ""}, asked).to_pylist()
    return rows


def _as_nic(row: Row) -> NicView:
    rx, tx = (rate_gbps(row[f"{direction}_then"], row[direction], row["span_ns"]) for direction in ("rx", "tx"))
    left_out = ("rx", "tx", "rx_then", "tx_then", "span_ns")
    return NicView(
        **{name: value for name, value in row.items() if name not in left_out},
        component=nic_name(row["host"], row["nic"]),
        seen_at=show_timestamp(row["seen_ns"]),
        rx_gbps=rx,
        tx_gbps=tx,
        load=load_of(rx, tx, row["speed_mbps"]),
    )


def rate_gbps(before: int, after: int, span_ns: int) -> float | None:
    """Return the rate of a counter of bytes; None where it was read once, or began anew with the driver.

    >>> rate_gbps(0, 125_000_000, NS_PER_S)
    1.0
    """
    return (after - before) * 8 / span_ns if span_ns > 0 and after >= before else None


def load_of(rx_gbps: float | None, tx_gbps: float | None, speed_mbps: int | None) -> float | None:
    """Return how full the busier direction is."""
    known = [rate for rate in (rx_gbps, tx_gbps) if rate is not None]
    return max(known) * 1000 / speed_mbps if known and speed_mbps else None


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
    """A host of the topology, or one whose collector was seen."""

    host: str
    rack: str | None = None
    in_topology: bool
    gpus: int | None = Field(None, description="in the topology; None: it is not there")
    nics: int | None = None
    jobs: tuple[str, ...] = Field((), description="that run there now")
    agent: AgentView | None = Field(None, description="its collector; None: not seen lately")
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
    named = incidents_by_name(open_incidents(control))
    return [
        HostView(
            host=host,
            rack=nodes[host].rack if host in nodes else None,
            in_topology=host in nodes,
            gpus=len(nodes[host].gpus) if host in nodes else None,
            nics=len(nodes[host].nics) if host in nodes else None,
            jobs=jobs.get(host, ()),
            agent=agents.get(host),
            isolated=out.get(host),
            incidents=named.get(host, ()),
        )
        for host in sorted({*agents, *nodes, *jobs, *out})
    ]


def find_host(
    store: Store, control: ControlDatabase, topology: Topology | None, host: str, now_ns: int
) -> HostDetail:
    """Return one host with its devices, or raise NotPresent."""
    found = next((each for each in list_hosts(store, control, topology, now_ns) if each.host == host), None)
    if found is None:
        raise NotPresent(f"no host {host!r} is in the topology or was seen in the last hour")
    return HostDetail(
        **dict(found),
        gpu_readings=tuple(list_gpus(store, now_ns, _MOST_DEVICES, host=host)),
        nic_readings=tuple(list_nics(store, now_ns, _MOST_DEVICES, host=host)),
    )


def incidents_by_name(incidents: Iterable[Incident]) -> dict[str, tuple[str, ...]]:
    """Return the ids of incidents by all that they make suspect: the part, its nodes, and what it may be as well."""
    found: dict[str, list[str]] = defaultdict(list)
    for incident in incidents:
        component = incident.verdict.component
        for name in {component, *nodes_of(component), *incident.verdict.ambiguous_with}:
            found[name].append(incident.id)
    return {name: tuple(ids) for name, ids in found.items()}
