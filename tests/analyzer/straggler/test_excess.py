"""Own time is compared before the same operation, and with nobody who does something else."""

import dataclasses

import numpy as np
import pytest

from analyzer.straggler.excess import Excess, measure_excess
from analyzer.straggler.kernels import Device, NumericOptions, choose_kernels, find_device
from analyzer.straggler.operations import Operations
from analyzer.straggler.roles import Roles, find_roles
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


def test_groups_that_lie_alike_are_compared_and_those_that_count_differently_are_not() -> None:
    inner = [[0, 1, 2, 3], [4, 5, 6, 7]]
    job = Job(8, [Act(3_000.0, inner), Act(200.0, inner)], noise=0.0)
    rows = job.play()
    ahead = dataclasses.replace(rows, seq=rows.seq + (rows.process >= 4))  # its operation 1 is the others' 0
    excess = measure_excess(ahead, False, 8, None)
    assert excess is not None
    assert np.abs(excess.own).max() < 1e-6
    assert excess.peers.max() == 3
    excess = measure_excess(Job(8, tensor_and_data(8, tp=2)).play(), False, 8, None)
    assert excess is not None
    assert excess.peers.min() == 7
    assert measure_excess(Operations(), False, 4, None) is None
    alone = Job(2, [Act(10.0, [[0], [1]])]).play()
    apart = dataclasses.replace(alone, seq=alone.seq + 100 * alone.process)
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


Row = tuple[int, int, int, int, bool]  # process, communicator, rank, peer, whether it sends


def roles(rows: list[Row], processes: int) -> Roles:
    process, comm, rank, peer, sends = (np.array(column) for column in zip(*rows, strict=True))
    return find_roles(process, comm.astype(np.uint64), rank, peer, sends, processes)


def collective(comm: int, members: list[int]) -> list[Row]:
    return [(process, comm, rank, -1, False) for rank, process in enumerate(members)]


def moved(comm: int, members: list[int], src: int, dst: int) -> list[Row]:
    return [(members[src], comm, src, dst, True), (members[dst], comm, dst, src, False)]


def chain(comm: int, members: list[int]) -> list[Row]:
    """Return what goes down a pipeline and back up, eight times."""
    ways = [(index, index + 1) for index in range(len(members) - 1)]
    once = [row for src, dst in ways for row in moved(comm, members, src, dst) + moved(comm, members, dst, src)]
    return once * 8


def test_who_hands_over_down_a_chain_is_a_stage_and_who_exchanges_is_not() -> None:
    found = roles(chain(1, [0, 2, 4, 6]) + chain(2, [1, 3, 5, 7]), 8).role_of
    assert [found[first] == found[first + 1] for first in (0, 2, 4, 6)] == [True] * 4
    assert len(set(found.tolist())) == 4
    members = [0, 1, 2, 3]
    ring = [row for index in members for row in moved(1, members, index, (index + 1) % 4)]
    exchange = [row for src in members for dst in members if src != dst for row in moved(1, members, src, dst)]
    assert set(roles(ring * 8, 4).role_of.tolist()) == {0}
    assert set(roles(exchange * 8, 4).role_of.tolist()) == {0}
    # The last stage of an interleaved pipeline hands over to the first one, but seldom.
    rows = [row for index in range(3) for row in moved(1, members, index, index + 1)] * 16
    assert len(set(roles(rows + moved(1, members, 3, 0) * 4, 4).role_of.tolist())) == 4
    without_sends = roles(collective(1, members), 4)
    assert set(without_sends.role_of.tolist()) == {0}
    assert not without_sends.is_chain.any()


def test_communicators_whose_members_lie_alike_are_a_family() -> None:
    rows = collective(1, [0, 1]) + collective(2, [2, 3]) + collective(3, [0, 2]) + collective(4, [1, 3])
    tensor, other_tensor, data, other_data = roles(rows, 4).family_of[::2].tolist()
    assert tensor == other_tensor
    assert data == other_data
    assert tensor != data
