"""Questions to the kernel over netlink, answered as raw bytes: dumps, single answers, notifications, attributes.

Ours rather than pyroute2's, which costs the collector 11 MB and 0.13 s to import and 25 times as long to decode a
socket; here a message stays bytes until somebody wants a field of it.
"""

import ctypes
import errno
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

# linux/netlink.h
NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_CONNECTOR, NETLINK_GENERIC, NETLINK_RDMA = 0, 4, 11, 16, 20
_NOOP, _ERROR, _DONE = 1, 2, 3
_REQUEST, _DUMP, _DUMP_INTERRUPTED = 0x1, 0x300, 0x10
_HEADER = struct.Struct("=IHHII")  # length, type, flags, number of the request, port
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_TYPE_BITS = 0x3FFF  # the two bits above say "nested" and "network order"

_ANSWER_S = 2.0  # the kernel answers at once; a driver that holds its lock may take a while
_DATAGRAM_BYTES = 1 << 16  # the kernel fills at most 32 KiB of a dump at once
_MOST_DATAGRAMS = 20_000  # of one dump; 640 MiB at most pass through, none of them kept here
_NOTICE_BYTES = 1 << 20  # waiting notifications, about 500 changes of links; the counters of carriers see the rest
_MOST_NOTICES = 4_096  # read at once, so that a storm of changes cannot hold us
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33  # asm-generic/socket.h; Python does not name them
_CLONE_NEWNET = 0x4000_0000


Filter = Sequence[tuple[int, int, int, int]]  # classic BPF, a step a line


@dataclass(frozen=True, slots=True)
class Datagram:
    """Messages that came together: the bytes, and type, start and end of the payload of each."""

    data: bytes
    messages: list[tuple[int, int, int]]

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        return ((kind, self.data[start:end]) for kind, start, end in self.messages)


class NetlinkSocket:
    """An open netlink socket; `groups` are the multicast groups it hears, `namespace_fd` a network namespace."""

    def __init__(
        self, protocol: int, groups: tuple[int, ...] = (), namespace_fd: int | None = None, only: Filter = ()
    ) -> None:
        """`only` has the kernel keep all other messages away from us."""
        self.overruns = 0  # how often notifications were lost because there were too many between two reads
        self.was_interrupted = False  # what the last dump listed changed meanwhile: some may be missing or double
        self._number = 0
        self._socket = _open(protocol) if namespace_fd is None else _open_in(namespace_fd, protocol)
        try:
            if only:
                attach_filter(self._socket, only)
            self._socket.bind((0, sum(1 << group - 1 for group in groups)))
            if groups:
                with suppress(PermissionError):  # then it gets as much as everybody may have
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NOTICE_BYTES)
                    self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _NOTICE_BYTES)
        except OSError:
            self._socket.close()
            raise

    def dump(self, kind: int, body: bytes) -> Iterator[Datagram]:
        """Ask for all there is of a kind; raise OSError with the kernel's error when it refuses, or after a while."""
        self.was_interrupted = False
        self._send(kind, _DUMP, body)
        for _ in range(_MOST_DATAGRAMS):
            datagram, is_over = self._answer()
            yield datagram
            if is_over:
                return
        raise OSError(errno.EMSGSIZE, "a dump that does not end")

    def ask(self, kind: int, body: bytes) -> Datagram:
        """Ask for one thing; raise OSError with the kernel's error when it refuses, or after a while."""
        self._send(kind, 0, body)
        while True:
            datagram, is_over = self._answer()
            if datagram.messages or is_over:
                return datagram

    def notices(self) -> Iterator[Datagram]:
        """Yield the notifications that wait; never blocks."""
        self._socket.settimeout(0)
        for _ in range(_MOST_NOTICES):
            try:
                data, sender = self._socket.recvfrom(_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.overruns += 1
                continue
            if sender[0] == 0:  # the kernel; any process may send to us
                yield Datagram(data, [(kind, start, end) for kind, _, _, start, end in walk_messages(data)])

    def send(self, message: bytes) -> None:
        self._socket.send(message)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._number += 1
        self._socket.settimeout(_ANSWER_S)
        header = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, self._number, 0)
        self._socket.sendto(header + body, (0, 0))

    def _answer(self) -> tuple[Datagram, bool]:
        """Return the messages of the next datagram that answer the last question, and whether they are all."""
        data, sender = self._socket.recvfrom(_DATAGRAM_BYTES)
        messages: list[tuple[int, int, int]] = []
        for kind, flags, number, start, end in walk_messages(data):
            if number != self._number or sender[0] != 0:  # of a question that was given up, or not the kernel's
                continue
            self.was_interrupted |= bool(flags & _DUMP_INTERRUPTED)
            if kind in (_ERROR, _DONE):
                _raise_refusal(data[start:end])
                return Datagram(data, messages), True
            if kind != _NOOP:
                messages.append((kind, start, end))
        return Datagram(data, messages), False


def walk_messages(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield type, flags, number and the place of the payload of each message; stop at the first that is broken."""
    at, size = 0, len(data)
    while at + _HEADER.size <= size:
        length, kind, flags, number, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > size:
            return
        yield kind, flags, number, at + _HEADER.size, at + length
        at += length + 3 & ~3


def walk_attributes(payload: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield type and value of each attribute from `at` on; stop at the first that is broken."""
    size = len(payload)
    while at + _ATTRIBUTE.size <= size:
        length, kind = _ATTRIBUTE.unpack_from(payload, at)
        if length < _ATTRIBUTE.size or at + length > size:
            return
        yield kind & _TYPE_BITS, payload[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3


def attributes_of(payload: bytes, at: int = 0) -> dict[int, bytes]:
    """Return the attributes by type; of several of one type the last."""
    return dict(walk_attributes(payload, at))


def pack_attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def to_number(value: bytes | None) -> int | None:
    """Return an integer of one, two, four or eight bytes; None where there is none."""
    return int.from_bytes(value, sys.byteorder) if value and len(value) in (1, 2, 4, 8) else None


def to_text(value: bytes | None) -> str:
    """Return a name without the zero byte at its end; nothing where there is none."""
    return (value or b"").split(b"\0", 1)[0].decode(errors="replace")


def attach_filter(receiver: socket.socket, program: Filter) -> None:
    """Have the kernel show a socket only what a program of classic BPF lets through."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    described = struct.pack("@HP", len(program), ctypes.addressof(code))  # struct sock_fprog
    receiver.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def _open(protocol: int) -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)


def _raise_refusal(payload: bytes) -> None:
    refusal = -struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
    if refusal > 0:
        raise OSError(refusal, os.strerror(refusal))


def _open_in(namespace_fd: int, protocol: int) -> socket.socket:
    """Return a socket in a network namespace; a thread that ends enters it, and ours stays where it is."""
    made: list[socket.socket] = []
    failures: list[OSError] = []

    def enter() -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).setns(namespace_fd, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"no such network namespace: {os.strerror(ctypes.get_errno())}")
            made.append(_open(protocol))
        except OSError as failure:
            failures.append(failure)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return made[0]
