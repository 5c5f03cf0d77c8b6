"""Probes are counted by the way they took, in the store as in memory."""

import pyarrow as pa

from analyzer.probing.flows import Flows, group_probes, read_flows
from analyzer.probing.links import find_troubles
from analyzer.windows import Window
from lockstep.arrow import rows_of
from lockstep.records import HostRecord
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from tests.analyzer.probing.build import Fabric, Losing, probes, tree
from tests.analyzer.signs.build import insert, probe
from tests.builders import SECOND, T0

FABRIC = Fabric(tree(4), 4)


def listed(flows: Flows) -> set[tuple[object, ...]]:
    keys = flows.keys.to_pylist()
    counts = zip(flows.sent.tolist(), flows.lost.tolist(), flows.late.tolist(), strict=True)
    return {(*key.values(), *count) for key, count in zip(keys, counts, strict=True)}


def some_probes() -> list[HostRecord]:
    usual = [probe("h0", "h1", ["leaf0"], at, 10_000 + at) for at in range(20)]
    slow = [probe("h0", "h1", ["leaf0"], 20, 90_000), probe("h0", "h1", ["leaf0"], 21, None)]
    far = [probe("h0", "h3", ["leaf0", "spine1", "leaf1"], at, 30_000 + at) for at in range(10)]
    return [*usual, *slow, *far, probe("h2", "h3", [], 5, None)]


def test_lost_and_late_probes_are_counted_by_way() -> None:
    flows = group_probes(rows_of(TABLE_BY_NAME["probes"], some_probes()))
    assert listed(flows) == {
        ("h0", "eth0", "h1", "eth0", "leaf0", 22.0, 1.0, 1.0),
        ("h0", "eth0", "h3", "eth0", "leaf0>spine1>leaf1", 10.0, 0.0, 0.0),
        ("h2", "eth0", "h3", "eth0", "", 1.0, 1.0, 0.0),
    }


def test_store_counts_the_same(store: Store) -> None:
    insert(store, some_probes())
    read = read_flows(store, Window(T0, T0 + 60 * SECOND))
    assert listed(read) == listed(group_probes(rows_of(TABLE_BY_NAME["probes"], some_probes())))


def test_store_without_probes_gives_no_flows(embedded_store: Store) -> None:
    read = read_flows(embedded_store, Window(T0, T0 + 60 * SECOND))
    assert len(read) == 0
    assert find_troubles(read, FABRIC.index) == []


def test_order_of_probes_changes_nothing() -> None:
    rows = probes(FABRIC, 200, 5, Losing({("pod0-leaf0", "pod0-spine0"): 0.3}), seed=1)
    backwards = rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))
    assert listed(group_probes(backwards)) == listed(group_probes(rows))
