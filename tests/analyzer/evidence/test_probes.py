"""Probes alone tell which links lose or delay them, however many at once."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from analyzer.evidence.probe_routes import Flows, read_flows
from analyzer.evidence.probes import find_troubles, judge_flows
from analyzer.windows.window import Finding, Window
from lockstep.records import HostRecord
from lockstep.store.store import Store
from tests.analyzer.build import insert
from tests.analyzer.evidence.build import probe
from tests.analyzer.evidence.probing import Fabric, Losing, Way, flows, some_ways, tree
from tests.builders import SECOND, T0

SMALL = Fabric(tree(4), 4)


def find(fabric: Fabric, probed: Flows) -> list[Finding]:
    return judge_flows(probed, fabric.index)


def names(found: list[Finding]) -> set[tuple[str, str | None]]:
    return {(finding.component, finding.side) for finding in found}


def lossy(loss: dict[Way, float], *, each: int = 50, count: int = 800, **fields: float) -> list[Finding]:
    return find(SMALL, flows(SMALL, count, each, Losing(loss), seed=1, **fields))


def test_link_that_loses_is_named_with_its_direction() -> None:
    assert names(lossy({("pod0-leaf1", "pod0-spine0"): 0.02})) == {("link:pod0-leaf1--pod0-spine0", "tx")}
    assert names(lossy({("core1", "pod2-spine0"): 0.02})) == {("link:pod2-spine0--core1", "rx")}
    both = {("pod0-leaf1", "pod0-spine0"): 0.02, ("pod0-spine0", "pod0-leaf1"): 0.02}
    assert names(lossy(both)) == {("link:pod0-leaf1--pod0-spine0", None)}
    assert names(lossy({("h3", "pod0-leaf1"): 0.05})) == {("link:h3/eth0--pod0-leaf1", "tx")}
    loss = {("pod0-leaf1", "pod0-spine0"): 0.5, ("pod3-spine1", "core2"): 0.01, ("core3", "pod1-spine1"): 0.02}
    assert {name for name, _ in names(lossy(loss, count=2000))} == {
        "link:pod0-leaf1--pod0-spine0",
        "link:pod3-spine1--core2",
        "link:pod1-spine1--core3",
    }


def test_switch_that_loses_on_all_its_links_is_named() -> None:
    links = [link for link in SMALL.index.topology.links if "pod1-spine1" in (link.a, link.b)]
    directed_links = {
        directed_link: 0.02
        for link in links
        for directed_link in ((link.a, link.b), (link.b, link.a))
        if directed_link[1] == "pod1-spine1"
    }
    assert names(lossy(directed_links)) == {("switch:pod1-spine1", None)}


def test_finding_tells_how_much_is_lost_or_delayed_and_on_how_many_flows() -> None:
    (found,) = lossy({("pod0-leaf1", "pod0-spine0"): 0.2})
    assert (found.fault_class, found.evidence[0]["share"]) == ("comm_slow", pytest.approx(0.2, rel=0.2))
    assert found.evidence[0]["flows_hit"] <= found.evidence[0]["flows"] < 800
    assert "% of the probes across it" in found.reason
    assert found.likelihood > 0.9
    delayed = Losing({("pod0-leaf1", "pod0-spine0"): 0.9}, background=1e-4, is_delayed=True)
    (found,) = find(SMALL, flows(SMALL, 800, 10, delayed, seed=1))
    assert (found.component, found.side) == ("link:pod0-leaf1--pod0-spine0", "tx")
    assert "delays" in found.reason
    (found,) = lossy({("pod0-leaf1", "pod0-spine0"): 0.05}, count=2000, unknown=0.5)
    assert (found.component, found.side) == ("link:pod0-leaf1--pod0-spine0", "tx")
    assert found.evidence[0]["share"] == pytest.approx(0.05, rel=0.4)


@pytest.mark.parametrize("seed", range(3))
def test_healthy_fabric_gives_silence(seed: int) -> None:
    assert find(SMALL, flows(SMALL, 1000, 20, Losing({}, background=1e-4), seed)) == []


def test_loss_that_is_everywhere_and_unknown_nodes_accuse_nobody() -> None:
    assert find(SMALL, flows(SMALL, 1000, 20, Losing({}, background=0.02), seed=1)) == []
    probed = flows(SMALL, 50, 10, Losing({("h1", "pod0-leaf0"): 1.0}), seed=1)
    none = np.zeros(0)
    assert find(SMALL, Flows(probed.keys.slice(0, 0), none, none, none)) == []
    names_of_others = {"host": "x", "src_nic": "eth0", "dst": "y", "dst_nic": "eth0", "route": "nowhere"}
    foreign = pa.table({name: [text] * len(probed) for name, text in names_of_others.items()})
    assert find(SMALL, replace(probed, keys=foreign)) == []


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(4, marks=pytest.mark.long), 7])
def test_all_failed_links_of_a_large_fat_tree_are_found_and_no_other(count: int) -> None:
    """75,000 flows between 750 hosts, losses from four in a thousand: the setting in which Flock was measured."""
    fabric, seed = Fabric(tree(10, hosts_per_leaf=15), 10), count
    chosen = some_ways(fabric, count, seed)
    rates = np.exp(np.random.default_rng(seed).uniform(np.log(0.004), np.log(0.1), count))
    loss = {directed_link: float(rate) for (directed_link, _), rate in zip(chosen, rates, strict=True)}
    found = find(fabric, flows(fabric, 75_000, 10, Losing(loss), seed))
    assert {finding.component for finding in found} == {name for _, name in chosen}


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
    insert(store, *some_probes())
    assert listed(read_flows(store, Window(T0, T0 + 60 * SECOND))) == {
        ("h0", "eth0", "h1", "eth0", "leaf0", 22.0, 1.0, 1.0),
        ("h0", "eth0", "h3", "eth0", "leaf0>spine1>leaf1", 10.0, 0.0, 0.0),
        ("h2", "eth0", "h3", "eth0", "", 1.0, 1.0, 0.0),
    }


def test_store_without_probes_gives_no_flows(embedded_store: Store) -> None:
    read = read_flows(embedded_store, Window(T0, T0 + 60 * SECOND))
    assert len(read) == 0
    assert find_troubles(read, tree(4)) == []
