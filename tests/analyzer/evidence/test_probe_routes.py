"""Probes are counted by the way they took."""

from analyzer.evidence.probe_routes import Flows, read_flows
from analyzer.evidence.probes import find_troubles
from analyzer.windows.window import Window
from lockstep.records import HostRecord
from lockstep.store.store import Store
from tests.analyzer.evidence.build import insert, probe
from tests.analyzer.evidence.probing import tree
from tests.builders import SECOND, T0


def listed(flows: Flows) -> set[tuple[object, ...]]:
    keys = flows.keys.to_pylist()
    counts = zip(flows.sent.tolist(), flows.lost.tolist(), flows.delayed.tolist(), strict=True)
    return {(*key.values(), *count) for key, count in zip(keys, counts, strict=True)}


def some_probes() -> list[HostRecord]:
    usual = [probe("h0", "h1", ["leaf0"], at, 10_000 + at) for at in range(20)]
    slow = [probe("h0", "h1", ["leaf0"], 20, 90_000), probe("h0", "h1", ["leaf0"], 21, None)]
    far = [probe("h0", "h3", ["leaf0", "spine1", "leaf1"], at, 30_000 + at) for at in range(10)]
    return [*usual, *slow, *far, probe("h2", "h3", [], 5, None)]


def test_lost_and_late_probes_are_counted_by_route(store: Store) -> None:
    insert(store, some_probes())
    assert listed(read_flows(store, Window(T0, T0 + 60 * SECOND))) == {
        ("h0", "eth0", "h1", "eth0", "leaf0", 22.0, 1.0, 1.0),
        ("h0", "eth0", "h3", "eth0", "leaf0>spine1>leaf1", 10.0, 0.0, 0.0),
        ("h2", "eth0", "h3", "eth0", "", 1.0, 1.0, 0.0),
    }


def test_store_without_probes_gives_no_flows(embedded_store: Store) -> None:
    read = read_flows(embedded_store, Window(T0, T0 + 60 * SECOND))
    assert len(read) == 0
    assert find_troubles(read, tree(4)) == []
