"""Jobs keep what they hold, grow close by, and stay off what fails; each node comes with its reason."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from lockstep.errors import BadInput
from planner.recovery.allocation.gains import Change
from planner.recovery.allocation.jobs import Cluster, Job, Node
from planner.recovery.allocation.placing import Placement, place
from planner.recovery.allocation.planning import plan_allocation
from tests.planner.recovery.allocation.clusters import clusters, job, nodes, without


def placed(cluster: Cluster, change: Change = "reconfigure", **counts: int) -> dict[str, Placement]:
    return place(cluster, counts, dict.fromkeys(counts, change))


def with_rate(those: tuple[Node, ...], rate: float, *names: str) -> tuple[Node, ...]:
    return tuple(replace(node, failures_per_day=rate) if node.name in names else node for node in those)


@settings(max_examples=80, deadline=None)
@given(clusters())
def test_no_node_is_used_twice_or_while_unusable_and_all_that_can_stay_stays(cluster: Cluster) -> None:
    try:
        plan = plan_allocation(cluster)
    except BadInput:
        return
    used = [name for one in plan.jobs for name in one.placement.nodes]
    assert len(used) == len(set(used))
    assert not any(cluster.is_lost(name) for name in used)
    for one in plan.jobs:
        live = {name for name in cluster.job(one.job).nodes if not cluster.is_lost(name)}
        kept = live & set(one.placement.nodes)
        assert len(one.placement.nodes) == one.after
        assert len(kept) == min(len(live), one.after)
        assert set(one.placement.taken) == set(one.placement.nodes) - kept
        assert set(one.placement.reasons) == set(one.placement.nodes) | set(cluster.job(one.job).nodes)


def test_a_lost_node_is_replaced_on_its_leaf_and_in_its_place() -> None:
    cluster = Cluster(without(nodes(12), "h1"), (job("a", 0, 3),))
    found = placed(cluster, "replace", a=3)["a"]
    assert found.nodes == ("h0", "h3", "h2")
    assert found.reasons["h3"] == "taken: on leaf0 with 2 of a, 0.01 failures a day"
    assert found.reasons["h1"] == "lost: it cannot be used"
    assert found.reasons["h0"] == "kept: a runs there"


def test_when_the_leaf_is_full_the_same_block_comes_next() -> None:
    cluster = Cluster(nodes(16), (job("a", 8, 4),))
    found = placed(cluster, a=5)["a"]
    assert found.taken == ("h12",)
    assert found.reasons["h12"] == "taken: in block1 with 4 of a, 0.01 failures a day"


def test_a_new_job_takes_the_leaf_that_fits_best() -> None:
    cluster = Cluster(without(nodes(12), "h4", "h5"), (job("a"),))
    found = placed(cluster, "start", a=2)["a"]
    assert found.nodes == ("h6", "h7")
    assert found.reasons["h6"].startswith("taken: leaf1 fits best")


def test_nodes_that_fail_often_are_taken_last() -> None:
    cluster = Cluster(with_rate(nodes(8), 0.5, "h3"), (job("a", 0, 3),))
    assert placed(cluster, a=4)["a"].taken == ("h4",)
    all_of_them = placed(cluster, a=8)["a"]
    assert all_of_them.taken[-1] == "h3"
    assert all_of_them.reasons["h3"] == "taken: nothing better is left, 0.5 failures a day is much"


def test_a_job_that_shrinks_gives_up_doubtful_nodes_then_stragglers() -> None:
    cluster = Cluster(with_rate(nodes(8), 0.5, "h2"), (job("a", 0, 5),))
    found = placed(cluster, a=3)["a"]
    assert found.nodes == ("h0", "h1", "h3")
    assert found.reasons["h2"] == "given up: it fails 0.5 times a day, more than 0.03"
    assert found.reasons["h4"] == "given up: fewest other nodes of the job are near it on leaf1"


def test_a_dropped_replica_is_the_one_that_was_hit() -> None:
    cluster = Cluster(without(nodes(8), "h2"), (job("a", 0, 6, nodes_per_replica=2),))
    found = placed(cluster, "drop_replica", a=4)["a"]
    assert found.nodes == ("h0", "h1", "h4", "h5")
    assert found.reasons["h3"] == "given up: its replica lost a node"


def test_what_one_job_gives_up_another_can_have() -> None:
    cluster = Cluster(nodes(8), (job("a", 0, 6), job("b", 6, 2)))
    found = placed(cluster, a=4, b=4)
    assert set(found["a"].given_up) == set(found["b"].taken) == {"h4", "h5"}
    assert found["b"].nodes == ("h6", "h7", "h4", "h5")


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_nodes_and_jobs_does_not_matter(order: int) -> None:
    jobs: tuple[Job, ...] = (job("a", 0, 3), job("b", 4, 2), job("c"))
    cluster = Cluster(nodes(16)[::order], jobs[::order])
    found = placed(cluster, a=6, b=4, c=3)
    assert found["a"].taken == ("h3", "h6", "h7")
    assert found["b"].taken == ("h10", "h11")
    assert found["c"].nodes == ("h12", "h13", "h14")


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(BadInput, match="9 nodes are asked for, and 8 can be used"):
        placed(Cluster(nodes(8), (job("a"),)), a=9)
