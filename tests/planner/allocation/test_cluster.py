"""Nodes know where they are, and a node's own record moves its failure rate away from that of the fleet."""

from dataclasses import replace

import pytest

from lockstep.errors import BadInput
from lockstep.fabrics import leaf_spine, rail_optimised
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
from tests.planner.allocation.clusters import job, linear, nodes, without

DAYS = {f"h{at}": 50.0 for at in range(10)}


def test_a_node_that_failed_more_often_is_expected_to_again() -> None:
    rates = estimate_failure_rates({"h3": 4, "h4": 1}, DAYS)
    assert rates["h3"] > rates["h4"] > rates["h0"] > 0
    assert rates["h3"] == pytest.approx(5 / (50 + 100))  # the fleet: 5 failures in 500 node-days


def test_where_nothing_failed_yet_the_published_rate_is_the_start() -> None:
    assert estimate_failure_rates({}, {"h0": 0.0}) == {"h0": pytest.approx(0.0065)}
    assert estimate_failure_rates({}, DAYS)["h0"] < 0.0065


def test_failures_of_nodes_that_are_gone_count_for_nobody() -> None:
    assert estimate_failure_rates({"old": 9}, DAYS) == estimate_failure_rates({}, DAYS)


def test_hosts_on_the_same_leaves_are_together() -> None:
    topology = leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=2)
    nodes = place_nodes(topology, {"h0": 0.5, "h1": 0.1, "h2": 0.1}, unusable=["h7"])
    assert len({node.leaf for node in nodes}) == 2
    assert [node.failures_per_day for node in nodes[:4]] == [0.5, 0.1, 0.1, 0.1]
    assert [node.name for node in nodes if not node.is_usable] == ["h7"]


def test_hosts_on_several_rails_are_on_the_group_of_their_leaves() -> None:
    nodes = place_nodes(rail_optimised(hosts=8, rails=2, spines=2, pods=2), {})
    groups = {node.leaf for node in nodes}
    assert len(groups) == 2
    assert all(group and group.count("+") == 1 for group in groups)
    assert all(node.failures_per_day == 0.0 for node in nodes)


DAY_S = 86_400.0
TEN = Cluster(nodes(10, rate=0.1), (job("a", 0, 10),))


def test_ten_nodes_that_fail_every_ten_days_leave_a_day() -> None:
    assert expect_running_s(TEN) == pytest.approx(DAY_S, rel=0.05)


def test_one_bad_node_shortens_the_time_for_all() -> None:
    bad = replace(TEN.nodes[0], failures_per_day=9.1)
    assert expect_running_s(replace(TEN, nodes=(bad, *TEN.nodes[1:]))) == pytest.approx(DAY_S / 10, rel=0.05)


def test_nodes_that_no_job_can_use_do_not_count() -> None:
    small = replace(TEN, jobs=(job("a", 0, 2, linear(2)),))
    assert expect_running_s(small) == pytest.approx(5 * DAY_S, rel=0.05)
    assert expect_running_s(replace(small, jobs=(job("a", most=1),))) == pytest.approx(10 * DAY_S, rel=0.05)


def test_repairs_bring_the_next_plan_nearer() -> None:
    assert expect_running_s(replace(TEN, repairs_per_day=3.0)) == pytest.approx(DAY_S / 4, rel=0.05)


def test_without_failures_nobody_plans_for_ever() -> None:
    calm = Cluster(nodes(4, rate=0.0), (job("a", 0, 4),))
    assert expect_running_s(calm) == pytest.approx(28 * DAY_S, rel=0.05)
    assert expect_running_s(Cluster((), ())) == pytest.approx(28 * DAY_S, rel=0.05)


CLUSTER = Cluster(without(nodes(4), "h3"), (job("a", 0, 2),), (job("b"),))


def test_a_person_writes_kind_and_name() -> None:
    assert parse_event("node_lost:h3") == Event("node_lost", "h3")


@pytest.mark.parametrize("text", ["h3", "lost:h3", "node_lost:", ":h3"])
def test_other_words_are_refused_with_the_kinds_there_are(text: str) -> None:
    with pytest.raises(BadInput, match="expected KIND:NAME with a kind of node_lost, node_joins"):
        parse_event(text)


def test_a_lost_node_stays_with_its_job_until_a_plan_is_made() -> None:
    after = apply(CLUSTER, Event("node_lost", "h1"))
    assert after.is_lost("h1")
    assert after.job("a").nodes == ("h0", "h1")


def test_a_node_comes_back_or_is_new_with_the_average_rate() -> None:
    assert not apply(CLUSTER, Event("node_joins", "h3")).is_lost("h3")
    assert apply(CLUSTER, Event("node_joins", "h9")).by_name["h9"].failures_per_day == pytest.approx(0.01)


def test_a_job_ends_and_one_that_waited_starts() -> None:
    assert apply(CLUSTER, Event("job_ends", "a")).jobs == ()
    after = apply(CLUSTER, Event("job_starts", "b"))
    assert ([one.id for one in after.jobs], after.waiting) == (["a", "b"], ())


def test_all_single_events_are_listed_once() -> None:
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
