"""Windows made by hand: rows between NICs, matrices with chosen slow pairs, facts and verdicts about them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.context import End
from analyzer.delay import DelayMatrix
from analyzer.facts import WindowFacts
from analyzer.windows import Window
from lockstep.fabrics import leaf_spine
from lockstep.topology import TopologyIndex
from lockstep.verdict import Impact, Verdict
from tests.builders import SECOND, T0

Names = tuple[str, str]  # sender and receiver, each host/nic, or host alone where the NIC is unknown
IsSlow = Callable[[str, str], bool]

WINDOW_NS = 5 * SECOND
NS_PER_BYTE = 0.04  # 200 Gb/s
HOSTS, NICS = 8, 4

_SCHEMA = pa.schema(
    [
        ("src_host", pa.string()),
        ("src_nic", pa.string()),
        ("dst_host", pa.string()),
        ("dst_nic", pa.string()),
        ("transport", pa.string()),
        ("size_class", pa.uint8()),
        ("transfers", pa.uint64()),
        ("bytes", pa.uint64()),
        ("wire_ns", pa.int64()),
    ]
)


def fabric() -> TopologyIndex:
    """Return the fabric of the rings and meshes below: two hosts on each of four leaves."""
    return TopologyIndex(leaf_spine(hosts=HOSTS, nics_per_host=NICS, leaves=HOSTS // 2, spines=2))


def ring(hosts: int = HOSTS, nics: int = NICS) -> list[Names]:
    """Return a ring through all hosts for each NIC: a NIC sends to one other and receives from one."""
    return [(f"h{host}/eth{nic}", f"h{(host + 1) % hosts}/eth{nic}") for host in range(hosts) for nic in range(nics)]


def mesh(hosts: int = HOSTS, nics: int = 1) -> list[Names]:
    """Return every NIC sending to every NIC of every other host."""
    ends = [f"h{host}/eth{nic}" for host in range(hosts) for nic in range(nics)]
    return [(src, dst) for src in ends for dst in ends if host_of(src) != host_of(dst)]


def host_of(end: str) -> str:
    return end.split("/")[0]


def row(names: Names, times: float = 1.0, **fields: Any) -> dict[str, Any]:
    """Return what one pair carried in a window, at so many times the usual wire time."""
    src, dst = (end_of(name) for name in names)
    size = fields.get("bytes", 1_000_000_000)
    usual = {"transport": "ib", "size_class": 29, "transfers": 10, "bytes": size}
    ends = {"src_host": src.host, "src_nic": src.nic, "dst_host": dst.host, "dst_nic": dst.nic}
    return {**usual, **ends, "wire_ns": round(size * NS_PER_BYTE * times), **fields}


def table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Return rows as reading them from a store would."""
    return pa.Table.from_pylist(list(rows), schema=_SCHEMA)


def measured(pairs: Iterable[Names], is_slow: IsSlow = lambda src, dst: False, times: float = 2.0) -> pa.Table:
    """Return one row per pair, the slow ones at so many times the usual wire time."""
    return table(row(pair, times if is_slow(*pair) else 1.0) for pair in pairs)


def matrix(pairs: Sequence[Names], is_slow: IsSlow) -> DelayMatrix:
    """Return a matrix in which exactly these pairs are slow."""
    hot = np.array([is_slow(*pair) for pair in pairs])
    ratio = np.where(hot, 2.0, 1.0)
    return DelayMatrix(
        pairs=tuple((end_of(src), end_of(dst)) for src, dst in pairs),
        transports=frozenset({"ib"}),
        ratio=ratio,
        sigmas=np.log(ratio) / 0.01,
        hot=hot,
        ns_per_byte=ratio * NS_PER_BYTE,
    )


def end_of(name: str) -> End:
    host, _, nic = name.partition("/")
    return End(host, nic or None)


def facts(
    number: int = 0,
    pairs: pa.Table | None = None,
    *,
    hosts: int = HOSTS,
    silent: Iterable[str] = (),
    operations: int = 640,
) -> WindowFacts:
    """Return the facts of the window with that number, counted from T0, of a job with 64 ranks."""
    start_ns = T0 + number * WINDOW_NS
    return WindowFacts(
        window=Window(start_ns, start_ns + WINDOW_NS),
        job="train",
        attempt=1,
        ranks=64,
        hosts=frozenset(f"h{host}" for host in range(hosts)),
        silent=frozenset(silent),
        pairs=table([]) if pairs is None else pairs,
        operations=operations,
        nodes=hosts,
    )


def verdict(component: str = "nic:h3/eth1", number: int = 0) -> Verdict:
    """Return a verdict on the window with that number."""
    window = facts(number).window
    return Verdict(
        id="",
        job="train",
        attempt=1,
        fault_class="comm_slow",
        component=component,
        confidence=0.9,
        grade="alert",
        since_ns=window.start_ns,
        last_seen_ns=window.end_ns,
        impact=Impact(ranks_waiting=63),
        reason="it needs twice the wire time",
        coverage=1.0,
    )
