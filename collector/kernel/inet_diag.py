"""The TCP sockets of this host as the kernel knows them (inet_diag), and what the flows of each NIC suffer.

`read_tcp_table` gives thousands of them as arrays; `list_tcp_sockets` gives each as a record.
"""

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
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
_INFO_BYTES = 208  # up to the last of these
_INFO_WORDS = np.arange(_INFO_BYTES // 4)
_MESSAGE_WORDS = np.arange(_MESSAGE.itemsize // 4)
_INFO_FIELDS = {
    "unacked": ("u4", 24),
    "lost": ("u4", 32),
    "last_data_sent_ms": ("u4", 44),
    "rtt_us": ("u4", 68),
    "retrans_total": ("u4", 100),
    "min_rtt_us": ("u4", 148),
    "bytes_sent": ("u8", 200),
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
    """A TCP socket."""

    inode: int
    local: str
    lport: int
    remote: str
    rport: int
    cookie: int  # never given twice until the next boot
    bytes_sent: int  # 0 where the kernel does not say


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
        if field == "rtt_us":
            known &= self.info["rtt_us"] > 0  # nothing was measured yet
        return known


def list_tcp_sockets(namespace_fd: int | None = None) -> list[TcpSocket]:
    """Return the established sockets of IPv4 and IPv6; raise NotPresent where the kernel does not list them.

    `namespace_fd` is an open /proc/PID/ns/net; without it the sockets are those of this process's namespace.
    """
    return records_of(read_tcp_table(namespace_fd, (ESTABLISHED,)))


def read_tcp_table(namespace_fd: int | None = None, states: tuple[int, ...] = SENDING_STATES) -> TcpTable:
    """Return the sockets in these states as arrays; raise NotPresent where the kernel does not list them."""
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
    inodes, lports, rports, cookies = (table.socket[name].tolist() for name in ("inode", "lport", "rport", "cookie"))
    ends = _addresses(table, "local"), lports, _addresses(table, "remote"), rports
    sent = np.where(table.knows("bytes_sent"), table.info["bytes_sent"], 0).tolist()
    return [TcpSocket(*row) for row in zip(inodes, *ends, cookies, sent, strict=True)]


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
