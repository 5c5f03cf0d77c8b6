"""A story runs the same each time, and what breaks in it slows what it should and nothing else."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lockstep.clock import NS_PER_S
from lockstep.sim.simulation import Operation, Simulation
from lockstep.sim.story import JobShape, Noise, Story
from tests.lockstep.sim.build import cluster, slow, story

NOISY = story(slow("nic:h1/eth0", 0.5, at_s=0.5), noise=Noise())
ONE_STEP_NS = 1  # steps begin before this: just the first


def operations(told: Story, until_s: float = 0.5, seed: int = 1) -> list[Operation]:
    return list(Simulation(told, seed).run_until(int(until_s * NS_PER_S)))


def first_wire(told: Story) -> np.ndarray:
    """Return how long the first operation was on each edge's wire, per channel and place."""
    return next(Simulation(told, 1).run_until(ONE_STEP_NS)).ring.wire


def test_same_seed_gives_the_same_operations_bit_for_bit() -> None:
    for one, other in zip(operations(NOISY, 1.0), operations(NOISY, 1.0), strict=True):
        assert (one.seq, one.bytes) == (other.seq, other.bytes)
        for name in ("enqueue", "start", "end"):
            assert_array_equal(getattr(one, name), getattr(other, name))
        assert_array_equal(one.ring.wire, other.ring.wire)


def test_another_seed_gives_other_operations() -> None:
    assert (operations(NOISY, seed=1)[0].end != operations(NOISY, seed=2)[0].end).any()


def test_every_step_and_operation_has_noise_of_its_own() -> None:
    found = operations(story(noise=Noise(), job=JobShape(compute_ms=50.0, allreduce_mb=(64, 64))))[:4]
    wires = [operation.ring.wire for operation in found]
    assert [(wires[0] != other).any() for other in wires[1:]] == [True] * 3


def test_story_goes_on_where_it_was_left() -> None:
    parts = Simulation(NOISY, 1)
    piecewise = [operation for tenth in range(1, 11) for operation in parts.run_until(tenth * NS_PER_S // 10)]
    whole = operations(NOISY, 1.0)
    assert [operation.seq for operation in piecewise] == [operation.seq for operation in whole]
    assert_array_equal(piecewise[-1].end, whole[-1].end)


def test_every_step_computes_and_then_reduces_its_buckets() -> None:
    steps = operations(story(), 0.2)
    assert [operation.seq for operation in steps] == list(range(len(steps)))
    assert [operation.bytes for operation in steps[:4]] == [64_000_000, 32_000_000, 64_000_000, 32_000_000]
    assert_allclose(steps[0].enqueue, 50e6)
    assert_allclose(steps[1].enqueue, steps[0].end)
    assert_allclose(steps[2].enqueue, steps[1].end + 50e6)


def test_operation_takes_what_its_ring_takes() -> None:
    """16 ranks, 2 channels: 30 steps with chunks of 2 MB, which take 160 us between hosts and 5 us of latency."""
    wire = first_wire(story())
    assert wire.max() == pytest.approx(30 * (64e6 / 32 * 8 / 100 + 5_000))
    assert set(np.round(np.unique(wire))) == {np.round(30 * 64e6 / 32 * 8 / 2400), np.round(wire.max())}


def test_nothing_that_is_still_to_come_ended_before_now() -> None:
    simulation = Simulation(NOISY, 1)
    list(simulation.run_until(NS_PER_S))
    now_ns = simulation.now_ns
    assert now_ns >= NS_PER_S
    assert min(operation.start.min() for operation in simulation.run_until(2 * NS_PER_S)) >= now_ns


def test_ranks_wait_for_each_other() -> None:
    for operation in operations(NOISY):
        assert (operation.enqueue <= operation.start).all()
        assert operation.end.min() > operation.start.max()


@pytest.mark.parametrize(("side", "directions"), [(None, ("tx", "rx")), ("tx", ("tx",)), ("rx", ("rx",))])
def test_slow_nic_slows_the_wires_on_its_slow_side(side: str | None, directions: tuple[str, ...]) -> None:
    told = story(slow("nic:h2/eth1", 0.25, side=side))
    rings = Simulation(told, 1).rings
    nic = 2 * 2 + 1
    through = {"tx": rings.tx_nic == nic, "rx": rings.rx_nic == nic}
    expected = rings.crosses & np.logical_or.reduce([through[direction] for direction in directions])
    grown = first_wire(told) > first_wire(story()) * 1.01
    assert_array_equal(grown, expected)
    assert grown.sum() == len(directions)
    assert_allclose(first_wire(told)[grown], 30 * (64e6 / 32 * 8 / 25 + 5_000))


def test_two_sides_of_a_nic_break_on_their_own() -> None:
    both = story(slow("nic:h0/eth0", 0.5, side="tx"), slow("nic:h0/eth0", 0.5, side="rx"))
    assert_array_equal(first_wire(both), first_wire(story(slow("nic:h0/eth0", 0.5))))


def test_healing_both_sides_at_once_heals_each() -> None:
    healed = story(slow("nic:h0/eth0", 0.5, side="tx"), slow("nic:h0/eth0", 1.0, at_s=0.0))
    assert_array_equal(first_wire(healed), first_wire(story()))


def test_later_turn_replaces_an_earlier_one() -> None:
    twice = story(slow("nic:h0/eth0", 0.5), slow("nic:h0/eth0", 0.25))
    assert_array_equal(first_wire(twice), first_wire(story(slow("nic:h0/eth0", 0.25))))


def test_turns_count_by_their_time_and_not_by_their_place() -> None:
    healed_later = story(slow("nic:h0/eth0", 1.0, at_s=0.2), slow("nic:h0/eth0", 0.5, at_s=0.0))
    found = [operation for operation in operations(healed_later) if operation.bytes == 64_000_000]
    assert_allclose(found[-1].ring.wire, first_wire(story()))
    assert found[0].ring.wire.max() > 1.5 * found[-1].ring.wire.max()


def test_fault_begins_in_its_time_and_healing_restores_everything() -> None:
    told = story(slow("nic:h1/eth0", 0.5, at_s=0.5), slow("nic:h1/eth0", 1.0, at_s=1.5))
    found = [operation for operation in operations(told, 2.5) if operation.bytes == 64_000_000]
    healthy, broken = first_wire(story()), first_wire(story(slow("nic:h1/eth0", 0.5)))
    begins_s = [operation.enqueue.min() / NS_PER_S for operation in found]
    # A step takes the state in which it begins, 50 ms before its first operation.
    expected = [broken if 0.5 <= begin - 0.05 < 1.5 else healthy for begin in begins_s]
    assert [step is broken for step in expected].count(True) > 5
    assert expected[0] is expected[-1] is healthy
    for operation, wire in zip(found, expected, strict=True):
        assert_allclose(operation.ring.wire, wire)


def test_slow_gpu_makes_the_others_wait_and_no_wire_longer() -> None:
    told = story(slow("gpu:h3/2", 0.5))
    slowed = next(Simulation(told, 1).run_until(ONE_STEP_NS))
    late = 3 * 4 + 2
    assert_allclose(np.delete(slowed.enqueue, late), 50e6)
    assert slowed.enqueue[late] == pytest.approx(100e6)
    assert_allclose(slowed.ring.wire, first_wire(story()))
    assert slowed.end.min() > 100e6


def test_gpu_can_heal_too() -> None:
    told = story(slow("gpu:h3/2", 0.5), slow("gpu:h3/2", 1.0))
    assert_allclose(next(Simulation(told, 1).run_until(ONE_STEP_NS)).enqueue, 50e6)


def test_gpus_that_share_a_nic_do_not_share_its_load() -> None:
    """One channel per NIC, so a NIC's whole rate belongs to the one edge that leaves through it."""
    one_nic = story(cluster=cluster(nics_per_host=1))
    assert first_wire(one_nic).max() == pytest.approx(30 * (64e6 / 16 * 8 / 100 + 5_000))
