"""Fabrics made by hand, and how rows get into a store."""

import itertools

import pyarrow as pa

from analyzer.windows.window import End
from lockstep.fabrics import leaf_spine
from lockstep.records import HostRecord
from lockstep.store.store import Store
from lockstep.tables import TABLES
from lockstep.topology import TopologyIndex
from tests.builders import SECOND, rows

Names = tuple[str, str]  # sender and receiver, each host/nic, or host alone where the NIC is unknown

WINDOW_NS = 5 * SECOND
NS_PER_BYTE = 0.04  # 200 Gb/s
HOSTS, NICS = 8, 4


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


def end_of(name: str) -> End:
    host, _, nic = name.partition("/")
    return End(host, nic or None)


_tokens = itertools.count()


def insert(store: Store, *records: HostRecord) -> None:
    """Insert records of any kinds, each kind into its table."""
    for table in TABLES:
        if mine := [record for record in records if type(record) is table.record]:
            store.insert(table, rows(*mine), token=f"analyzer/{next(_tokens)}")


def schema(columns: str) -> pa.Schema:
    """Return a schema of words such as `host:string`, or `route:string[]` for lists."""
    fields = []
    for column in columns.split():
        name, _, kind = column.partition(":")
        plain = getattr(pa, kind.removesuffix("[]"))()
        fields.append((name, pa.list_(plain) if kind.endswith("[]") else plain))
    return pa.schema(fields)
