"""What is looked up at an event equals what solving anew would find, for every single event there can be."""

from dataclasses import replace

import pytest
from hypothesis import given

from lockstep.errors import BadInput
from planner.allocation.allocate import finish, solve_now
from planner.allocation.cluster import Cluster, Event, apply, list_events
from planner.allocation.foresight import foresee
from tests.planner.allocation.clusters import clusters, job, nodes, without

CLUSTER = Cluster(nodes(12), (job("a", 0, 5), job("b", 5, 4, weight=2.0)), (job("c", weight=5.0),))


@given(clusters())
def test_every_entry_equals_solving_anew(cluster: Cluster) -> None:
    table = foresee(cluster)
    for event in list_events(cluster):
        seen, after = table.lookup(event), apply(cluster, event)
        try:
            anew = solve_now(after)
        except BadInput:
            assert seen.solution is None
            continue
        assert seen.solution is not None
        assert anew.solution is not None
        assert seen.running_s == anew.running_s
        assert seen.solution.value == pytest.approx(anew.solution.value, rel=1e-9, abs=1e-6)
        assert seen.solution.counts.sum() <= len(after.usable)
        assert [one.job.id for one in seen.choices] == [one.id for one in after.jobs]
        assert [one.state for one in seen.choices] == [one.state for one in anew.choices]


def test_jobs_that_could_not_go_on_and_events_that_cannot_happen_are_refused() -> None:
    tight = Cluster(nodes(6), (job("a", 0, 6, least=6, may_stop=False),))
    seen = foresee(tight).lookup(Event("node_lost", "h2"))
    assert seen.solution is None
    with pytest.raises(BadInput, match="more than the 5 nodes that can be used"):
        finish(apply(tight, Event("node_lost", "h2")), seen)
    table = foresee(replace(CLUSTER, nodes=without(CLUSTER.nodes, "h11")))
    with pytest.raises(BadInput, match="node_lost:h11 cannot be the next event"):
        table.lookup(Event("node_lost", "h11"))
