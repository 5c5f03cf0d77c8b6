"""Looks at wires made by hand: waits and steps between ranks of a small job, with chosen slow pairs."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.delay_matrix.building import build_matrix
from analyzer.delay_matrix.clocks import HostClocks
from analyzer.delay_matrix.delays import PairOptions
from analyzer.delay_matrix.matrix import DelayMatrix, PairMemory
from analyzer.delay_matrix.reading import SLACKS_NS, PairFacts
from analyzer.windows.window import Context, Window
from lockstep.fabrics import leaf_spine
from lockstep.topology import TopologyIndex
from tests.analyzer.build import schema
from tests.analyzer.looking import WORLD, world
from tests.builders import SECOND, T0

HOSTS = 8
MS = 1_000_000
NS_PER_BYTE = 0.08  # 100 Gb/s
STEP_BYTES = 250_000
Hop = tuple[int, int]  # ranks of sender and receiver
Scale = Callable[[Hop], float]

_NAMING = """comm:uint64 func:string size_class:uint8 src_rank:uint32 dst_rank:int32 channel:uint16
    src_host:string dst_host:string src_nic:string dst_nic:string sport:uint16 n:uint64
    operations:uint64 error_ns:float64"""
WAITS = schema(f"{_NAMING} transport:string bytes:uint64 wire_ns:int64 wire_max_ns:int64 recv_gpu_ns:int64")
STEPS = schema(f"""{_NAMING} steps:uint64 bytes:float64 busy_ns:int64[] least_ns:int64 pace:float64
    oldest_ns:int64 newest_ns:int64""")
LAGS = schema(f"""{_NAMING} steps:uint64 bytes:float64 transit_ns:int64 least_ns:int64 absent_ns:int64 pace:float64
    newest_ns:int64""")
PATHS = schema("src_host:string src_nic:string dst_host:string far_nic:string sport:uint16 route:string[]")
INNER = schema("""comm:uint64 func:string size_class:uint8 host:string ranks:uint32 n:uint64 bytes:float64
    fastest_ns:int64 error_ns:float64""")


def ring(hosts: int = HOSTS) -> list[Hop]:
    """Return a ring of one rank per host."""
    return [(host, (host + 1) % hosts) for host in range(hosts)]


def mesh(hosts: int = HOSTS) -> list[Hop]:
    """Return every rank sending to every other one."""
    return [(src, dst) for src in range(hosts) for dst in range(hosts) if src != dst]


def usual(hop: Hop) -> float:
    """Return the delay of a healthy wire over its link's own, with a little noise that is always the same."""
    return 1.02 + 0.01 * ((7 * hop[0] + 3 * hop[1]) % 5)


def slow(culprits: Iterable[Hop], times: float) -> Scale:
    """Return the delays of a job in which these pairs take so many times as long."""
    chosen = set(culprits)
    return lambda hop: usual(hop) * (times if hop in chosen else 1.0)


def wait(hop: Hop, times: float = 1.0, **fields: Any) -> dict[str, Any]:
    """Return one pair's waits in an evaluation: a hundred operations of ten megabytes."""
    size = 1_000_000_000
    wire_ns = fields.get("wire_ns", size * NS_PER_BYTE * times)
    usual = {"n": 100, "operations": 5, "error_ns": None if wire_ns is None else wire_ns / 100, "transport": "ib"}
    usual |= {"bytes": size, "wire_ns": round(size * NS_PER_BYTE * times), "wire_max_ns": MS, "recv_gpu_ns": 0}
    return _names(hop) | usual | fields


def waits(hops: Iterable[Hop], scale: Scale = usual, **fields: Any) -> list[dict[str, Any]]:
    """Return the waits of these pairs on four channels, each of which has its own NIC."""
    channels = [{"channel": channel, "src_nic": f"eth{channel}", "dst_nic": f"eth{channel}"} for channel in range(4)]
    return [wait(hop, scale(hop), **{**channel, **fields}) for hop in hops for channel in channels]


def step(hop: Hop, transit_ns: float, **fields: Any) -> dict[str, Any]:
    """Return what both ends of one pair tell of thirty operations of a step each, or of their ends."""
    usual: dict[str, Any] = {
        "n": 30,
        "operations": fields.get("n", 30),
        "error_ns": abs(transit_ns) / 100,
        "steps": 1,
    }
    usual |= {"bytes": STEP_BYTES, "transit_ns": round(transit_ns), "least_ns": round(transit_ns), "absent_ns": 0}
    usual |= {"busy_ns": [max(round(transit_ns) - slack_ns, 0) for slack_ns in SLACKS_NS]}
    return _names(hop) | usual | {"pace": 0.0, "oldest_ns": T0, "newest_ns": T0} | fields


def inner(host: int, fastest_ns: float, **fields: Any) -> dict[str, Any]:
    """Return how long a communicator inside a host takes."""
    usual = {"comm": 1000 + host, "func": "AllReduce", "size_class": 26, "host": f"h{host}", "ranks": 8, "n": 40}
    return usual | {"bytes": 1e8, "fastest_ns": round(fastest_ns), "error_ns": fastest_ns / 100} | fields


Rows = Iterable[dict[str, Any]]


def facts(waits: Rows = (), steps: Rows = (), clock_error_ns: float | None = None, **others: Rows) -> PairFacts:
    """Return what an evaluation at these rows reads; clocks tell nothing of themselves unless a bound is given."""
    names = tuple(sorted(f"h{host}" for host in range(HOSTS)))
    told = HostClocks(names, np.zeros(HOSTS, np.int64), np.full(HOSTS, clock_error_ns or 0.0))
    given = {"waits": waits, "steps": steps, **others}
    schemas = {"waits": WAITS, "steps": STEPS, "lags": LAGS, "paths": PATHS, "inner": INNER}
    assert not given.keys() - schemas.keys()
    tables = {name: pa.Table.from_pylist(list(given.get(name, ())), schema=of) for name, of in schemas.items()}
    return PairFacts(**tables, clocks=HostClocks() if clock_error_ns is None else told)


def context(topology: TopologyIndex | None = None, look: int = 0) -> Context:
    """Return one evaluation of five seconds at a job of a rank per host; looks begin two seconds apart."""
    begin = T0 + 2 * look * SECOND
    window = Window(begin, begin + 5 * SECOND)
    return Context("j1", 0, window, begin + 3 * SECOND, world(HOSTS, gpus=1, gpu=3), topology)


def fabric() -> TopologyIndex:
    return TopologyIndex(leaf_spine(hosts=HOSTS, nics_per_host=4, leaves=HOSTS // 2, spines=2))


def look_at(seen: PairFacts, memory: PairMemory | None = None) -> DelayMatrix | None:
    """Return the matrix of a single evaluation."""
    return build_matrix(seen, memory or PairMemory(), context(), PairOptions())[0]


def remember(seen: PairFacts, evaluations: int = 5) -> PairMemory:
    """Return what is remembered after that many evaluations that were all the same."""
    memory = PairMemory()
    for look in range(evaluations):
        _, memory = build_matrix(seen, memory, context(look=look), PairOptions())
    return memory


def hot_hosts(matrix: DelayMatrix | None) -> set[Hop]:
    """Return the slow pairs by the numbers of their hosts."""
    if matrix is None:
        return set()
    slow_wires = [matrix.pairs[index] for index in np.flatnonzero(matrix.slow)]
    return {(int(pair.src.host[1:]), int(pair.dst.host[1:])) for pair in slow_wires}


def _names(hop: Hop) -> dict[str, Any]:
    usual: dict[str, Any] = {"comm": WORLD, "func": "AllReduce", "size_class": 23, "channel": 0, "sport": None}
    ends = {"src_rank": hop[0], "dst_rank": hop[1], "src_host": f"h{hop[0]}", "dst_host": f"h{hop[1]}"}
    return usual | ends | {"src_nic": "eth0", "dst_nic": "eth0"}
