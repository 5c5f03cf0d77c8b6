"""The micro-batches of a lost replica are shared out exactly, and the fullest of the others sets the pace."""

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.recovery.facts import Layout
from planner.recovery.shrinking import share_micro_batches, speed_rerouted, speed_without_replica


def test_everybody_who_is_left_is_told_how_many_he_does() -> None:
    share = share_micro_batches(Layout(stages=4, replicas=3, micro_batches=5))
    assert (share.each, share.most) == (5, 8)
    assert share.reason == "5 micro-batches of each step go to 2 replicas: 1 do 8 and 1 do 7"


def test_unknown_number_is_guessed_and_said_to_be() -> None:
    assert share_micro_batches(Layout(stages=2, replicas=2)).reason == (
        "8 micro-batches of each step go to 1 replicas: 1 do 16, if there are four for each stage"
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.integers(2, 16), st.integers(1, 64))
def test_pace_is_never_better_than_the_work_that_is_left_allows(stages: int, replicas: int, each: int) -> None:
    layout = Layout(stages=stages, replicas=replicas, micro_batches=each)
    share = share_micro_batches(layout)
    assert (replicas - 1) * share.most >= replicas * each > (replicas - 1) * (share.most - 1)
    assert 0 < speed_without_replica(layout, share) <= speed_rerouted(layout, share) <= 1
