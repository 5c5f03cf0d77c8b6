"""Nodes know where they are, and a node's own record moves its failure rate away from that of the fleet."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import BadInput
from lockstep.fabrics import leaf_spine, rail_optimised
from planner.allocation.allocate import plan_allocation
from planner.allocation.cluster import (
    Cluster,
    Event,
    apply,
    estimate_failure_rates,
    expect_running_s,
    list_events,
    parse_event,
    place_nodes,
)
from planner.allocation.cluster_file import allocation_to_json, parse_cluster, read_cluster
from tests.planner.allocation.clusters import job, linear, nodes, without

DAYS = {f"h{at}": 50.0 for at in range(10)}


def test_a_node_that_failed_more_often_is_expected_to_again() -> None:
    rates = estimate_failure_rates({"h3": 4, "h4": 1}, DAYS)
    assert rates["h3"] > rates["h4"] > rates["h0"] > 0
    assert rates["h3"] == pytest.approx(5 / (50 + 100))  # the fleet: 5 failures in 500 node-days
    assert estimate_failure_rates({}, {"h0": 0.0}) == {"h0": pytest.approx(0.0065)}
    assert estimate_failure_rates({}, DAYS)["h0"] < 0.0065
    assert estimate_failure_rates({"old": 9}, DAYS) == estimate_failure_rates({}, DAYS)


def test_hosts_are_on_the_group_of_their_leaves() -> None:
    topology = leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=2)
    nodes = place_nodes(topology, {"h0": 0.5, "h1": 0.1, "h2": 0.1})
    assert len({node.leaf for node in nodes}) == 2
    assert [node.failures_per_day for node in nodes[:4]] == [0.5, 0.1, 0.1, 0.1]
    assert all(node.is_usable for node in nodes)
    nodes = place_nodes(rail_optimised(hosts=8, rails=2, spines=2, pods=2), {})
    groups = {node.leaf for node in nodes}
    assert len(groups) == 2
    assert all(group and group.count("+") == 1 for group in groups)
    assert all(node.failures_per_day == 0.0 for node in nodes)


TEN = Cluster(nodes(10, rate=0.1), (job("a", 0, 10),))


@pytest.mark.parametrize(
    ("cluster", "days"),
    [
        (TEN, 1),  # ten nodes that fail every ten days
        (replace(TEN, nodes=(replace(TEN.nodes[0], failures_per_day=9.1), *TEN.nodes[1:])), 0.1),  # one bad node
        (replace(TEN, jobs=(job("a", 0, 2, linear(2)),)), 5),  # nodes that no job can use do not count
        (replace(TEN, jobs=(job("a", most=1),)), 10),
        (replace(TEN, repairs_per_day=3.0), 0.25),
        (Cluster(nodes(4, rate=0.0), (job("a", 0, 4),)), 28),  # nobody plans for ever
        (Cluster((), ()), 28),
    ],
)
def test_next_plan_is_expected_with_the_next_failure_or_repair(cluster: Cluster, days: float) -> None:
    assert expect_running_s(cluster) == pytest.approx(days * 86_400.0, rel=0.05)


CLUSTER = Cluster(without(nodes(4), "h3"), (job("a", 0, 2),), (job("b"),))


def test_a_person_writes_kind_and_name() -> None:
    assert parse_event("node_lost:h3") == Event("node_lost", "h3")
    for text in ("h3", "lost:h3", "node_lost:", ":h3"):
        with pytest.raises(BadInput, match="expected KIND:NAME with a kind of node_lost, node_joins"):
            parse_event(text)


def test_events_change_the_cluster_but_a_lost_node_stays_with_its_job_until_a_plan_is_made() -> None:
    after = apply(CLUSTER, Event("node_lost", "h1"))
    assert after.is_lost("h1")
    assert after.job("a").nodes == ("h0", "h1")
    assert not apply(CLUSTER, Event("node_joins", "h3")).is_lost("h3")
    assert apply(CLUSTER, Event("node_joins", "h9")).by_name["h9"].failures_per_day == pytest.approx(0.01)
    assert apply(CLUSTER, Event("job_ends", "a")).jobs == ()
    after = apply(CLUSTER, Event("job_starts", "b"))
    assert ([one.id for one in after.jobs], after.waiting) == (["a", "b"], ())
    listed = list(list_events(CLUSTER))
    assert len(listed) == len(set(listed)) == 3 + 1 + 1 + 1 + 1


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (Event("node_lost", "h9"), "there is no node h9 in this cluster of 4"),
        (Event("node_lost", "h3"), "node h3 is lost already"),
        (Event("node_joins", "h1"), "node h1 is usable already"),
        (Event("job_ends", "x"), "there is no job x among a"),
        (Event("job_starts", "a"), "there is no job a among those that wait: b"),
    ],
)
def test_what_cannot_happen_is_refused(event: Event, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        apply(CLUSTER, event)


EXAMPLE = Path(__file__).parents[2] / "data" / "recovery" / "cluster.json"
SMALL: dict[str, Any] = {
    "nodes": [{"name": "h0"}, {"name": "h1", "leaf": "leaf0", "failures_per_day": 0.5}],
    "jobs": [{"id": "a", "nodes": ["h0"], "throughput": {"1": 10, "2": 18, "3": 25}, "valid": [1, 2]}],
}


def test_the_example_is_a_cluster_of_three_jobs_and_one_that_waits() -> None:
    cluster = read_cluster(EXAMPLE)
    assert [one.id for one in cluster.jobs] == ["chat", "code", "search"]
    assert [one.id for one in cluster.waiting] == ["tiny"]
    assert cluster.job("chat").recovery.recycled == {1: 2600.0}
    assert cluster.job("chat").throughput.measured == {8}
    assert parse_cluster(SMALL).job("a").throughput.counts == (1, 2)


def test_a_plan_can_be_written_as_json() -> None:
    written = json.loads(json.dumps(allocation_to_json(plan_allocation(parse_cluster(SMALL)))))
    assert written["jobs"]["a"]["action"] == "reconfigure"
    assert written["jobs"]["a"]["nodes"] == ["h0", "h1"]
    assert [other["name"] for other in written["alternatives"]] == ["do nothing"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nodes": [{"name": "h0", "colour": "red"}]}, "nodes.0.colour: Extra inputs are not permitted"),
        ({"jobs": [{"id": "a"}]}, "jobs.0.throughput: Field required"),
        ({"jobs": [{"id": "a", "throughput": {"0": 1}}]}, "job a: a throughput table needs one rate for each count"),
        ({"jobs": [{"id": "a", "throughput": {"1": -1}}]}, "job a: a throughput table holds rates"),
        ({"version": 2}, "version: Input should be less than or equal to 1"),
        ({"nodes": [{"name": "h0"}] * 2}, "node h0 is listed 2 times"),
    ],
)
def test_every_mistake_is_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        parse_cluster(SMALL | change)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(BadInput, match=r"c\.json cannot be read as a cluster"):
        read_cluster(tmp_path / "c.json")
    with pytest.raises(BadInput, match=r"gone\.json cannot be read as a cluster"):
        read_cluster(tmp_path / "gone.json")
