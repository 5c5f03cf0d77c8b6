"""What happened between two looks is named, and the first look has nothing to compare with."""

from planner.recovery.allocation.events import Event
from planner.recovery.triggers import Seen, find_triggers, say


def seen(nodes: str, jobs: str) -> Seen:
    return Seen(frozenset(nodes.split()), frozenset(jobs.split()))


def test_first_look_has_no_triggers() -> None:
    assert find_triggers(None, seen("h0 h1", "a")) == []


def test_nodes_and_jobs_that_came_and_went_are_named() -> None:
    assert find_triggers(seen("h0 h1", "a b"), seen("h1 h2", "b c")) == [
        Event("node_joins", "h2"),
        Event("node_lost", "h0"),
        Event("job_starts", "c"),
        Event("job_ends", "a"),
    ]


def test_same_look_again_has_none() -> None:
    assert find_triggers(seen("h0", "a"), seen("h0", "a")) == []


def test_many_are_not_all_listed() -> None:
    events = [Event("node_joins", f"h{number}") for number in range(6)]
    assert say(events) == "node h0 joined, node h1 joined, node h2 joined, node h3 joined and 2 more"
    assert say([]) == "the planner has looked at all jobs"
