"""A real fabric of network namespaces for tests: h0 - leaf0 - {spine0, spine1} - leaf1 - h1, routed by Linux.

The kernel's ECMP hashes over addresses, protocol and ports (policy 3) with a fixed seed, so that the same port takes
the same spine in every run. Policy 1 would not do: over veth it follows the sender's random socket hash.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lockstep.fabrics import FabricOptions, leaf_spine
from lockstep.topology import Topology
from tests.collector.sources.link_namespaces import Namespace

_T = TypeVar("_T")

TOPOLOGY: Topology = leaf_spine(
    hosts=2, nics_per_host=1, leaves=2, spines=2, options=FabricOptions(gpus_per_host=0, gbps=1.0)
)
ADDRESSES: dict[str, str | list[str]] = {
    "h0/eth0": "10.10.0.2",
    "h1/eth0": "10.11.0.2",
    "leaf0": ["10.10.0.1", "10.20.0.1", "10.20.1.1"],
    "leaf1": ["10.11.0.1", "10.21.0.1", "10.21.1.1"],
    "spine0": ["10.20.0.2", "10.21.0.2"],
    "spine1": ["10.20.1.2", "10.21.1.2"],
}
_SWITCH_SETTINGS = {
    "ip_forward": 1,
    "fib_multipath_hash_policy": 3,
    "fib_multipath_hash_fields": 0x37,  # addresses, protocol and ports
    "fib_multipath_hash_seed": 7,
    "icmp_ratelimit": 0,  # the defaults answer a few probes in a second
    "icmp_msgs_per_sec": 1_000_000,
    "icmp_msgs_burst": 100_000,
    "icmp_errors_use_inbound_ifaddr": 1,
}
# Which namespaces a cable joins, the interfaces at its ends and their addresses.
_CABLES = (
    ("leaf0", "h0", "h0", "eth0", "10.10.0.1", "10.10.0.2"),
    ("leaf1", "h1", "h1", "eth0", "10.11.0.1", "10.11.0.2"),
    ("leaf0", "s0", "spine0", "l0", "10.20.0.1", "10.20.0.2"),
    ("leaf0", "s1", "spine1", "l0", "10.20.1.1", "10.20.1.2"),
    ("leaf1", "s0", "spine0", "l1", "10.21.0.1", "10.21.0.2"),
    ("leaf1", "s1", "spine1", "l1", "10.21.1.1", "10.21.1.2"),
)
_LEAF1_SEEN_FROM = {"spine0": "10.21.0.1", "spine1": "10.21.1.1"}
_NODES = ("h0", "h1", "leaf0", "leaf1", "spine0", "spine1")


class ProbeFabric:
    """The namespaces, by the names of the topology's nodes."""

    def __init__(self, stack: ExitStack) -> None:
        self._nodes = {node: Namespace() for node in _NODES}
        for node, namespace in self._nodes.items():
            stack.callback(namespace.close)
            namespace.change(lambda route: route.link("set", index=1, state="up"))
            if not node.startswith("h"):
                namespace.run(_set_up_switch)
        self._cable()
        self._route()

    def run(self, node: str, work: Callable[[], _T]) -> _T:
        """Return what `work` gives inside a namespace; its sockets stay there. Always in the same thread."""
        return self._nodes[node].run(work)

    def swallow(self, spine: str) -> None:
        """Let a spine lose silently whatever it sends to leaf1: it takes a wrong MAC address for the leaf's."""
        wrong = {"dst": _LEAF1_SEEN_FROM[spine], "lladdr": "02:00:00:00:00:99", "state": "permanent"}
        self._nodes[spine].change(lambda route: route.neigh("replace", ifindex=_index(route, "l1"), **wrong))

    def heal(self, spine: str) -> None:
        """Let a spine learn the leaf's address again."""
        known = {"dst": _LEAF1_SEEN_FROM[spine]}
        self._nodes[spine].change(lambda route: route.neigh("del", ifindex=_index(route, "l1"), **known))

    def withdraw(self, spine: str) -> None:
        """Have leaf0 send everything over the other spine, as routing does when a link is lost."""
        other = "10.20.1.2" if spine == "spine0" else "10.20.0.2"
        self._nodes["leaf0"].change(lambda route: route.route("replace", dst="10.11.0.0/16", gateway=other))

    def _cable(self) -> None:
        for node, port, other, other_port, address, other_address in _CABLES:
            self._lay(node, port, peer={"ifname": other_port, "net_ns_fd": self._nodes[other].fd})
            self._set_up(node, port, address)
            self._set_up(other, other_port, other_address)
        for node, port, *_ in _CABLES:
            self._nodes[node].wait_until_up(port)

    def _lay(self, node: str, port: str, peer: dict[str, str | int]) -> None:
        self._nodes[node].change(lambda route: route.link("add", ifname=port, kind="veth", peer=peer))

    def _set_up(self, node: str, port: str, address: str) -> None:
        self._nodes[node].change(lambda route: _configure(route, port, address))

    def _route(self) -> None:
        self._add_route("h0", dst="default", gateway="10.10.0.1")
        self._add_route("h1", dst="default", gateway="10.11.0.1")
        for leaf, far in ((0, 1), (1, 0)):
            spines = [{"gateway": f"10.2{leaf}.{spine}.2", "hops": 1} for spine in (0, 1)]
            self._add_route(f"leaf{leaf}", dst=f"10.1{far}.0.0/16", multipath=spines)
            for spine in (0, 1):
                self._add_route(f"spine{spine}", dst=f"10.1{leaf}.0.0/16", gateway=f"10.2{leaf}.{spine}.1")

    def _add_route(self, node: str, **route: Any) -> None:  # Any: pyroute2 gives no types
        self._nodes[node].change(lambda netlink: netlink.route("add", **route))


@contextmanager
def probe_fabric() -> Iterator[ProbeFabric]:
    """Build the fabric and take it down again, whatever happens."""
    with ExitStack() as stack:
        yield ProbeFabric(stack)


def _configure(route: Any, name: str, address: str) -> None:
    route.addr("add", index=_index(route, name), address=address, prefixlen=24)
    route.link("set", index=_index(route, name), state="up")


def _index(route: Any, name: str) -> int:
    return int(route.link_lookup(ifname=name)[0])


def _set_up_switch() -> None:
    """Write the settings of the namespace in which this thread is; older kernels lack the seed and some limits."""
    for name, value in _SWITCH_SETTINGS.items():
        setting = Path("/proc/sys/net/ipv4", name)
        if setting.exists() or name.startswith("fib_multipath_hash_policy"):
            setting.write_text(str(value))
