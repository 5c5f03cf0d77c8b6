"""Strangers on a link are told from our own load: from bursts, from flows on other paths, and from new jobs."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.fabrics import fat_tree, leaf_spine
from lockstep.records import FabricCounter
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from planner.paths.flows import Flow
from planner.paths.health import Evidence, LinkHealth
from planner.paths.network import build_network
from planner.paths.planning import plan_paths
from planner.paths.traffic import Expected, TrafficJudge, expect_loads, read_traffic
from tests.builders import SECOND, T0, rows

NETWORK = build_network(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))  # 400 Gbit/s
JUDGE = TrafficJudge(NETWORK)
LINK = "leaf0--spine0"
NEVER = -1.0


def port(
    switch: str, name: str, now: float, least: float = NEVER, before: float = NEVER, **more: float
) -> dict[str, Any]:
    """Return what a port sends now, at any time lately, and at most before."""
    sent = {"tx_now": now, "tx_least": least, "tx_before": before}
    received = {"rx_now": 0.0, "rx_least": NEVER, "rx_before": NEVER}
    return {"switch": switch, "port": name, **sent, **received, **more}


def planned(mean: float, peak: float | None = None) -> Expected:
    links = np.ones(NETWORK.directed_links)
    return Expected(links * mean, links * (mean if peak is None else peak))


def judged(*ports: dict[str, Any], plan: Expected | None = None, health: LinkHealth | None = None) -> list[Evidence]:
    return JUDGE.judge(pa.Table.from_pylist(list(ports)), plan or planned(0.0), health or LinkHealth(), T0)


def weights(reported: list[Evidence]) -> dict[str, float]:
    return {each.link: round(each.weight, 9) for each in reported}


def test_a_full_link_that_the_plan_leaves_half_empty_is_half_a_link_at_once() -> None:
    (reported,) = judged(port("leaf0", "spine0", 400.0), port("leaf0", "spine1", 200.0), plan=planned(200.0))
    assert (reported.link, reported.weight, reported.source) == (LINK, 0.5, "traffic")
    assert reported.reason == "leaf0--spine0 carries 200 Gbit/s that no plan knows"
    received = port("spine0", "leaf0", 0.0, rx_now=400.0)
    assert weights(judged(received, port("leaf0", "spine1", 200.0), plan=planned(200.0))) == {LINK: 0.5}
    assert weights(judged(port("spine0", "leaf1", 400.0), plan=planned(100.0))) == {"leaf1--spine0": 0.5}
    assert weights(judged(port("leaf0", "spine0", 900.0))) == {LINK: 0.1}
    some = [port("leaf0", "spine0", 400.0), port("leaf0", "spine1", 100.0)]
    assert weights(judged(*some, plan=planned(200.0))) == {LINK: pytest.approx(0.75)}


def both(now: float, least: float = NEVER, before: float = NEVER) -> list[dict[str, Any]]:
    """Return two equal links up from a leaf."""
    return [port("leaf0", spine, now, least, before) for spine in ("spine0", "spine1")]


@pytest.mark.parametrize(
    ("ports", "plan"),
    [
        (both(400.0), planned(400.0)),
        (both(390.0), planned(330.0)),
        (both(390.0, 0.0), planned(40.0, peak=400.0)),  # a burst of our own
        (both(390.0, 0.0, 380.0), planned(40.0, peak=400.0)),
        # Our own flows on another path.
        ([port("leaf0", "spine0", 400.0, 400.0, 0.0), port("leaf0", "spine1", 0.0, before=400.0)], planned(200.0)),
        ([port("leaf0", "spine0", 400.0)], planned(200.0)),  # nobody counts the other link
        # No links of the fabric.
        ([port("leaf0", "h0/eth0", 400.0, least=400.0), port("leaf7", "spine0", 400.0)], planned(0.0)),
    ],
)
def test_what_is_ours_or_not_known_accuses_nobody(ports: list[dict[str, Any]], plan: Expected) -> None:
    assert judged(*ports, plan=plan) == []


def test_more_than_there_ever_was_is_strange_at_once_although_our_flows_could_burst() -> None:
    some = [port("leaf0", "spine0", 400.0, before=60.0), port("leaf0", "spine1", 50.0, before=60.0)]
    assert weights(judged(*some, plan=planned(40.0, peak=400.0))) == {LINK: pytest.approx(1 - 330 / 400)}


def test_strangers_on_a_link_that_is_not_full_count_when_they_stay() -> None:
    news = [port("leaf0", "spine0", 300.0), port("leaf0", "spine1", 100.0)]
    assert judged(*news, plan=planned(100.0)) == [], "it may be a job that has just begun"
    stays = [{**each, "tx_least": each["tx_now"]} for each in news]
    assert weights(judged(*stays, plan=planned(100.0))) == {LINK: 0.5}


def test_a_link_that_is_known_to_be_ill_is_told_to_be_well_also_when_nobody_counts_it_any_more() -> None:
    health, _ = LinkHealth().observe([Evidence(0, LINK, "traffic", 0.5, "full")], 0)
    (well,) = judged(port("leaf0", "spine1", 0.0), health=health)
    assert (well.link, well.weight) == (LINK, 1.0)
    assert well.reason == "leaf0--spine0 carries nothing but what is planned"


def test_borders_of_pods_are_where_their_paths_meet() -> None:
    network = build_network(fat_tree(4))
    cores = [link for link in network.topology.links if "core" in link.id]
    first = cores[0]
    sends = [(first.a, first.b, 400.0)] if "core" in first.b else [(first.b, first.a, 400.0)]
    ports = [port(near, far, gbps) for near, far, gbps in sends]
    nothing = Expected(np.zeros(network.directed_links), np.zeros(network.directed_links))
    found = TrafficJudge(network).judge(pa.Table.from_pylist(ports), nothing, LinkHealth(), T0)
    assert weights(found) == {first.id: pytest.approx(0.1)}
    ours = Expected(np.full(network.directed_links, 100.0), np.full(network.directed_links, 100.0))
    assert TrafficJudge(network).judge(pa.Table.from_pylist(ports), ours, LinkHealth(), T0) == [], "4 cores share it"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(1, 100), st.floats(0.05, 1)), min_size=1, max_size=20),
    st.integers(0, 99),
)
def test_our_own_flows_accuse_nobody(sends: list[tuple[int, float, float]], seed: int) -> None:
    flows = [
        Flow(id=f"f{n}", src=f"h{src}", dst=f"h{(src + 2) % 4}", gbps=gbps, duty=duty)
        for n, (src, gbps, duty) in enumerate(sends)
    ]
    plan = plan_paths(NETWORK, flows)
    spines = np.random.default_rng(seed).integers(0, 2, len(flows))
    carried: dict[tuple[str, str], float] = {}
    for flow, spine in zip(flows, spines.tolist(), strict=True):
        near, far = (f"leaf{int(host[1]) // 2}" for host in (flow.src, flow.dst))
        for step in ((near, f"spine{spine}"), (f"spine{spine}", far)):
            carried[step] = carried.get(step, 0.0) + flow.gbps * flow.duty
    ports = [port(*step, gbps, least=gbps, before=gbps) for step, gbps in carried.items()]
    assert judged(*ports, plan=expect_loads(plan, flows)) == []


def reading(second: int, tx_bytes: int, **fields: Any) -> FabricCounter:
    usual = dict.fromkeys(("errors", "drops", "pause_rx", "pause_tx", "fec_uncorrected")) | {"extra": {}}
    usual |= {"host": "h0", "switch": "leaf0", "port": "spine0", "up": True, "speed_mbps": 400_000, "rx_bytes": 7}
    return FabricCounter(**{**usual, "ts_ns": T0 + second * SECOND, "tx_bytes": tx_bytes, **fields})


def test_rates_are_those_between_readings_of_one_asker(embedded_store: Store) -> None:
    giga = 125_000_000  # bytes of a gigabit
    sent = {0: 5, 2: 25, 4: 27, 18: 69, 20: 77}
    reported = [reading(second, gigas * giga) for second, gigas in sent.items()]
    other = [reading(0, 5 * giga, host="h1", port="spine1"), reading(9, 0, port="spine1")]
    embedded_store.insert(TABLE_BY_NAME["fabric_counters"], rows(*reported, *other), token="ports")
    anew = [reading(0, 900, switch="leaf1"), reading(1, 5, switch="leaf1")]  # it began to count anew
    embedded_store.insert(TABLE_BY_NAME["fabric_counters"], rows(*anew), token="anew")
    first, second = read_traffic(embedded_store, T0, T0 + 30 * SECOND).sort_by("switch").to_pylist()
    received = {"rx_least": 0.0, "rx_before": 0.0}
    assert first == port("leaf0", "spine0", 4.0, least=3.0, before=10.0, **received)
    assert (second["switch"], second["tx_now"]) == ("leaf1", 0.0)
