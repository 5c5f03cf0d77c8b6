"""What is known of a network interface at one moment, whoever told it: the kernel over netlink, or files in /sys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# The names of struct rtnl_link_stats64 of linux/if_link.h in its order; the files in `statistics` have the same.
STATISTICS = (
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "multicast",
    "collisions",
    "rx_length_errors",
    "rx_over_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
)
REQUIRED = STATISTICS[2:8]  # those that have columns of their own


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface; None is what could not be learned."""

    name: str
    index: int
    is_up: bool  # has a carrier, and is open for traffic
    is_enabled: bool  # not taken down by somebody
    operstate: str
    has_device: bool  # a card behind it, in contrast to bridges, tunnels and pairs
    kind: str = ""  # veth, bond, vlan; empty for a card
    lower: int | None = None  # index of the interface that a VLAN or its like lies on
    statistics: Mapping[str, int] = field(default_factory=dict)
    carrier_downs: int | None = None  # how often the carrier was lost since boot
    carrier_ups: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits to be sent on an interface and what found no room (its root qdisc); the last three since boot."""

    backlog_bytes: int
    backlog_packets: int
    drops: int
    requeues: int
    overlimits: int

    def counters(self) -> dict[str, int]:
        return {
            "qdisc_backlog_bytes": self.backlog_bytes,
            "qdisc_backlog_packets": self.backlog_packets,
            "qdisc_drops": self.drops,
            "qdisc_requeues": self.requeues,
            "qdisc_overlimits": self.overlimits,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """An interface as a notification showed it, and when that came."""

    at_ns: int
    link: Link


@dataclass(frozen=True)
class Look:
    """All interfaces at one moment, and what was told of them since the look before."""

    links: Sequence[Link]
    changes: Sequence[Change] = ()  # in order
    queues: Mapping[int, Queue] = field(default_factory=dict)  # by index of the interface
    addresses: Mapping[bytes, int] | None = None  # own addresses as 16 bytes of IPv6, and the interface that has each
    broken: Mapping[str, str] = field(default_factory=dict)  # by name of the interface: why it cannot be read
    is_whole: bool = True  # an interface that is not listed is gone
