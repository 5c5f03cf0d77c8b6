"""The collectors: which version each has, how far it lags behind, and what it lost."""

from typing import Any

from pydantic import Field

from api.paging import Place
from api.reading.moments import show_moment
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.verdict import Frozen

SILENT_NS = 15 * NS_PER_S  # as the analyzer does by default
_RECENT_NS = 300 * NS_PER_S  # drops in this time are news

_AGENTS = f"""
SELECT host, argMax(version, ts_ns) AS version, max(ts_ns) AS heard_ns, max(watermark_ns) AS watermark_ns,
       argMax(agents.dropped, ts_ns) AS dropped,
       toUInt64(greatest(toInt64(maxIf(agents.dropped, ts_ns >= {{recent:Int64}}))
           - toInt64(minIf(agents.dropped, ts_ns >= {{recent:Int64}})), 0)) AS dropped_lately,
       argMax(spool_bytes, ts_ns) AS spool_bytes, argMax(cpu_ns, ts_ns) AS cpu_ns,
       argMax(plugin_cost_ns, ts_ns) AS plugin_cost_ns
FROM agents WHERE host > {{after:String}} AND ts_ns >= {{since:Int64}} AND ts_ns <= {{now:Int64}} + {NS_PER_S}
GROUP BY host ORDER BY host LIMIT {{most:UInt64}}
"""


class AgentView(Frozen):
    """The collector of a host, as its last heartbeat tells it."""

    host: str
    version: str
    is_silent: bool = Field(description="whether nothing was heard for 15 s")
    heard_ns: int = Field(ge=0)
    heard_at: str | None = None
    watermark_ns: int = Field(ge=0, description="every row older than this has been sent")
    lag_s: float = Field(ge=0, description="how far what it has sent is behind its last heartbeat")
    dropped: int = Field(ge=0, description="rows lost since its start")
    dropped_lately: int = Field(ge=0, description="of these, in the last five minutes")
    spool_bytes: int = Field(ge=0)
    cpu_ns: int = Field(ge=0)
    plugin_cost_ns: int | None = None


def list_agents(
    store: Store, now_ns: int, limit: int, after: Place | None = None, since_s: int = 3600
) -> list[AgentView]:
    """Return the agents heard of in the last `since_s` seconds by host; `after` is (host,) of the last known one."""
    asked = {
        "after": after[0] if after else "",
        "since": max(now_ns - since_s * NS_PER_S, 0),
        "recent": max(now_ns - _RECENT_NS, 0),
        "now": now_ns,
        "most": limit,
    }
    return [_as_agent(row, now_ns) for row in store.query(_AGENTS, asked).to_pylist()]


def _as_agent(row: dict[str, Any], now_ns: int) -> AgentView:  # Any: columns of several types
    return AgentView(
        **row,
        is_silent=now_ns - row["heard_ns"] > SILENT_NS,
        heard_at=show_moment(row["heard_ns"]),
        lag_s=max(row["heard_ns"] - row["watermark_ns"], 0) / NS_PER_S,
    )
