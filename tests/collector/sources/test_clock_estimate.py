"""The truth lies within the bound, whatever way packets take; and everybody knows whom to ask."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collector.sources.clock_estimate import (
    EXACT,
    Estimate,
    Exchange,
    KernelClock,
    choose_elders,
    decode,
    estimate_offset,
    find_steering,
    has_hardware_clock,
    read_kernel_clock,
)
from lockstep.fabrics import leaf_spine
from lockstep.topology import Node, Topology
from tests.builders import SECOND, T0

DELAY = st.integers(0, 10**9)


def exchange(offset_ns: int, there_ns: int, thinking_ns: int, back_ns: int, asked_ns: int = T0) -> Exchange:
    """Return what is seen when our clock is ahead by `offset_ns`."""
    received_ns = asked_ns - offset_ns + there_ns
    answered_ns = received_ns + thinking_ns
    return Exchange(asked_ns, received_ns, answered_ns, answered_ns + offset_ns + back_ns)


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12), st.lists(st.tuples(DELAY, DELAY, DELAY), min_size=1, max_size=8))
@example(0, [(1, 0, 0)])  # the truth at the very end of an odd interval
def test_truth_is_always_within_the_bound_and_the_bound_at_most_half_the_shortest_round_trip(
    offset_ns: int, ways: list[tuple[int, int, int]]
) -> None:
    found = estimate_offset(exchange(offset_ns, *way, asked_ns=T0 + n) for n, way in enumerate(ways))
    assert found is not None
    assert abs(found.offset_ns - offset_ns) <= found.error_ns
    assert found.error_ns <= min(there + back + 1 for there, _, back in ways) // 2


def test_paths_that_were_quick_in_different_questions_tighten_the_bound_together() -> None:
    burst = [exchange(0, there_ns=10, thinking_ns=5, back_ns=90), exchange(0, there_ns=90, thinking_ns=5, back_ns=10)]
    assert estimate_offset(burst) == Estimate(0, 10)  # half of the round trip alone would be 50


def test_no_answer_is_no_estimate() -> None:
    assert estimate_offset([]) is None


def test_clock_that_was_set_during_a_burst_gives_no_estimate() -> None:
    assert estimate_offset([exchange(0, 10, 5, 10), exchange(10**9, 10, 5, 10)]) is None


def test_offsets_and_errors_add_up_over_a_third_host() -> None:
    assert Estimate(5, 2).plus(Estimate(-7, 3)) == Estimate(-2, 5)
    assert Estimate(5, 2).plus(EXACT) == Estimate(5, 2)


def test_what_is_known_grows_vague_with_the_drift_of_two_free_clocks() -> None:
    assert Estimate(5, 2).aged(SECOND) == Estimate(5, 200_002)
    assert Estimate(5, 2).aged(-SECOND) == Estimate(5, 2)


def test_reference_is_asked_first_and_the_first_of_the_leaf_instead_of_it() -> None:
    topology = leaf_spine(hosts=6, nics_per_host=1, leaves=2, spines=1)
    assert {host.id: choose_elders(topology, host.id, "h0") for host in topology.hosts} == {
        "h0": [],
        "h1": ["h0"],
        "h2": ["h0"],
        "h3": ["h0"],
        "h4": ["h0", "h3"],
        "h5": ["h0", "h3"],
    }


def test_host_without_a_leaf_asks_the_reference_alone() -> None:
    topology = Topology(routing="ecmp", nodes=(Node(id="a", kind="host"), Node(id="b", kind="host")), links=())
    assert choose_elders(topology, "b", "a") == ["a"]


def test_kernel_s_word_is_decoded_in_its_own_units() -> None:
    assert decode(0x2001, -1_500, 16) == KernelClock(True, -1_500, 16_000)
    assert decode(0x0001, -1_500, 16) == KernelClock(True, -1_500_000, 16_000)
    assert not decode(0x0041, 0, 16_000_000).is_synchronised
    assert KernelClock(True, -1_500, 16_000).estimate == Estimate(1_500, 16_000)  # what must still be taken off


def test_this_kernel_reports_the_state_of_its_clock() -> None:
    assert 0 <= read_kernel_clock().max_error_ns <= 16 * SECOND * 2


@pytest.mark.parametrize(
    ("device", "process", "steered"),
    [(True, "phc2sys", "ptp"), (True, "chronyd", "ntp"), (False, "phc2sys", "ntp"), (False, "", "ntp")],
)
def test_ptp_needs_a_hardware_clock_and_its_daemon(tmp_path: Path, device: bool, process: str, steered: str) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc/12").mkdir(parents=True)
    (tmp_path / "proc/13").mkdir()  # a process that has just ended has no name
    if device:
        (tmp_path / "dev/ptp0").touch()
    if process:
        (tmp_path / "proc/12/comm").write_text(f"{process}\n")
    assert find_steering(tmp_path) == steered
    assert has_hardware_clock(tmp_path) is device
