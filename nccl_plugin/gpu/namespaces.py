# ruff: noqa: T201, TID251 -- lockstep.clock is not installed where there is a GPU
"""Gives every rank a host of its own on the network: namespaces on a bridge, by rtnetlink, without `ip` and `tc`.

What comes to the bridge can be counted: which source ports the ranks' RoCE v2 packets have.

As a program, inside a namespace: `namespaces.py join eth0 PID...` | `namespaces.py address eth0 10.77.0.1` |
`namespaces.py limit eth0 BYTES_PER_S`, which waits for a line of input before it acts | `namespaces.py down eth0` |
`namespaces.py up eth0`.
"""

import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# From linux/rtnetlink.h, if_link.h and pkt_sched.h.
NEWLINK, NEWADDR, NEWQDISC = 16, 20, 36
REQUEST, ACK, REPLACE, EXCL, CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
IFLA_IFNAME, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_PID = 3, 10, 18, 19
INFO_KIND, INFO_DATA, VETH_PEER = 1, 2, 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
TCA_KIND, TCA_OPTIONS, TBF_PARMS, TBF_BURST = 1, 2, 1, 6
TC_HANDLE, TC_ROOT = 0x10000, 0xFFFFFFFF
BURST_BYTES, QUEUE_BYTES = 128 << 10, 1 << 20
ROCE_PORT, ETH_P_ALL, OUTGOING, MSG_TRUNC = 4791, 3, 4, 0x20


NETWORKS = {"eth0": "10.77.0", "mgmt0": "10.78.0"}  # what ranks talk over, and what is for everything else
HEAD = 254  # the last byte of the bridge's own address


class RankNetwork:
    """One namespace per rank with an `eth0`, joined by a bridge in a namespace of its own; all gone on exit.

    A managed one has a second network, on which the bridge has an address too: for collectors and their server.
    """

    def __init__(self, ranks: int, *, managed: bool = False) -> None:
        self.ranks = ranks
        self._networks = NETWORKS if managed else {"eth0": NETWORKS["eth0"]}
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "RankNetwork":
        try:
            self._holders = [_hold_namespace() for _ in range(self.ranks + 1)]
            for name, network in self._networks.items():
                self._inside(self.ranks, "join", name, *(str(holder.pid) for holder in self._holders[:-1]))
                self._inside(self.ranks, "address", f"br-{name}", f"{network}.{HEAD}")
                for rank in range(self.ranks):
                    self._inside(rank, "address", name, f"{network}.{rank + 1}")
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def command(self, rank: int) -> list[str]:
        """What to put before a command so that it runs on this rank's host."""
        return ["nsenter", "--net", "--target", str(self._holders[rank].pid)]

    def enter_head(self) -> None:
        """Moves this thread, and what it starts from now on, to where the bridges are."""
        with open(f"/proc/{self._holders[-1].pid}/ns/net", "rb") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")

    def cut(self, rank: int) -> None:
        """Takes the rank's host off the network that ranks talk over."""
        self._inside(rank, "down", "eth0")

    def mend(self, rank: int) -> None:
        self._inside(rank, "up", "eth0")

    def prepare_limit(self, rank: int, bytes_per_s: int) -> "subprocess.Popen[bytes]":
        """A process that slows the sending of the rank's host down to this when it is given a line of input."""
        command = self._program(rank, "limit", "eth0", str(bytes_per_s))
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _inside(self, number: int, *arguments: str) -> None:
        subprocess.run(self._program(number, *arguments), check=True, timeout=20)

    def _program(self, number: int, *arguments: str) -> list[str]:
        return [*self.command(number), sys.executable, __file__, *arguments]

    def _release(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
        self._holders = []


class RoceCapture:
    """Counts bytes of RoCE v2 by source address and port as they come to the bridge."""

    def __init__(self, network: RankNetwork) -> None:
        self.seen: Counter[tuple[str, int]] = Counter()
        with ThreadPoolExecutor(1) as inside:
            self._socket: socket.socket = inside.submit(self._open, network).result()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _open(self, network: RankNetwork) -> socket.socket:
        network.enter_head()
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        opened.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        opened.settimeout(0.3)
        return opened

    def _read(self) -> None:
        frame = bytearray(64)
        while self._socket.fileno() >= 0:
            try:
                length, _, _, source = self._socket.recvmsg_into([frame], 0, MSG_TRUNC)
            except TimeoutError:
                continue
            except OSError:
                return
            is_ours = source[2] != OUTGOING and frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_UDP
            ports = struct.unpack_from("!HH", frame, 34)
            if is_ours and source[0].startswith("eth0-") and ports[1] == ROCE_PORT:
                self.seen[socket.inet_ntoa(frame[26:30]), ports[0]] += length

    def close(self) -> dict[str, int]:
        time.sleep(0.5)
        self._socket.close()
        return {f"{address}:{port}": count for (address, port), count in sorted(self.seen.items())}


def _hold_namespace() -> subprocess.Popen[bytes]:
    """A process that sleeps in a new network namespace, once it is there."""
    ours = os.stat("/proc/self/ns/net").st_ino
    holder = subprocess.Popen(["unshare", "--net", "sleep", "3600"])
    for _ in range(500):
        if holder.poll() is None and os.stat(f"/proc/{holder.pid}/ns/net").st_ino != ours:
            return holder
        time.sleep(0.01)
    holder.kill()
    holder.wait()
    raise OSError("unshare made no network namespace")


def join_namespaces(name: str, pids: list[int]) -> None:
    """Makes a bridge here and a cable from it to an interface of that name in each process's namespace."""
    bridge = f"br-{name}"
    _make_link(bridge, _text(INFO_KIND, "bridge"))
    _set_up(bridge)
    for number, pid in enumerate(pids):
        peer = _link() + _text(IFLA_IFNAME, name) + _number(IFLA_NET_NS_PID, pid)
        cable = _text(INFO_KIND, "veth") + _attribute(INFO_DATA, _attribute(VETH_PEER, peer))
        _make_link(f"{name}-{number}", cable)
        index = socket.if_nametoindex(f"{name}-{number}")
        _ask(NEWLINK, 0, _link(index) + _number(IFLA_MASTER, socket.if_nametoindex(bridge)))
        _set_up(f"{name}-{number}")


def set_address(interface: str, address: str) -> None:
    """Gives an interface of this namespace its address in a /24, and sets it and the loopback up."""
    _set_up("lo")
    packed = socket.inet_aton(address)
    head = struct.pack("=BBBBi", socket.AF_INET, 24, 0, 0, socket.if_nametoindex(interface))
    _ask(NEWADDR, CREATE | EXCL, head + _attribute(IFA_LOCAL, packed) + _attribute(IFA_ADDRESS, packed))
    _set_up(interface)


def limit_rate(interface: str, bytes_per_s: int) -> None:
    """Lets an interface of this namespace send no faster than this: a token bucket."""
    rate = struct.pack("=BBHhHI", 0, 1, 0, -1, 0, bytes_per_s)  # link layer 1, ethernet: no table of rates is needed
    parameters = rate + bytes(12) + struct.pack("=III", QUEUE_BYTES, 1_000_000, 0)
    options = _attribute(TBF_PARMS, parameters) + _number(TBF_BURST, BURST_BYTES)
    head = struct.pack("=BBHiIII", 0, 0, 0, socket.if_nametoindex(interface), TC_HANDLE, TC_ROOT, 0)
    _ask(NEWQDISC, CREATE | REPLACE, head + _text(TCA_KIND, "tbf") + _attribute(TCA_OPTIONS, options))


def _set_up(interface: str, *, is_up: bool = True) -> None:
    up = 1
    _ask(NEWLINK, 0, struct.pack("=BBHiII", 0, 0, 0, socket.if_nametoindex(interface), up * is_up, up))


def _make_link(name: str, kind: bytes) -> None:
    _ask(NEWLINK, CREATE | EXCL, _link() + _text(IFLA_IFNAME, name) + _attribute(IFLA_LINKINFO, kind))


def _link(index: int = 0) -> bytes:
    return struct.pack("=BBHiII", 0, 0, 0, index, 0, 0)


def _attribute(kind: int, content: bytes) -> bytes:
    length = 4 + len(content)
    return struct.pack("=HH", length, kind) + content + bytes(-length % 4)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _number(kind: int, number: int) -> bytes:
    return _attribute(kind, struct.pack("=I", number))


def _ask(message: int, flags: int, body: bytes) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, 0))
        kernel.settimeout(5)
        kernel.send(struct.pack("=IHHII", 16 + len(body), message, REQUEST | ACK | flags, 1, 0) + body)
        code = -struct.unpack_from("=i", kernel.recv(65536), 16)[0]
    if code:
        raise OSError(code, f"{os.strerror(code)} (rtnetlink message {message})")


def main(words: list[str]) -> None:
    """Does one of these things inside the namespace that this process is in."""
    if words[0] == "join":
        join_namespaces(words[1], [int(pid) for pid in words[2:]])
    elif words[0] == "address":
        set_address(words[1], words[2])
    elif words[0] == "limit":
        sys.stdin.readline()
        limit_rate(words[1], int(words[2]))
        print(flush=True)
    elif words[0] in ("down", "up"):
        _set_up(words[1], is_up=words[0] == "up")
    else:
        raise SystemExit(f"{Path(__file__).name}: there is no {words[0]}")


if __name__ == "__main__":
    main(sys.argv[1:])
