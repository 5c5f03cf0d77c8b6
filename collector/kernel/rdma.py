"""What the kernel says about an RDMA port below /sys/class/infiniband."""

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from collector.kernel.netlink import (
    NETLINK_RDMA,
    NetlinkSocket,
    attributes_of,
    pack_attribute,
    to_number,
    to_text,
    walk_attributes,
)
from lockstep.errors import NotPresent

_UP_STATES = ("ACTIVE", "ACTIVE_DEFER")
_SETTINGS = frozenset({"lifespan"})  # stands among the hw_counters, but says for how long the kernel keeps them


@dataclass(frozen=True)
class RdmaPort:
    """One reading of a port; what could not be read is None, or named in `broken`."""

    nic: str  # as rows name it
    netdevs: tuple[str, ...]  # network interfaces of the same device
    state: str  # DOWN, INIT, ARMED, ACTIVE, ACTIVE_DEFER
    phys_state: str | None  # LinkUp, Polling, Disabled and others
    up: bool
    speed_mbps: int | None
    counters: dict[str, int]
    broken: tuple[str, ...]  # counters that the driver lists and does not give


def find_ports(devices: Path) -> dict[str, Path]:
    """Return the port folders by NIC: the device's own name, or `device:port` where it has several ports."""
    found = {}
    for device in sorted(devices.glob("*")):
        ports = sorted(device.glob("ports/*"), key=lambda port: (len(port.name), port.name))
        found.update({device.name if len(ports) == 1 else f"{device.name}:{port.name}": port for port in ports})
    return found


def read_port(nic: str, port: Path) -> RdmaPort:
    """Return a reading; raise OSError or ValueError when the port does not even tell its state."""
    device = port.parent.parent
    netdevs = sorted(device.glob("device/net/*"))
    state = _word_after_number(port / "state")
    up = state in _UP_STATES and not _is_down_below(port, netdevs)
    phys_state = None
    with suppress(OSError, ValueError):
        phys_state = _word_after_number(port / "phys_state")
    counters, broken = _read_counters([device / "hw_counters", port / "counters", port / "hw_counters"])
    return RdmaPort(
        nic=nic,
        netdevs=tuple(netdev.name for netdev in netdevs),
        state=state,
        phys_state=phys_state,
        up=up,
        speed_mbps=_read_speed(port / "rate") if up else None,
        counters=counters,
        broken=broken,
    )


def _word_after_number(file: Path) -> str:
    """Return DOWN of `1: DOWN`."""
    number, colon, word = file.read_text().partition(":")
    if not (colon and number.strip().isdecimal() and word.strip()):
        raise ValueError(f"{file} says {number + colon + word!r}")
    return word.strip()


def _is_down_below(port: Path, netdevs: list[Path]) -> bool:
    """Tell whether the interfaces of an Ethernet port have no link; the driver of EFA says ACTIVE all the same."""
    if not netdevs or _read_text(port / "link_layer") == "InfiniBand":  # IPoIB may be down while InfiniBand works
        return False
    return all(_read_text(netdev / "operstate") in ("down", "lowerlayerdown") for netdev in netdevs)


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return None


def _read_speed(file: Path) -> int | None:
    """Return the rate of `400 Gb/sec (4X NDR)` in Mb/s."""
    number, _, unit = (_read_text(file) or "").partition(" ")
    try:
        speed_mbps = round(float(number) * 1000)
    except (ValueError, OverflowError):  # no number, or NaN and infinity
        return None
    return speed_mbps if unit.startswith("Gb/sec") and 0 < speed_mbps < 1 << 32 else None


def _read_counters(folders: Iterable[Path]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return all counters of the folders, and the names of those that cannot be read; a later folder wins."""
    counters, broken = {}, set()
    for folder in folders:
        with suppress(OSError):  # not every driver has each folder
            for name in sorted(set(os.listdir(folder)) - _SETTINGS):
                count = _read_count(f"{folder}/{name}")
                if count is None:
                    broken.add(name)
                else:
                    counters[name] = count
    return counters, tuple(sorted(broken))


def _read_count(file: str) -> int | None:
    """Return a counter; a host has hundreds of them a second, and Path and text would double the cost of a read."""
    try:
        with open(file, "rb", buffering=0) as counter:
            value = int(counter.read(64))
    except (OSError, ValueError):
        return None
    return value if 0 <= value < 1 << 64 else None


_log = structlog.get_logger("rdma_netlink")

# rdma/rdma_netlink.h: commands of the client "device", which stands in the upper bits of a message's type
_CLIENT_DEVICES = 5 << 10
_GET_DEVICES, _GET_QUEUE_PAIRS = _CLIENT_DEVICES + 1, _CLIENT_DEVICES + 10
_DEVICE_INDEX, _DEVICE_NAME, _PORT = 1, 2, 3
_QUEUE_PAIRS, _LQPN, _RQPN, _TYPE, _STATE, _PID, _SUBTYPE = 19, 21, 22, 26, 27, 28, 98

# enum ib_qp_state and ib_qp_type of rdma/ib_verbs.h, as `rdma resource` names them
_STATES = dict(enumerate(("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")))
_TYPES = {
    0: "SMI",
    1: "GSI",
    2: "RC",
    3: "UC",
    4: "UD",
    8: "RAW_PACKET",
    9: "XRC_INI",
    10: "XRC_TGT",
    255: "DRIVER",
}

MOST_QUEUE_PAIRS = 65_536  # of all devices; a host of eight GPUs in a job of 10,000 has some thousand


@dataclass(frozen=True, slots=True)
class QueuePair:
    """A queue pair; None is what the kernel does not say."""

    device: str  # mlx5_0
    port: int  # 0 until it is bound to one
    lqpn: int
    rqpn: int | None  # only types with one peer have it (RC, UC)
    pid: int | None  # of the process that made it; None where the kernel did
    state: str  # RESET, INIT, RTR, RTS, SQD, SQE or ERR
    type: str  # RC, UC, UD and others; a driver's own with its name, as in DRIVER/DCI


def list_queue_pairs() -> list[QueuePair]:
    """Return the queue pairs of all devices; raise NotPresent where the kernel has no RDMA or lists none of it."""
    try:
        rdma = NetlinkSocket(NETLINK_RDMA)
    except OSError as error:
        raise NotPresent(f"this kernel has no RDMA netlink: {error.strerror or error}") from None
    with closing(rdma):
        try:
            return _list_all(rdma)
        except OSError as error:
            raise NotPresent(f"the kernel does not list RDMA devices: {error.strerror or error}") from None


def decode_device(payload: bytes) -> tuple[int, str] | None:
    """Return index and name of a device, or None for anything else."""
    fields = attributes_of(payload)
    index, name = to_number(fields.get(_DEVICE_INDEX)), to_text(fields.get(_DEVICE_NAME))
    return None if index is None or not name else (index, name)


def decode_queue_pairs(payload: bytes) -> list[QueuePair]:
    """Return the queue pairs of a message; entries without a number, and whatever is no such message, give none."""
    fields = attributes_of(payload)
    device = to_text(fields.get(_DEVICE_NAME))
    entries = (entry for _, entry in walk_attributes(fields.get(_QUEUE_PAIRS, b"")))
    return [pair for entry in entries if device and (pair := _decode_entry(device, attributes_of(entry)))]


def _list_all(rdma: NetlinkSocket) -> list[QueuePair]:
    devices = [device for payload in _payloads(rdma, _GET_DEVICES, b"") if (device := decode_device(payload))]
    pairs: list[QueuePair] = []
    for index, name in devices:
        body = pack_attribute(_DEVICE_INDEX, struct.pack("=I", index))
        try:
            for payload in _payloads(rdma, _GET_QUEUE_PAIRS, body):
                pairs += decode_queue_pairs(payload)[: MOST_QUEUE_PAIRS - len(pairs)]
        except OSError as error:  # it has just gone, or its driver refuses: the others still count
            _log.debug("queue pairs of a device cannot be listed", device=name, error=error.strerror)
    return pairs


def _payloads(rdma: NetlinkSocket, kind: int, body: bytes) -> Iterator[bytes]:
    return (payload for datagram in rdma.dump(kind, body) for found, payload in datagram.payloads() if found == kind)


def _decode_entry(device: str, fields: dict[int, bytes]) -> QueuePair | None:
    lqpn = to_number(fields.get(_LQPN))
    if lqpn is None:
        return None
    subtype = to_text(fields.get(_SUBTYPE))
    return QueuePair(
        device=device,
        port=to_number(fields.get(_PORT)) or 0,
        lqpn=lqpn,
        rqpn=to_number(fields.get(_RQPN)),
        pid=to_number(fields.get(_PID)),
        state=_name_of(fields.get(_STATE), _STATES, "state"),
        type=_name_of(fields.get(_TYPE), _TYPES, "type") + (f"/{subtype}" if subtype else ""),
    )


def _name_of(value: bytes | None, names: dict[int, str], what: str) -> str:
    number = to_number(value)
    return names.get(-1 if number is None else number, f"{what} {number}")
