"""Events change a cluster in one place, and what cannot happen is refused in a sentence."""

import pytest

from lockstep.errors import BadInput
from planner.recovery.allocation.events import Event, apply, list_events, parse_event
from planner.recovery.allocation.jobs import Cluster
from tests.planner.recovery.allocation.clusters import job, nodes, without

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
