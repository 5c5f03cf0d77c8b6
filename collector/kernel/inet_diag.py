"""The TCP sockets of this host with what the kernel knows of each flow: retransmissions, round trip (inet_diag).

`read_tcp_table` gives thousands of them as arrays; `list_tcp_sockets` gives each as a record.
"""

import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.kernel.netlink import NETLINK_SOCK_DIAG, Datagram, NetlinkSocket
from lockstep.errors import NotPresent

# linux/inet_diag.h, linux/sock_diag.h, and enum tcp_state of net/tcp_states.h
_BY_FAMILY = 20
_INFO = 2  # the attribute with struct tcp_info
ESTABLISHED = 1
SENDING_STATES = (1, 2, 4, 5, 8, 9, 11)  # all in which data may still be on its way; not listening, not over
_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states; every address

_BATCH = 16  # datagrams decoded at once: some thousand sockets, and 2 MB for the places of their words
MOST_SOCKETS = 65_536  # of a table: 14 MB; a training host has some thousand

# struct inet_diag_msg
_MESSAGE = np.dtype(
    [
        ("family", "u1"),
        ("state", "u1"),
        ("timer", "u1"),
        ("retrans", "u1"),
        ("lport", ">u2"),
        ("rport", ">u2"),
        ("local", "V16"),
        ("remote", "V16"),
        ("interface", "u4"),
        ("cookie", "u8"),
        ("expires", "u4"),
        ("rqueue", "u4"),
        ("wqueue", "u4"),
        ("uid", "u4"),
        ("inode", "u4"),
    ]
)
# Where struct tcp_info of linux/tcp.h has what we want; older kernels give fewer bytes of it.
_INFO_BYTES = 216  # up to the last of these
_INFO_WORDS = np.arange(_INFO_BYTES // 4)
_MESSAGE_WORDS = np.arange(_MESSAGE.itemsize // 4)
_INFO_FIELDS = {
    "unacked": ("u4", 24),
    "lost": ("u4", 32),
    "last_data_sent_ms": ("u4", 44),
    "rtt_us": ("u4", 68),
    "rttvar_us": ("u4", 72),
    "retrans_total": ("u4", 100),
    "min_rtt_us": ("u4", 148),
    "delivery_rate": ("u8", 160),  # bytes a second
    "busy_us": ("u8", 168),
    "bytes_sent": ("u8", 200),
    "bytes_retrans": ("u8", 208),
}
_TCP_INFO = np.dtype(
    {
        "names": list(_INFO_FIELDS),
        "formats": [kind for kind, _ in _INFO_FIELDS.values()],
        "offsets": [at for _, at in _INFO_FIELDS.values()],
        "itemsize": _INFO_BYTES,
    }
)
MAPPED = bytes(10) + b"\xff\xff"  # before the four bytes of an IPv4 address in one of IPv6
_NO_RTT = 0xFFFF_FFFF  # the kernel's word for a shortest round trip not measured yet


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """A TCP socket; None is what the kernel does not say."""

    inode: int
    uid: int
    state: int
    interface: int  # index of the interface it is bound to, 0 where it is bound to none
    local: str
    lport: int
    remote: str
    rport: int
    cookie: int  # never given twice until the next boot
    retrans_total: int | None  # segments sent again
    rtt_us: int | None  # smoothed round trip
    rttvar_us: int | None
    min_rtt_us: int | None
    delivery_rate_bps: int | None  # bits a second
    lost: int | None  # segments thought lost and not yet repaired
    unacked: int | None  # segments on their way
    bytes_sent: int | None
    bytes_retrans: int | None
    busy_us: int | None  # with something to send


@dataclass(frozen=True)
class TcpTable:
    """Many sockets as arrays, row for row the same socket; a column that no kernel field fills has zeros."""

    socket: NDArray[Any]  # of _MESSAGE: family, state, lport, rport, local, remote, interface, cookie, uid, inode
    info: NDArray[Any]  # of _TCP_INFO
    info_bytes: NDArray[np.int64]  # how much of tcp_info the kernel gave
    is_cut: bool = False  # there are more sockets than MOST_SOCKETS

    def __len__(self) -> int:
        return len(self.socket)

    def knows(self, field: str) -> NDArray[np.bool_]:
        """Return for each socket whether the kernel gave this field of tcp_info."""
        kind, at = _INFO_FIELDS[field]
        known = self.info_bytes >= at + np.dtype(kind).itemsize
        if field == "min_rtt_us":
            known &= self.info["min_rtt_us"] != _NO_RTT
        if field in ("rtt_us", "rttvar_us"):
            known &= self.info["rtt_us"] > 0  # nothing was measured yet
        return known


def list_tcp_sockets(namespace_fd: int | None = None, states: tuple[int, ...] = (ESTABLISHED,)) -> list[TcpSocket]:
    """Return the sockets of IPv4 and IPv6 in these states; raise NotPresent where the kernel does not list them.

    `namespace_fd` is an open /proc/PID/ns/net; without it the sockets are those of this process's namespace.
    """
    return records_of(read_tcp_table(namespace_fd, states))


def read_tcp_table(namespace_fd: int | None = None, states: tuple[int, ...] = (ESTABLISHED,)) -> TcpTable:
    """Return the sockets as arrays; raise NotPresent where the kernel does not list them."""
    families = (socket.AF_INET, socket.AF_INET6)
    try:
        return _joined([_read_family(family, namespace_fd, states) for family in families])
    except OSError as error:
        raise NotPresent(f"the kernel does not list TCP sockets: {error.strerror or error}") from None


def decode_sockets(datagram: Datagram) -> TcpTable:
    """Return the sockets of a datagram; messages too short to be one are passed over."""
    spans = [(start, end) for _, start, end in datagram.messages if end - start >= _MESSAGE.itemsize]
    if not spans:
        return _joined([])
    # In words, because netlink aligns all to four bytes; with room, so that the last tcp_info can be taken whole.
    words = np.frombuffer(datagram.data + bytes(_INFO_BYTES + -len(datagram.data) % 4), np.uint32)
    starts, ends = np.array(spans, np.int64).T // 4
    info_at, info_bytes = _find_info(words, starts, ends)
    info = words[info_at[:, None] + _INFO_WORDS]
    info[info_bytes[:, None] < 4 * (_INFO_WORDS + 1)] = 0
    messages = words[starts[:, None] + _MESSAGE_WORDS]
    return TcpTable(messages.view(_MESSAGE)[:, 0], info.view(_TCP_INFO)[:, 0], info_bytes)


def records_of(table: TcpTable) -> list[TcpSocket]:
    columns = [table.socket[name].tolist() for name in ("inode", "uid", "state", "interface")]
    columns += [_addresses(table, "local"), table.socket["lport"].tolist()]
    columns += [_addresses(table, "remote"), table.socket["rport"].tolist(), table.socket["cookie"].tolist()]
    columns += [_known_values(table, field) for field in _RECORD_FIELDS]
    return [TcpSocket(*row) for row in zip(*columns, strict=True)]


# In the order of TcpSocket.
_RECORD_FIELDS = (
    "retrans_total",
    "rtt_us",
    "rttvar_us",
    "min_rtt_us",
    "delivery_rate",
    "lost",
    "unacked",
    "bytes_sent",
    "bytes_retrans",
    "busy_us",
)


def _addresses(table: TcpTable, name: str) -> list[str]:
    """Return addresses as text, IPv4 as such also in sockets of IPv6 (::ffff:10.0.0.1 is 10.0.0.1)."""
    texts: dict[tuple[int, bytes], str] = {}  # a host has few, and its sockets many
    rows = zip(table.socket["family"].tolist(), table.socket[name].tolist(), strict=True)
    return [texts.get(row) or texts.setdefault(row, _text(*row)) for row in rows]


def _text(family: int, address: bytes) -> str:
    return address_text(address) if family == socket.AF_INET6 else socket.inet_ntoa(address[:4])


def address_text(address: bytes) -> str:
    """Return an address of 16 bytes as text, a mapped one as IPv4."""
    return socket.inet_ntoa(address[12:]) if address[:12] == MAPPED else socket.inet_ntop(socket.AF_INET6, address)


def _known_values(table: TcpTable, field: str) -> list[int | None]:
    unit = 8 if field == "delivery_rate" else 1
    values = zip(table.info[field].tolist(), table.knows(field).tolist(), strict=True)
    return [value * unit if is_known else None for value, is_known in values]


def _read_family(family: int, namespace_fd: int | None, states: tuple[int, ...]) -> TcpTable:
    """Return the sockets of one family, from a socket of its own: a list that is not read to its end blocks it."""
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << _INFO - 1, sum(1 << state for state in states))
    blocks: list[TcpTable] = []
    with closing(NetlinkSocket(NETLINK_SOCK_DIAG, namespace_fd=namespace_fd)) as diag:
        for datagram in _in_batches(diag.dump(_BY_FAMILY, body)):
            blocks.append(decode_sockets(datagram))
            if sum(map(len, blocks)) >= MOST_SOCKETS // 2:
                return replace(_joined(blocks), is_cut=True)
    return _joined(blocks)


def _in_batches(datagrams: Iterable[Datagram]) -> Iterator[Datagram]:
    """Yield datagrams joined to larger ones: arrays are decoded in the same time for many rows as for a few."""
    left = iter(datagrams)
    while batch := list(islice(left, _BATCH)):
        yield _join_datagrams(batch)


def _join_datagrams(datagrams: list[Datagram]) -> Datagram:
    ends = accumulate(len(datagram.data) for datagram in datagrams)
    begins = [end - len(datagram.data) for end, datagram in zip(ends, datagrams, strict=True)]
    messages = [
        (kind, begin + start, begin + end)
        for begin, datagram in zip(begins, datagrams, strict=True)
        for kind, start, end in datagram.messages
    ]
    return Datagram(b"".join(datagram.data for datagram in datagrams), messages)


def _find_info(
    words: NDArray[np.uint32], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the word where the tcp_info of each message begins, and its bytes; (0, 0) where a message has none."""
    at, found_at, length = starts + len(_MESSAGE_WORDS), np.zeros_like(starts), np.zeros_like(starts)
    going = at < ends
    while going.any():
        head = words[np.where(going, at, 0)].view(np.uint16).reshape(-1, 2).astype(np.int64)
        size, kind = head[:, 0], head[:, 1]
        following = at + (size + 3) // 4
        going &= (size >= 4) & (following <= ends)
        here = going & (kind == _INFO)
        found_at[here], length[here] = at[here] + 1, np.minimum(size[here] - 4, _INFO_BYTES)
        at = following
        going &= ~here & (at < ends)
    return found_at, length


_EMPTY = (np.empty(0, _MESSAGE), np.empty(0, _TCP_INFO), np.empty(0, np.int64))


def _joined(blocks: list[TcpTable]) -> TcpTable:
    if not blocks:
        return TcpTable(*_EMPTY)
    return TcpTable(
        np.concatenate([block.socket for block in blocks]),
        np.concatenate([block.info for block in blocks]),
        np.concatenate([block.info_bytes for block in blocks]),
        any(block.is_cut for block in blocks),
    )
