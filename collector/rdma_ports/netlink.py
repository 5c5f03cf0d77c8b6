"""The RDMA queue pairs of this host: device, port, both numbers, owner, state (as in `rdma resource show qp`).

The layout is that of include/uapi/rdma/rdma_netlink.h; what the kernel puts into an entry is in fill_res_qp_entry of
drivers/infiniband/core/nldev.c. Numbers of processes are those of our own namespace of processes: in a container of
its own the kernel leaves out the queue pairs of everybody else.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import structlog

from collector.netlink import (
    NETLINK_RDMA,
    Datagram,
    NetlinkSocket,
    attributes_of,
    pack_attribute,
    to_number,
    to_text,
    walk_attributes,
)
from lockstep.errors import NotPresent

_log = structlog.get_logger("rdma_netlink")

# rdma/rdma_netlink.h: commands of the client "device", which stands in the upper bits of a message's type
_CLIENT_DEVICES = 5 << 10
_GET_DEVICES, _GET_QUEUE_PAIRS = _CLIENT_DEVICES + 1, _CLIENT_DEVICES + 10
_DEVICE_INDEX, _DEVICE_NAME, _PORT = 1, 2, 3
_QUEUE_PAIRS, _LQPN, _RQPN, _TYPE, _STATE, _PID, _SUBTYPE = 19, 21, 22, 26, 27, 28, 98

# enum ib_qp_state and ib_qp_type of rdma/ib_verbs.h, as `rdma resource` names them
_STATES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
_TYPES = {0: "SMI", 1: "GSI", 2: "RC", 3: "UC", 4: "UD", 8: "RAW_PACKET", 9: "XRC_INI", 10: "XRC_TGT", 255: "DRIVER"}

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


class Dumper(Protocol):
    """The part of a netlink socket that is used here."""

    def dump(self, kind: int, body: bytes) -> Iterator[Datagram]: ...

    def close(self) -> None: ...


def list_queue_pairs(open_socket: Callable[[], Dumper] = lambda: NetlinkSocket(NETLINK_RDMA)) -> list[QueuePair]:
    """Return the queue pairs of all devices; raise NotPresent where the kernel has no RDMA or lists none of it."""
    try:
        rdma = open_socket()
    except OSError as error:
        raise NotPresent(f"this kernel has no RDMA netlink: {error.strerror or error}") from None
    try:
        return _list_all(rdma)
    except OSError as error:
        raise NotPresent(f"the kernel does not list RDMA devices: {error.strerror or error}") from None
    finally:
        rdma.close()


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


def _list_all(rdma: Dumper) -> list[QueuePair]:
    devices = [device for payload in _payloads(rdma, _GET_DEVICES, b"") if (device := decode_device(payload))]
    pairs: list[QueuePair] = []
    for index, name in devices:
        try:
            pairs += _list_device(rdma, index, MOST_QUEUE_PAIRS - len(pairs))
        except OSError as error:  # it has just gone, or its driver refuses: the others still count
            _log.debug("queue pairs of a device cannot be listed", device=name, error=error.strerror)
    return pairs


def _list_device(rdma: Dumper, index: int, room: int) -> list[QueuePair]:
    body = pack_attribute(_DEVICE_INDEX, struct.pack("=I", index))
    pairs: list[QueuePair] = []
    for payload in _payloads(rdma, _GET_QUEUE_PAIRS, body):
        pairs += decode_queue_pairs(payload)[: room - len(pairs)]
    return pairs


def _payloads(rdma: Dumper, kind: int, body: bytes) -> Iterator[bytes]:
    return (payload for datagram in rdma.dump(kind, body) for found, payload in datagram.payloads() if found == kind)


def _decode_entry(device: str, fields: dict[int, bytes]) -> QueuePair | None:
    lqpn = to_number(fields.get(_LQPN))
    if lqpn is None:
        return None
    return QueuePair(
        device=device,
        port=to_number(fields.get(_PORT)) or 0,
        lqpn=lqpn,
        rqpn=to_number(fields.get(_RQPN)),
        pid=to_number(fields.get(_PID)),
        state=_state(to_number(fields.get(_STATE))),
        type=_type(to_number(fields.get(_TYPE)), to_text(fields.get(_SUBTYPE))),
    )


def _state(number: int | None) -> str:
    return _STATES[number] if number is not None and number < len(_STATES) else f"state {number}"


def _type(number: int | None, subtype: str) -> str:
    name = f"type {number}" if number is None else _TYPES.get(number, f"type {number}")
    return f"{name}/{subtype}" if subtype else name
