"""What the ports of a node have counted: bytes and packets by the interface, drops and waiting bytes by its queue."""

from dataclasses import dataclass
from typing import Any

_LOWER_UP = 0x1_0000  # linux/if.h: on, and with a carrier; the operational state says so up to a second later


@dataclass(frozen=True, slots=True)
class PortCounters:
    """One port, counted since it was made; `dropped` and `waiting_bytes` are those of the queue that shapes it."""

    is_up: bool
    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int
    dropped: int = 0
    waiting_bytes: int = 0
    rate_mbps: float | None = None


def read_ports(route: Any) -> dict[str, PortCounters]:
    """Return the ports of the namespace of an open IPRoute, by name."""
    queues = {each["index"]: _read_queue(each) for each in route.get_qdiscs() if each.get_attr("TCA_KIND") == "tbf"}
    return {
        link.get_attr("IFLA_IFNAME"): _count(link, queues.get(link["index"], (0, 0, None)))
        for link in route.get_links()
    }


def _count(link: Any, queue: tuple[int, int, float | None]) -> PortCounters:
    counted = link.get_attr("IFLA_STATS64")
    fields = {field: int(counted[field]) for field in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")}
    dropped, waiting_bytes, rate_mbps = queue
    is_up = bool(link["flags"] & _LOWER_UP)
    return PortCounters(is_up, **fields, dropped=dropped, waiting_bytes=waiting_bytes, rate_mbps=rate_mbps)


def _read_queue(qdisc: Any) -> tuple[int, int, float | None]:
    """Return what a tbf dropped, what waits in it, and its rate."""
    queue = qdisc.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")
    rate = qdisc.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")["rate"]
    return int(queue["drops"]), int(queue["backlog"]), rate * 8 / 1e6
