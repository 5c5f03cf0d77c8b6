"""Which NIC each TCP flow uses, and what the flows of each NIC suffer: segments sent again, round trips; all pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.kernel.inet_diag import MAPPED, TcpTable

# What the counters of a NIC's flows mean; all are of the moment, none adds up over time.
TCP_COUNTERS: Mapping[str, str] = {
    "tcp_flows": "TCP flows that leave this host through the NIC",
    "tcp_flows_sending": "those of them that sent data within the last two seconds",
    "tcp_rtt_median_us": "median over the sending flows of the smoothed round trip",
    "tcp_rtt_max_us": "longest smoothed round trip of a sending flow",
    "tcp_rtt_max_lport": "local port of that flow",
    "tcp_rtt_max_rport": "remote port of that flow",
    "tcp_rtt_floor_us": "shortest round trip that any of the flows has seen lately",
    "tcp_retrans_max": "most segments that one flow has sent again since the reading before",
    "tcp_retrans_max_lport": "local port of that flow",
    "tcp_retrans_max_rport": "remote port of that flow",
    "tcp_lost": "segments thought lost and not yet repaired",
    "tcp_unacked": "segments on their way",
}
_SENDING_MS = 2_000  # two readings: what was measured before may be hours old
# Readings for which a flow that is not listed is remembered: a dump may skip one while others come and go.
_PATIENCE = 8
_MOST_NICS = 1_024  # whose totals are remembered; beyond it those that are gone are forgotten


@dataclass(frozen=True, slots=True)
class NicFlows:
    """What the TCP flows of a NIC give."""

    retrans: int  # segments sent again by flows seen on this NIC since this collector began, never falls
    counters: Mapping[str, int]  # TCP_COUNTERS


class FlowWatch:
    """Adds up retransmissions by NIC although flows end: the total of each flow is remembered by its cookie.

    A flow seen for the first time counts with all that it has sent again; what a flow sends again between the last
    reading and its end is not counted. Keeps 20 bytes a flow, of at most nine times MOST_SOCKETS flows.
    """

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._cookies = np.empty(0, np.uint64)  # sorted
        self._retrans = np.empty(0, np.int64)
        self._missed = np.empty(0, np.uint8)  # for how many readings it was not listed

    def observe(
        self, table: TcpTable, nics: Mapping[int, str], addresses: Mapping[bytes, int]
    ) -> dict[str, NicFlows]:
        """Return what is known of each NIC that has an address; `nics` names the NIC of an interface's index."""
        table = _without_duplicates(table)
        owners = _owners(table, nics, addresses)
        rises = self._rises(table)
        if len(self._totals) > _MOST_NICS:
            self._totals = {name: total for name, total in self._totals.items() if name in nics.values()}
        names = {nics[index] for index in addresses.values() if index in nics} | set(self._totals)
        return {name: self._sum_up(name, table, rises, owners == name) for name in names}

    def _sum_up(self, name: str, table: TcpTable, rises: NDArray[np.int64], own: NDArray[np.bool_]) -> NicFlows:
        self._totals[name] = self._totals.get(name, 0) + int(rises[own].sum())
        return NicFlows(self._totals[name], _counters(table, rises, own))

    def _rises(self, table: TcpTable) -> NDArray[np.int64]:
        """Return how many segments each flow has sent again since it was last listed, and remember the totals."""
        cookies, totals = table.socket["cookie"], table.info["retrans_total"].astype(np.int64)
        index = np.minimum(np.searchsorted(self._cookies, cookies), max(0, len(self._cookies) - 1))
        is_known = self._cookies[index] == cookies if len(self._cookies) else np.zeros(len(cookies), bool)
        # Of too many flows each reading lists others: one that is new to us need not be new.
        rises = np.where(table.is_cut, 0, totals)
        rises[is_known] = np.maximum(0, totals - self._retrans[index])[is_known] if len(self._cookies) else 0
        self._remember(cookies, totals)
        return np.where(table.knows("retrans_total"), rises, 0)

    def _remember(self, cookies: NDArray[np.uint64], totals: NDArray[np.int64]) -> None:
        kept = ~np.isin(self._cookies, cookies, assume_unique=True) & (self._missed < _PATIENCE)
        joined = np.concatenate([cookies, self._cookies[kept]])
        order = np.argsort(joined)
        self._cookies = joined[order]
        self._retrans = np.concatenate([totals, self._retrans[kept]])[order]
        self._missed = np.concatenate([np.zeros(len(cookies), np.uint8), self._missed[kept] + np.uint8(1)])[order]


def _without_duplicates(table: TcpTable) -> TcpTable:
    """Return each flow once; a dump may list one twice while others come and go."""
    _, first = np.unique(table.socket["cookie"], return_index=True)
    if len(first) == len(table):
        return table
    return TcpTable(table.socket[first], table.info[first], table.info_bytes[first], table.is_cut)


def _owners(table: TcpTable, nics: Mapping[int, str], addresses: Mapping[bytes, int]) -> NDArray[Any]:
    """Return the NIC of each flow; "" for one of none, or between two addresses of this host (lo carries it)."""
    local, remote = (_as_ipv6(table, name) for name in ("local", "remote"))
    bound = table.socket["interface"].tolist()
    rows = zip(bound, local, remote, strict=True)
    return np.array(
        ["" if there in addresses else nics.get(index or addresses.get(here, 0), "") for index, here, there in rows],
        dtype=object,
    )


def _as_ipv6(table: TcpTable, name: str) -> list[bytes]:
    rows = zip((table.socket["family"] == 2).tolist(), table.socket[name].tolist(), strict=True)
    return [MAPPED + address[:4] if is_ipv4 else address for is_ipv4, address in rows]


def _counters(table: TcpTable, rises: NDArray[np.int64], own: NDArray[np.bool_]) -> dict[str, int]:
    sending = own & table.knows("last_data_sent_ms") & (table.info["last_data_sent_ms"] <= _SENDING_MS)
    counters = {"tcp_flows": int(own.sum()), "tcp_flows_sending": int(sending.sum())}
    counters |= {f"tcp_{name}": int(table.info[name][own].sum()) for name in ("lost", "unacked")}
    measured = np.flatnonzero(sending & table.knows("rtt_us"))
    if len(measured):
        counters["tcp_rtt_median_us"] = int(np.median(table.info["rtt_us"][measured]))
        counters |= _worst(table, "tcp_rtt_max", "_us", table.info["rtt_us"], measured)
    floors = table.info["min_rtt_us"][own & table.knows("min_rtt_us")]
    if len(floors):
        counters["tcp_rtt_floor_us"] = int(floors.min())
    again = np.flatnonzero(own & (rises > 0))
    return counters | (_worst(table, "tcp_retrans_max", "", rises, again) if len(again) else {})


def _worst(table: TcpTable, name: str, unit: str, values: NDArray[Any], rows: NDArray[np.int64]) -> dict[str, int]:
    worst = rows[np.argmax(values[rows])]
    ports = {f"{name}_{port}": int(table.socket[port][worst]) for port in ("lport", "rport")}
    return {f"{name}{unit}": int(values[worst]), **ports}
