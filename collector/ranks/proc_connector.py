"""Exits of processes as the kernel reports them: by whom, when, and with which code or signal (proc connector).

The kernel sends every fork and exec of the host too; a filter in the kernel keeps them away from us. It tells only
processes in the host's own namespaces of processes, users and networks, and before Linux 6.6 only root.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.errors import NotPresent

# linux/netlink.h, linux/connector.h and linux/cn_proc.h
_NETLINK_CONNECTOR = 11
_CN_IDX_PROC, _CN_VAL_PROC = 1, 1
_LISTEN, _IGNORE = 1, 2
_ACKNOWLEDGED, _EXITED = 0, 0x8000_0000
_NLMSG_DONE = 3
_NETLINK = struct.Struct("=IHHII")  # length, type, flags, number, port
_CONNECTOR = struct.Struct("=IIIIHH")  # index, value, number, acknowledges, length, flags
_EVENT = struct.Struct("=IIQ")  # what, processor, nanoseconds of the monotonic clock
_EXIT = struct.Struct("=iiII")  # thread, process, wait status, signal to the parent
_EVENT_AT = _NETLINK.size + _CONNECTOR.size
_EXIT_AT = _EVENT_AT + _EVENT.size

_BUFFER_BYTES = 1 << 20  # for the exits of one period; each message counts with 768 bytes
_MOST_MESSAGES = 10_000  # in one read, so that a host that does nothing but exit cannot hold us
_ANSWER_MS = 1_000
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33  # asm-generic/socket.h; Python does not name them


@dataclass(frozen=True)
class Exit:
    """The end of a process, by the kernel's monotonic clock."""

    pid: int
    monotonic_ns: int
    status: int  # as wait() gives it

    @property
    def exit_code(self) -> int | None:
        return None if self.signal else (self.status >> 8) & 0xFF

    @property
    def signal(self) -> int | None:
        return self.status & 0x7F or None

    @property
    def dumped_core(self) -> bool:
        return bool(self.status & 0x80)


class ProcConnector:
    """An open subscription to all exits on this host; NotPresent where the kernel does not grant one."""

    def __init__(self) -> None:
        self.overruns = 0  # how often exits were lost because there were too many between two reads
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _NETLINK_CONNECTOR
            )
        except OSError as error:
            raise NotPresent(f"this kernel has no connector: {error.strerror}") from None
        try:
            self._subscribe()
        except OSError as error:
            self._socket.close()
            raise NotPresent(f"the kernel does not report exits to us: {error.strerror or error}") from None

    def read(self) -> list[Exit]:
        """Return the exits of processes since the last time, in order."""
        return [end for message in self._messages() if (end := decode_exit(message))]

    def close(self) -> None:
        """End the subscription; before Linux 6.6 the kernel would otherwise report to nobody for ever."""
        if self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):  # it has already forgotten us
                self._send(_IGNORE)
            self._socket.close()

    def _subscribe(self) -> None:
        _attach_filter(self._socket)
        _enlarge(self._socket)
        self._socket.bind((0, _CN_IDX_PROC))
        self._send(_LISTEN)
        if not self._is_granted():
            raise OSError(errno.EPERM, "no answer; it tells only the host's own namespaces")

    def _send(self, word: int) -> None:
        body = struct.pack("=I", word)
        message = _CONNECTOR.pack(_CN_IDX_PROC, _CN_VAL_PROC, 0, os.getpid(), len(body), 0) + body
        self._socket.send(_NETLINK.pack(_NETLINK.size + len(message), _NLMSG_DONE, 0, 0, 0) + message)

    def _is_granted(self) -> bool:
        """Wait for the kernel's answer; it goes to all listeners, so answers to others are passed over."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while waiting.poll(_ANSWER_MS):
            for message in self._messages():
                refusal = _decode_answer(message)
                if refusal is not None:
                    return refusal == 0
        return False

    def _messages(self) -> Iterator[bytes]:
        for _ in range(_MOST_MESSAGES):
            try:
                message, sender = self._socket.recvfrom(4096)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.overruns += 1
                continue
            if sender[0] == 0:  # the kernel; any process may send to us, and would forge exits
                yield message


def decode_exit(message: bytes) -> Exit | None:
    """Return the exit of a process that a message tells, or None for everything else, exits of threads included.

    A first thread that leaves before the others counts as its process; ranks do not do that.
    """
    if len(message) < _EXIT_AT + _EXIT.size:
        return None
    what, _, monotonic_ns = _EVENT.unpack_from(message, _EVENT_AT)
    thread, process, status, _ = _EXIT.unpack_from(message, _EXIT_AT)
    return Exit(process, monotonic_ns, status) if what == _EXITED and thread == process else None


def describe_end(exit_code: int | None, number: int | None) -> str:
    """Return how a process ended in words.

    >>> describe_end(None, 9), describe_end(3, None)
    ('was killed by SIGKILL', 'exited with code 3')
    """
    if number is None:
        return f"exited with code {exit_code}"
    known = {int(each): each.name for each in signal.Signals}
    return f"was killed by {known.get(number, f'signal {number}')}"


def _decode_answer(message: bytes) -> int | None:
    """Return the error number in the kernel's answer to our own request, 0 when it agreed."""
    if len(message) < _EXIT_AT + 4:
        return None
    # The kernel writes its own count over the number of our request, and adds one to what we acknowledged.
    acknowledged: int = _CONNECTOR.unpack_from(message, _NETLINK.size)[3]
    (what,) = struct.unpack_from("=I", message, _EVENT_AT)
    (refusal,) = struct.unpack_from("=I", message, _EXIT_AT)
    return refusal if what == _ACKNOWLEDGED and acknowledged == os.getpid() + 1 else None


def _attach_filter(connector: socket.socket) -> None:
    """Let the kernel keep everything from us but answers and the exits of whole processes."""
    load, load_x, equals, equals_x, end = 0x20, 0x07, 0x15, 0x1D, 0x06  # linux/bpf_common.h, combined
    # The filter reads words as the network orders them, and the kernel writes them in the processor's order.
    exited = socket.htonl(_EXITED)
    steps = (
        (load, 0, 0, _EVENT_AT),
        (equals, 6, 0, _ACKNOWLEDGED),  # six further down: take it
        (equals, 0, 4, exited),  # four further down: leave it
        (load, 0, 0, _EXIT_AT),
        (load_x, 0, 0, 0),
        (load, 0, 0, _EXIT_AT + 4),
        (equals_x, 1, 0, 0),
        (end, 0, 0, 0),
        (end, 0, 0, 0xFFFF_FFFF),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    connector.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _enlarge(connector: socket.socket) -> None:
    try:
        connector.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    except PermissionError:
        connector.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
