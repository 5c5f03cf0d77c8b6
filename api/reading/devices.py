"""GPUs and NICs: what each read last, and for NICs at what rate they send and receive."""

from typing import Any

from pydantic import Field

from api.paging import Place
from api.reading.moments import show_moment
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.topology import gpu_name, nic_name
from lockstep.verdict import Frozen

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
    store: Store, now_ns: int, limit: int, after: Place | None = None, host: str | None = None, since_s: int = 3600
) -> list[GpuView]:
    """Return GPUs that were read in the last `since_s` seconds by host and index; `after` is (host, gpu)."""
    rows = _ask(store, _GPUS, now_ns, limit, after or ("", -1), host, since_s)
    return [
        GpuView(
            **{name: value for name, value in row.items() if name != "uuid"},
            gpu_uuid=row["uuid"],
            component=gpu_name(row["host"], row["gpu"]),
            seen_at=show_moment(row["seen_ns"]),
        )
        for row in rows
    ]


def list_nics(
    store: Store, now_ns: int, limit: int, after: Place | None = None, host: str | None = None, since_s: int = 3600
) -> list[NicView]:
    """Return NICs that were read in the last `since_s` seconds by host and name; `after` is (host, nic)."""
    return [_as_nic(row) for row in _ask(store, _NICS, now_ns, limit, after or ("", ""), host, since_s)]


Row = dict[str, Any]  # Any: columns of several types


def _ask(store: Store, sql: str, now_ns: int, limit: int, after: Place, host: str | None, since_s: int) -> list[Row]:
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
    rx, tx = (rate_gbps(row[f"{way}_then"], row[way], row["span_ns"]) for way in ("rx", "tx"))
    left_out = ("rx", "tx", "rx_then", "tx_then", "span_ns")
    return NicView(
        **{name: value for name, value in row.items() if name not in left_out},
        component=nic_name(row["host"], row["nic"]),
        seen_at=show_moment(row["seen_ns"]),
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
