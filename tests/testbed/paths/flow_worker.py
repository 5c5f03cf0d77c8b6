"""A host's senders and receivers, in one process that knows nothing of plans: it connects and sends.

Commands come as JSON lines on standard input:
- {"open": [[NAME, ADDRESS, PORT], ...]}: flows that send all the time; again: anew, what is lost is sent again.
- {"count": true}: answered by a line with the bytes that were acknowledged so far.
- {"round": BYTES}: from now on each flow sends only that much a round; `done` is said when all is acknowledged.
- {"end": true}: all flows are over.

Arguments: the size of send buffers, the address and the ports to listen on. Only the standard library is
imported, so that many of these start at once.
"""

import json
import os
import selectors
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any

_CHUNK = bytes(1 << 16)
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: a reset and no TIME_WAIT, so that ports are free again
_TCP_INFO_BYTES, _ACKED_AT = 256, 120  # tcpi_bytes_acked of linux/tcp.h
_COMMANDS = 0  # standard input
_TICK_S = 0.005  # between two looks whether a round is done


class Worker:
    """All sockets of one host; single-threaded."""

    def __init__(self, send_buffer: int, address: str, ports: list[int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._flows: dict[str, socket.socket] = {}
        self._names: dict[socket.socket, str] = {}
        self._before: dict[str, int] = {}  # acknowledged by sockets that a flow had earlier
        self._sent: dict[str, int] = {}  # by all its sockets; what is lost with one is taken off again
        self._targets: dict[str, int] = {}  # up to where a flow may send; unlimited where there is none
        self._is_round = False
        self._rest = b""
        self._send_buffer = send_buffer
        self._room = bytearray(1 << 18)
        for port in ports:
            server = socket.create_server((address, port), backlog=256)
            server.setblocking(False)
            self._selector.register(server, selectors.EVENT_READ, self._accept)
        self._selector.register(_COMMANDS, selectors.EVENT_READ, self._obey)

    def run(self) -> None:
        say("ready")
        while True:
            for key, _ in self._selector.select(_TICK_S if self._is_round else None):
                if key.fileobj == _COMMANDS or key.fileobj.fileno() >= 0:  # type: ignore[union-attr]  # a socket
                    key.data(key.fileobj)
            if self._is_round and all(self._acked(name) >= target for name, target in self._targets.items()):
                self._is_round = False
                say("done")

    def _accept(self, server: socket.socket) -> None:
        with suppress(OSError):
            arrived, _ = server.accept()
            arrived.setblocking(False)
            self._selector.register(arrived, selectors.EVENT_READ, self._drain)

    def _drain(self, arrived: socket.socket) -> None:
        try:
            is_over = arrived.recv_into(self._room) == 0
        except BlockingIOError:
            return
        except OSError:
            is_over = True
        if is_over:
            self._forget(arrived)

    def _send(self, flow: socket.socket) -> None:
        name = self._names[flow]
        room = self._targets.get(name, self._sent[name] + len(_CHUNK)) - self._sent[name]
        if room <= 0:
            self._selector.unregister(flow)  # until the next round
            return
        try:
            self._sent[name] += flow.send(_CHUNK[:room])
        except BlockingIOError:
            return
        except OSError:  # the other end is gone; the flow counts nothing from now on
            self._selector.unregister(flow)

    def _obey(self, _: int) -> None:
        arrived = os.read(_COMMANDS, 1 << 16)
        if not arrived:
            raise SystemExit
        *lines, self._rest = (self._rest + arrived).split(b"\n")
        for line in lines:
            self._do(json.loads(line))

    def _do(self, command: dict[str, Any]) -> None:
        if "end" in command:
            self._end()
        for name, _, _ in command.get("open", ()):
            self._close(name)
        for name, address, port in command.get("open", ()):
            self._open(name, address, port)
        if "round" in command:
            self._begin_round(command["round"])
        if "count" in command:
            say(json.dumps(self._count()))

    def _begin_round(self, length: int) -> None:
        self._is_round = True
        for name, flow in self._flows.items():
            self._targets[name] = self._targets.get(name, self._sent[name]) + length
            if flow not in self._selector.get_map():
                self._selector.register(flow, selectors.EVENT_WRITE, self._send)

    def _open(self, name: str, address: str, port: int) -> None:
        flow = socket.socket()
        flow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)
        flow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        flow.setblocking(False)
        flow.connect_ex((address, port))
        self._flows[name], self._names[flow] = flow, name
        self._sent[name] = self._before.get(name, 0)
        self._selector.register(flow, selectors.EVENT_WRITE, self._send)

    def _close(self, name: str) -> None:
        if name in self._flows:
            self._before[name] = self._acked(name)
            flow = self._flows.pop(name)
            del self._names[flow]
            self._forget(flow)

    def _end(self) -> None:
        """End all flows; the next ones begin anew."""
        for name in list(self._flows):
            self._close(name)
        self._before, self._targets, self._is_round = {}, {}, False

    def _acked(self, name: str) -> int:
        return self._before.get(name, 0) + acked_by(self._flows[name])

    def _forget(self, peer: socket.socket) -> None:
        with suppress(KeyError):
            self._selector.unregister(peer)
        peer.close()

    def _count(self) -> dict[str, Any]:
        return {
            "at_ns": time.monotonic_ns(),
            "acked": {name: self._acked(name) for name in self._flows},
            "sports": {name: flow.getsockname()[1] for name, flow in self._flows.items() if is_connected(flow)},
        }


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def acked_by(flow: socket.socket) -> int:
    """Return how many bytes the other end has acknowledged."""
    info = flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return max(0, int(struct.unpack_from("=Q", info, _ACKED_AT)[0]) - 1)  # the SYN counts as one


def is_connected(flow: socket.socket) -> bool:
    try:
        flow.getpeername()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        Worker(int(sys.argv[1]), sys.argv[2], [int(port) for port in sys.argv[3:]]).run()
