"""Two network namespaces joined by a pair of veths, each the home of a thread: gone when the threads end."""

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from pyroute2 import IPRoute

from tests.waiting import eventually

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

DEADLINE_S = 20.0
_CLONE_NEWNET = 0x4000_0000


class Namespace:
    """A network namespace; `run` calls a function inside it, always from the same thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=_leave_for_a_new_one)
        self.fd: int = self.run(lambda: os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY))

    def run(self, function: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        return self._thread.submit(function, *args, **named).result(DEADLINE_S * 2)

    def change(self, command: Callable[[Any], object]) -> None:
        """Change something here by pyroute2."""

        def apply() -> None:
            with IPRoute() as route:
                command(route)

        self.run(apply)

    def set_link(self, name: str, state: str) -> None:
        self.change(lambda route: route.link("set", index=route.link_lookup(ifname=name)[0], state=state))

    def wait_until_up(self, name: str) -> None:
        eventually(lambda: self.run(_is_up, name))

    def remove_link(self, name: str) -> None:
        self.change(lambda route: route.link("del", index=route.link_lookup(ifname=name)[0]))

    def limit(self, name: str, rate: str, queue_bytes: int) -> None:
        """Let an interface send at most at `rate`, and let no more than `queue_bytes` wait."""
        self.change(
            lambda route: route.tc(
                "add", "tbf", route.link_lookup(ifname=name)[0], 0x10000, rate=rate, burst=3000, limit=queue_bytes
            )
        )

    def connect(self, address: tuple[str, int]) -> socket.socket:
        return self.run(socket.create_connection, address, DEADLINE_S)

    def listen(self, address: str, port: int = 0) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return self.run(lambda: socket.create_server((address, port), family=family))

    def close(self) -> None:
        os.close(self.fd)
        self._thread.shutdown()


@dataclass(frozen=True)
class Pair:
    """10.9.0.1 and fd00:9::1 on eth0 of `here`, 10.9.0.2 and fd00:9::2 on eth0 of `there`."""

    here: Namespace
    there: Namespace


@contextmanager
def joined_namespaces() -> Iterator[Pair]:
    """Make two namespaces with a working pair of veths between them."""
    with ExitStack() as cleanup:
        here, there = Namespace(), Namespace()
        cleanup.callback(there.close)
        cleanup.callback(here.close)
        join(here, there)
        yield Pair(here, there)


def join(here: Namespace, there: Namespace) -> None:
    peer = {"ifname": "eth0", "net_ns_fd": there.fd}
    here.change(lambda route: route.link("add", ifname="eth0", kind="veth", peer=peer))
    here.change(lambda route: _configure(route, 1))
    there.change(lambda route: _configure(route, 2))
    here.wait_until_up("eth0")


def _configure(route: Any, number: int) -> None:  # pyroute2 gives no types
    index = route.link_lookup(ifname="eth0")[0]
    route.addr("add", index=index, address=f"10.9.0.{number}", prefixlen=24)
    route.addr("add", index=index, address=f"fd00:9::{number}", prefixlen=64, flags=0x02)  # no search for duplicates
    route.link("set", index=index, state="up")
    route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")


def _is_up(name: str) -> bool:
    with IPRoute() as route:
        return bool(route.get_links(ifname=name)[0].get_attr("IFLA_OPERSTATE") == "UP")


class Flow:
    """A TCP flow from `here` to `there`; what arrives is read by a thread."""

    def __init__(self, pair: Pair, to: str = "10.9.0.2") -> None:
        listener = pair.there.listen(to)
        self.sender = pair.here.connect(listener.getsockname()[:2])
        self.sender_port: int = self.sender.getsockname()[1]
        self._receiver, _ = listener.accept()
        listener.close()
        self.received = 0
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _receive(self) -> None:
        with suppress(OSError):
            while data := self._receiver.recv(1 << 16):
                self.received += len(data)

    def send(self, count: int) -> None:
        """Send, and wait until all has arrived."""
        goal = self.received + count
        self.sender.sendall(bytes(count))
        eventually(lambda: self.received >= goal)

    def close(self) -> None:
        self.sender.close()
        self._receiver.shutdown(socket.SHUT_RDWR)
        self._receiver.close()
        self._thread.join(DEADLINE_S)


def _leave_for_a_new_one() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no namespace of our own")
