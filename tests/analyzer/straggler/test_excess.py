"""Own time is compared before the same operation, and with nobody who does something else."""

import dataclasses

import numpy as np
import pytest

from analyzer.straggler.excess import Excess, measure_excess
from analyzer.straggler.kernels import Device, NumericOptions, choose_kernels, find_device
from analyzer.straggler.reading import Operations
from tests.analyzer.straggler.job import MS, Act, Job, tensor_and_data, world


def test_own_time_beyond_that_of_peers_is_a_share_of_the_time() -> None:
    job = Job(8, world(8), noise=0.0, gpu=lambda step, act, rank: 60.0 if rank == 3 and act == 0 else 0.0)
    excess = measure_excess(job.play(), False, 8, None)
    assert excess is not None
    # A step is 160 ms of compute, 60 of waiting for it included, and three operations of 20 ms with 0.5 ms between.
    assert excess.own.sum(axis=1) == pytest.approx(np.where(np.arange(8) == 3, 60 / 221, 0.0), abs=1e-3)
    assert excess.waits.sum(axis=1) == pytest.approx(excess.own.sum(axis=1), abs=1e-3)
    assert excess.peers.tolist() == [7] * 8
    assert excess.spread_over[3] == pytest.approx(6, abs=0.1)  # once in each of six steps


def test_communicators_that_count_differently_are_not_compared() -> None:
    inner = [[0, 1, 2, 3], [4, 5, 6, 7]]
    job = Job(8, [Act(3_000.0, inner), Act(200.0, inner)], noise=0.0)
    rows = job.play()
    ahead = dataclasses.replace(rows, turn=rows.turn + (rows.process >= 4))  # its operation 1 is the others' 0
    excess = measure_excess(ahead, False, 8, None)
    assert excess is not None
    assert np.abs(excess.own).max() < 1e-6
    assert excess.peers.max() == 3


def test_groups_that_lie_alike_are_compared_with_each_other() -> None:
    excess = measure_excess(Job(8, tensor_and_data(8, tp=2)).play(), False, 8, None)
    assert excess is not None
    assert excess.peers.min() == 7


def test_with_nobody_to_compare_there_is_no_excess() -> None:
    assert measure_excess(Operations(), False, 4, None) is None
    alone = Job(2, [Act(10.0, [[0], [1]])]).play()
    apart = dataclasses.replace(alone, turn=alone.turn + 100 * alone.process)
    assert measure_excess(apart, False, 2, None) is None


def test_stretches_are_about_a_step_where_steps_are_known() -> None:
    rows = Job(8, world(8)).play()
    unknown, known = (measure_excess(rows, False, 8, period_ns) for period_ns in (None, 161 * MS))
    assert unknown is not None
    assert known is not None
    assert (unknown.own.shape, known.own.shape) == ((8, 3), (8, 6))


DEVICES: list[Device] = ["numpy", "cpu", "cuda"] if find_device() else ["numpy", "cpu"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("are_sums", [False, True])
def test_neither_device_nor_order_of_rows_shows_in_any_figure(device: Device, are_sums: bool) -> None:
    rows = Job(16, tensor_and_data(16, tp=4), seed=3).play()
    kernels = choose_kernels(len(rows), NumericOptions(device=device, fewest_rows=0))
    expected = measure_excess(rows, are_sums, 16, None)
    shuffled = rows.take(np.random.default_rng(5).permutation(len(rows)))
    found = measure_excess(shuffled, are_sums, 16, None, kernels)
    assert expected is not None
    assert found is not None
    for each in dataclasses.fields(Excess):
        assert np.array_equal(getattr(found, each.name), getattr(expected, each.name), equal_nan=True), each.name
