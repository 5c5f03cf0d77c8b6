"""Sends a batch of probe packets through raw sockets and waits for what comes back, a bounded time.

The receiving sockets live as long as one batch: a raw TCP socket is shown a copy of every segment of the host, which
costs a job on sockets something, so it is open for milliseconds and its filter lets only resets through.
"""

import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from collector.kernel.netlink import attach_filter
from collector.probes.packets import Answer, Arrival, Batch, Shot, build_packets, read_icmp, read_reset
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import NotPresent

# Of <asm-generic/socket.h>, <linux/icmp.h> and <linux/in.h>; Python's socket does not name them.
SO_TIMESTAMPNS, _SOL_RAW, _ICMP_FILTER = 35, 255, 1
_BUFFER_BYTES = 4 << 20  # room for the answers to a batch of some thousand packets
_LONGEST_ANSWER = 1024  # all that we read of one is in its first hundred bytes
_DRAIN_EVERY = 16  # packets sent between two looks at the answers
_WANTED_ICMP = 1 << 3 | 1 << 11  # unreachable and time exceeded
# Classic BPF on the IP packet: X = header length; A = TCP flags; a reset passes whole, anything else not at all.
_ONLY_RESETS = ((0xB1, 0, 0, 0), (0x50, 0, 0, 13), (0x45, 0, 1, 4), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0))


class RawExchange:
    """Sends shots and returns their answers; one per network namespace, used by one thread."""

    def __init__(self, clock: Clock, timeout_s: float = 0.5) -> None:
        self._clock, self._timeout_ns = clock, int(timeout_s * NS_PER_S)
        self._senders: dict[tuple[str, str], socket.socket] = {}  # by NIC and its address
        self.fault = ""  # why packets could not be sent in the last batch

    def check(self) -> None:
        """Raise NotPresent where this process may not open raw sockets."""
        try:
            socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).close()
        except OSError as error:
            raise NotPresent(f"probes need raw sockets (capability CAP_NET_RAW): {error}") from error

    def run(self, shots: Sequence[Shot]) -> list[Arrival | None]:
        """Return what became of each shot, None for those that the kernel did not take."""
        self.fault = ""
        packets, batch = build_packets(shots), Batch(shots, self._timeout_ns)
        with ExitStack() as stack:
            answers = _Answers(stack, self._clock)
            for number, shot in enumerate(shots):
                self._send(batch, number, shot, packets[number])
                if number % _DRAIN_EVERY == _DRAIN_EVERY - 1:
                    batch.take(answers.read())
            self._wait(answers, batch)
        return batch.arrivals

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()

    def _send(self, batch: Batch, number: int, shot: Shot, packet: bytes) -> None:
        try:
            sender = self._sender(shot.flow.src_nic, shot.source)
            batch.note_sent(number, self._clock.now_ns())
            sender.sendto(packet, (shot.target, 0))
        except OSError as error:
            self.fault = f"{shot.flow.src_nic}: {error}"
            batch.note_unsent(number)

    def _sender(self, nic: str, source: str) -> socket.socket:
        """Return the socket that sends through a NIC; its address is bound too, for routes that depend on that."""
        if (nic, source) not in self._senders:
            sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            try:
                interface = find_interface(nic, Path("/"))
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
                sender.bind((source, 0))
            except OSError:
                sender.close()
                raise
            sender.setblocking(False)
            self._senders[nic, source] = sender
        return self._senders[nic, source]

    def _wait(self, answers: "_Answers", batch: Batch) -> None:
        deadline_ns = self._clock.monotonic_ns() + self._timeout_ns
        while not batch.is_complete and (left_ns := deadline_ns - self._clock.monotonic_ns()) > 0:
            if answers.is_ready(left_ns / NS_PER_S):
                batch.take(answers.read())
        batch.take(answers.read())  # what came in time while a busy host did not let us run


class _Answers:
    """The two sockets on which answers come in, each packet with the kernel's time of arrival."""

    def __init__(self, stack: ExitStack, clock: Clock) -> None:
        self._clock = clock
        self._icmp = _open_receiver(stack, socket.IPPROTO_ICMP)
        self._icmp.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", ~_WANTED_ICMP & 0xFFFFFFFF))
        self._tcp = _open_receiver(stack, socket.IPPROTO_TCP)
        attach_filter(self._tcp, _ONLY_RESETS)
        self._either = select.poll()  # select() refuses descriptors above 1,024, which a busy agent may have
        for receiver in (self._icmp, self._tcp):
            self._either.register(receiver, select.POLLIN)

    def is_ready(self, timeout_s: float) -> bool:
        return bool(self._either.poll(timeout_s * 1000))

    def read(self, most: int = 4096) -> list[tuple[Answer, int]]:
        """Return what has come in; not more than `most` packets a socket, whoever floods us."""
        found = []
        for receiver, read in ((self._icmp, read_icmp), (self._tcp, read_reset)):
            for packet, at_ns in islice(receive_stamped(receiver, self._clock), most):
                if answer := read(packet):
                    found.append((answer, at_ns))
        return found


def find_interface(nic: str, root: Path) -> str:
    """Return the network interface of a NIC that the topology names: itself, or that of an RDMA device."""
    if not (root / "sys/class/net" / nic).exists():
        found = sorted((root / "sys/class/infiniband" / nic.partition(":")[0] / "device/net").glob("*"))
        if found:
            return found[0].name
    return nic


def receive_stamped(receiver: socket.socket, clock: Clock) -> Iterator[tuple[bytes, int]]:
    """Yield the packets that wait in a socket that does not block, with the kernel's time of arrival."""
    while True:
        try:
            packet, notes, _, _ = receiver.recvmsg(_LONGEST_ANSWER, 64)
        except OSError:  # nothing there, or an error of an earlier packet, which is no news here
            return
        yield packet, arrival_ns(notes) or clock.now_ns()


def arrival_ns(notes: Sequence[tuple[int, int, bytes]]) -> int:
    """Return when the kernel took a packet in, from the notes of recvmsg; 0 where it does not say."""
    for level, kind, data in notes:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= 16:
            seconds, nanoseconds = struct.unpack_from("=qq", data)
            return int(seconds * NS_PER_S + nanoseconds)
    return 0


def _open_receiver(stack: ExitStack, protocol: int) -> socket.socket:
    receiver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    receiver.setblocking(False)
    return receiver
