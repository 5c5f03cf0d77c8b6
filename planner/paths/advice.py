"""What stock NCCL can be asked to do for a plan where no port can be chosen: advice, and called so.

NCCL over RoCE and InfiniBand takes no source port from anybody; over RoCE path_shim can give it one. What it does
honour are variables, the order of ranks and a topology file. Hosts that share a leaf belong next to each other: each
hop of a ring that stays inside a leaf is no load for the fabric. And NICs keep to their rail and plane.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from planner.paths.network import Network

_MOST_QUEUE_PAIRS = 4  # of a connection: more add memory and little evenness, 4 over 8 spines are even in practice


@dataclass(frozen=True, slots=True)
class NcclAdvice:
    """For one job: variables that all its processes get, those of single hosts, and the order of hosts."""

    variables: dict[str, str]
    by_host: dict[str, dict[str, str]] = field(default_factory=dict)
    host_order: tuple[str, ...] = ()
    crossings: tuple[int, int] = (0, 0)  # hops of a ring that leave a leaf: as given, and in this order
    notes: tuple[str, ...] = ()


def advise_nccl(network: Network, hosts: Sequence[str]) -> NcclAdvice:
    """Return what to set for a job on these hosts, whose NICs are named as the RDMA devices are."""
    order = order_hosts(network, hosts)
    spines = max((len(up_paths.spines) for up_paths in network.up_paths), default=0)
    several = min(_MOST_QUEUE_PAIRS, spines)
    variables = {"NCCL_CROSS_NIC": "0"}  # a ring uses the same NIC on all hosts: left to left, rail to rail
    if network.topology.routing == "ecmp" and several > 1:
        variables |= {"NCCL_IB_QPS_PER_CONNECTION": str(several), "NCCL_IB_SPLIT_DATA_ON_QPS": "1"}
    if network.topology.routing == "adaptive":
        variables |= {"NCCL_IB_ADAPTIVE_ROUTING": "1"}
    by_host = dict(_choose_nics(network, order))
    crossings = count_crossings(network, hosts), count_crossings(network, order)
    return NcclAdvice(variables, by_host, tuple(order), crossings, tuple(_note(crossings, by_host)))


def order_hosts(network: Network, hosts: Sequence[str]) -> list[str]:
    """Return hosts so that those under one leaf, and then those of one pod, follow each other."""
    pods = network.joined_below(min(len(network.up_paths), 1))
    leaves = _leaves_of(network)
    leaf_of = {host: leaves.get(host, -1) for host in hosts}  # those that the topology does not know come first
    return sorted(hosts, key=lambda host: (pods[leaf_of[host]] if leaf_of[host] >= 0 else -1, leaf_of[host]))


def count_crossings(network: Network, hosts: Sequence[str]) -> int:
    """Return how many hops of a ring over these hosts, in this order, leave a leaf."""
    known = _leaves_of(network)
    leaves = [known.get(host, -1) for host in hosts]
    return sum(near != far for near, far in zip(leaves, leaves[1:] + leaves[:1], strict=True))


def _choose_nics(network: Network, hosts: Iterable[str]) -> Iterable[tuple[str, dict[str, str]]]:
    """Yield for each host the NICs whose cables carry something, where that is not all of them."""
    nics: dict[str, list[tuple[str, bool]]] = {}
    for name, (link, _) in network.ports.items():
        host, _, nic = name.partition("/")
        nics.setdefault(host, []).append((nic, bool(network.gbps[link] > 0)))
    for host in hosts:
        alive = [nic for nic, is_alive in nics.get(host, ()) if is_alive]
        if 0 < len(alive) < len(nics[host]):
            yield host, {"NCCL_IB_HCA": "=" + ",".join(alive)}


def _leaves_of(network: Network) -> dict[str, int]:
    """Return the leaf of each host; of several, the first."""
    leaves: dict[str, int] = {}
    for name, (_, leaf) in network.ports.items():
        host = name.partition("/")[0]
        leaves[host] = min(leaf, leaves.get(host, leaf))
    return leaves


def _note(crossings: tuple[int, int], by_host: dict[str, dict[str, str]]) -> Iterable[str]:
    yield "this is advice: NCCL takes no source port over RoCE and InfiniBand; over RoCE path_shim gives it one"
    if crossings[1] < crossings[0]:
        yield f"in this order of hosts {crossings[1]} hops of a ring leave a leaf instead of {crossings[0]}"
    for host, variables in by_host.items():
        yield f"{host} goes without the NICs that carry nothing: NCCL_IB_HCA{variables['NCCL_IB_HCA']}"
