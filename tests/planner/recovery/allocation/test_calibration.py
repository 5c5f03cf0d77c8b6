"""Hints win, what was seen comes next, and a model that goes through it fills the rest; each figure says which."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.recovery.allocation.calibration import Known, Run, find_pace, find_rates, in_gpus
from planner.recovery.allocation.megatron import Transformer
from planner.recovery.facts import Layout

S = 1_000_000_000


def run(nodes: int, *per_s: float, since_s: int = 0, gpus_each: int = 8) -> Run:
    """Return an attempt with pieces of one second each."""
    begin_ns = (since_s + np.arange(len(per_s))) * S
    return Run(nodes, nodes * gpus_each, begin_ns, begin_ns + S, np.array(per_s))


def test_most_nodes_on_which_a_job_was_seen_are_worth_its_gpus() -> None:
    found = find_rates([run(8, 2.0, 2.0, 9.0), run(6, 1.6, 1.6, 1.6)], [], Known(), held=6, gpus=48)
    assert found.by_nodes[8] == 64.0
    assert found.by_nodes[6] == pytest.approx(64 * 0.8)
    assert found.seen == {6, 8}
    assert not found.is_told


def test_counts_that_were_not_seen_follow_the_model_through_those_that_were() -> None:
    found = find_rates([run(8, 2.0, 2.0, 2.0), run(4, 1.2, 1.2, 1.2)], [], Known(), held=8, gpus=64)
    assert found.by_nodes[4] == pytest.approx(64 * 0.6)
    assert found.by_nodes[2] == pytest.approx(64 * 0.3), "in proportion to the nearest that was seen"
    assert found.by_nodes[4] < found.by_nodes[6] < found.by_nodes[8]
    assert found.reason == (
        "measured on 4, 8 nodes, proportion to the nodes for 1-3, 5-7 nodes, bent to go through it"
    )


def test_hints_win_and_stay_in_their_unit() -> None:
    found = find_rates([run(8, 2.0, 2.0, 2.0)], [], Known({8: 100.0, 7: 90.0}), held=8, gpus=64)
    assert (found.by_nodes, found.is_told) == ({8: 100.0, 7: 90.0}, True)
    assert found.reason == "told by the settings for 7, 8 nodes"


def test_steps_within_an_incident_say_nothing() -> None:
    slow = run(8, 2.0, 2.0, 0.5, 0.5, 2.0, since_s=10)
    assert [sample.per_s for sample in find_pace(slow, [(12 * S, 14 * S)])] == [2.0, 2.0, 2.0]
    only_sick = find_rates([slow], [(0, 100 * S)], Known(), held=8, gpus=64)
    assert only_sick.by_nodes == {}
    assert only_sick.reason == "nothing is known of its work by nodes"


def test_layout_gives_whole_replicas_and_their_bubble() -> None:
    layout = Layout(tensor=8, stages=2, replicas=4, micro_batches=8)
    found = find_rates([run(8, 1.0, 1.0, 1.0)], [], Known(layout=layout), held=8, gpus=64)
    assert found.by_nodes[6] == pytest.approx(64 * 9 / 12), "32 micro-batches over 3 replicas: 11 and the bubble of 1"
    assert found.by_nodes[7] == found.by_nodes[6], "half a replica does nothing"
    assert 1 not in found.by_nodes
    assert "the shape of a pipeline of 2 stages for 2-7 nodes" in found.reason


def test_without_anything_seen_a_model_of_the_job_stands_alone() -> None:
    layout = Layout(tensor=8, replicas=4, micro_batches=4)
    found = find_rates([], [], Known(layout=layout), held=4, gpus=32)
    assert found.by_nodes[4] == 32.0
    assert found.seen == frozenset()
    assert found.reason.startswith("nothing was seen of its pace: the shape of a pipeline of 1 stages for 1-4 nodes")


def test_transformer_of_known_size_is_modelled_and_bent_to_what_was_seen() -> None:
    seven_b = Transformer(parameters=7e9, layers=32, hidden=4096, sequence=4096, global_batch=256)
    found = find_rates([run(4, 0.5, 0.5, 0.5)], [], Known(transformer=seven_b), held=4, gpus=32)
    assert found.by_nodes[4] == 32.0
    assert 16.0 < found.by_nodes[2] < 20.0, "less than half of the communication"
    assert "the model of a transformer of its size" in found.reason


def test_job_of_which_nothing_is_known_has_no_table() -> None:
    assert find_rates([], [], Known(), held=8, gpus=64).by_nodes == {}


def test_table_of_another_unit_is_brought_to_gpus() -> None:
    assert in_gpus({2: 3.0, 4: 5.0}, held=4, gpus=32) == {2: 19.2, 4: 32.0}
    assert in_gpus({2: 3.0}, held=4, gpus=32) == {2: 3.0}, (
        "what it holds is not in its table: nothing to compare with"
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 12), st.floats(0.01, 100.0), st.integers(1, 8))
def test_unit_of_the_steps_does_not_matter(most: int, pace: float, gpus_each: int) -> None:
    seen = [run(most, *[pace] * 3, gpus_each=gpus_each), run(1, *[pace / most] * 3, gpus_each=gpus_each)]
    found = find_rates(seen, [], Known(), held=most, gpus=most * gpus_each)
    assert found.by_nodes[most] == pytest.approx(most * gpus_each)
    assert found.by_nodes[1] == pytest.approx(gpus_each)
