"""A process that holds every packet for a while: reads them from a tun interface and writes them back there.

Run by file name in a namespace, with the standard library alone: delay_line.py INTERFACE SECONDS. Says "ready" when
the interface is there; on SIGTERM it lets go of everything that it holds and ends, and the interface goes with it.
"""

import fcntl
import os
import select
import signal
import struct
import sys
import time
from collections import deque

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x4004_54CA, 0x0001, 0x1000  # linux/if_tun.h
_MOST_HELD = 20_000  # packets; 10 ms at 1 Gbit/s are 800
_AT_ONCE = 64


def main() -> None:
    name, delay_ns = sys.argv[1], int(float(sys.argv[2]) * 1e9)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    ending, writer = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(writer, b"."))
    print("ready", flush=True)
    hold(tun, ending, delay_ns)


def hold(tun: int, ending: int, delay_ns: int) -> None:
    """Delay packets until there is something to read from `ending`; then let go of the rest at once."""
    held: deque[tuple[int, bytes]] = deque()
    while True:
        _release(tun, held, time.monotonic_ns())
        wait_s = max(held[0][0] - time.monotonic_ns(), 0) / 1e9 if held else None
        ready, _, _ = select.select([tun, ending], [], [], wait_s)  # poll() would round to milliseconds
        if ending in ready:
            break
        if tun in ready:
            _take(tun, held, delay_ns)
    _release(tun, held, sys.maxsize)


def _take(tun: int, held: "deque[tuple[int, bytes]]", delay_ns: int) -> None:
    for _ in range(_AT_ONCE):
        try:
            packet = os.read(tun, 1 << 16)
        except (BlockingIOError, OSError):  # nothing more, or the interface is not switched on yet
            return
        if len(held) < _MOST_HELD:
            held.append((time.monotonic_ns() + delay_ns, packet))


def _release(tun: int, held: "deque[tuple[int, bytes]]", now_ns: int) -> None:
    while held and held[0][0] <= now_ns:
        try:
            os.write(tun, held.popleft()[1])
        except OSError:  # a full queue behind us: lost, as on any wire
            continue


if __name__ == "__main__":
    main()
