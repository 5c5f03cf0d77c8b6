"""Groups share the ranks; channels visit every member once and leave and enter hosts by the NICs of their GPUs."""

from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.job import (
    ChannelTable,
    Collective,
    Compute,
    Exchange,
    Handover,
    Placement,
    Wave,
    build_channel_table,
    one_forward_one_backward,
    place_ranks,
    plan_step,
    swap_order,
)
from simulator.network import Communicators, Network
from simulator.scenario import ClusterShape, Doing, GroupKind, JobShape, Layout, build_topology
from tests.simulator.build import cluster, scenario

SHAPES = [
    cluster(),
    cluster(hosts=2, gpus_per_host=1, nics_per_host=1),
    cluster(hosts=2, gpus_per_host=2, nics_per_host=2),
    cluster(hosts=4, gpus_per_host=8, nics_per_host=8),
    cluster(hosts=8, gpus_per_host=8, nics_per_host=4),
    cluster(hosts=6, gpus_per_host=8, nics_per_host=1),
]

every_shape = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: f"{shape.hosts} hosts {shape.gpus_per_host} GPUs {shape.nics_per_host} NICs"
)


def placed(shape: ClusterShape) -> Placement:
    return place_ranks(scenario(cluster=shape))


def world_channels(shape: ClusterShape) -> ChannelTable:
    placement = placed(shape)
    return build_channel_table(placement, placement.groups("world"), shape.nics_per_host)


@every_shape
def test_every_rank_is_once_in_each_channel_which_leaves_each_host_by_the_nics_of_its_gpus(
    shape: ClusterShape,
) -> None:
    table, host_of = world_channels(shape), placed(shape).host_of
    count, ports = shape.hosts * shape.gpus_per_host, shape.hosts * shape.nics_per_host
    assert table.rank.shape == (shape.nics_per_host, count)
    assert all(sorted(ring) == list(range(count)) for ring in table.rank.tolist())
    following = np.roll(table.rank, -1, axis=1)
    assert (table.crosses == (host_of[table.rank] != host_of[following])).all()
    for ring, crosses in zip(table.rank, table.crosses, strict=True):
        assert sorted(host_of[ring[crosses]]) == list(range(shape.hosts))
    gpus = [gpu for host in build_topology(shape).hosts for gpu in host.gpus]
    nics = [f"eth{number}" for number in range(shape.nics_per_host)] * shape.hosts
    for ranks, numbers in ((table.rank, table.tx_nic), (following, table.rx_nic)):
        for rank, nic in zip(ranks[table.crosses], numbers[table.crosses], strict=True):
            assert gpus[rank].nics == (nics[nic],)
            assert rank // shape.gpus_per_host == nic // shape.nics_per_host
        assert np.bincount(numbers[table.crosses], minlength=ports).tolist() == [1] * ports  # loaded alike


@pytest.mark.parametrize(("gpus", "nics"), [(8, 4), (4, 2), (2, 1)])
def test_channel_enters_and_leaves_a_host_through_its_own_nic(gpus: int, nics: int) -> None:
    """With several GPUs to a NIC; with one each, a channel leaves by the NIC before its own."""
    table = world_channels(cluster(gpus_per_host=gpus, nics_per_host=nics))
    channel = np.nonzero(table.crosses)[0]
    assert (table.tx_nic[table.crosses] % nics == channel).all()
    assert (table.rx_nic[table.crosses] % nics == channel).all()


def test_channels_stay_on_their_plane_and_large_worlds_are_laid_out_like_small_ones() -> None:
    table = world_channels(cluster(hosts=4, gpus_per_host=2, nics_per_host=2, fabric="dual_plane"))
    assert (table.tx_nic % 2 == table.rx_nic % 2).all()
    assert set((table.tx_nic[table.crosses] % 2).tolist()) == {0, 1}
    shape = cluster(hosts=128, gpus_per_host=8, nics_per_host=8, hosts_per_leaf=16)
    placement = placed(shape)
    comms = Communicators("world", placement, Network(build_topology(shape), 8), attempt=0)
    inside = comms.channel_table.index.reshape(8, 128, 8) % 8
    assert (inside == inside[:, :1]).all()
    assert inside[:, 0, 0].tolist() == list(range(8))


LAYOUTS = [Layout(tp=4), Layout(tp=2, pp=2), Layout(tp=2, cp=2, pp=2), Layout(ep=4), Layout(tp=2, ep=2, pp=2)]


def test_groups_have_every_rank_once_count_tp_first_and_pp_last_as_megatron_does_and_meet_in_one_rank() -> None:
    for layout, kind in product(LAYOUTS, get_args(GroupKind)):
        groups = place_ranks(scenario(job=JobShape(layout=layout))).groups(kind)
        assert sorted(groups.ravel().tolist()) == list(range(16))
    placement = place_ranks(scenario(job=JobShape(layout=Layout(tp=2, cp=2, pp=2))))
    assert (placement.layout, placement.groups("tp")[0].tolist()) == ((2, 2, 2, 2, 1), [0, 1])
    assert (placement.groups("cp")[0].tolist(), placement.groups("dp")[0].tolist()) == ([0, 2], [0, 4])
    assert (placement.groups("pp")[0].tolist(), placement.stage_of().tolist()) == ([0, 8], [0] * 8 + [1] * 8)
    assert placement.replica_of().tolist() == ([0] * 4 + [1] * 4) * 2
    placement = place_ranks(scenario(job=JobShape(layout=Layout(tp=4))))
    for tensor in placement.groups("tp"):
        assert all(len(np.intersect1d(tensor, data)) == 1 for data in placement.groups("dp"))


def test_fewer_hosts_have_fewer_replicas_and_a_spare_brings_its_own_nics() -> None:
    told = scenario(job=JobShape(layout=Layout(tp=4)))
    shrunk = place_ranks(told, np.array([0, 1, 3]))
    assert (shrunk.ranks, shrunk.layout) == (12, (4, 1, 3, 1, 1))
    assert shrunk.host_of.tolist() == [0] * 4 + [1] * 4 + [3] * 4
    told = scenario(cluster=cluster(hosts=3, spares=1))
    moved = place_ranks(told, np.array([0, 3, 2]))
    assert moved.nic_of.tolist() == [0, 0, 1, 1, 6, 6, 7, 7, 4, 4, 5, 5]
    table = build_channel_table(moved, moved.groups("world"), 2)
    assert set(table.tx_nic[table.crosses].tolist()) == {0, 1, 4, 5, 6, 7}


def planned(*doings: Doing, layout: Layout, micro_batches: int = 4) -> tuple[list[Wave], Placement]:
    job = JobShape(layout=layout, step=doings, micro_batches=micro_batches)
    placement = place_ranks(scenario(job=job))
    return plan_step(job.steps, job, placement), placement


@given(st.integers(1, 8), st.integers(1, 12))
def test_1f1b_does_every_batch_once_each_way_in_order_and_keeps_few_open(stages: int, batches: int) -> None:
    rounds = one_forward_one_backward(stages, batches)
    done = [task for tasks in rounds for task in tasks]
    assert len(done) == len(set(done)) == 2 * stages * batches
    when = {task: number for number, tasks in enumerate(rounds) for task in tasks}
    for stage in range(stages):
        for batch in range(batches):
            if stage:
                assert when[stage, batch, True] > when[stage - 1, batch, True]
                assert when[stage - 1, batch, False] > when[stage, batch, False]
            assert when[stage, batch, False] > when[stage, batch, True]
    opened = [0] * stages
    for tasks in rounds:
        for stage, _, forward in tasks:
            opened[stage] += 1 if forward else -1
            assert opened[stage] <= stages - stage
    assert opened == [0] * stages
    assert len(rounds) == 2 * (stages - 1) + 2 * batches


def test_collectives_run_in_all_groups_of_a_kind_and_an_exchange_is_one() -> None:
    waves, _ = planned(Doing(do="AllReduce", mb=2, group="tp", times=2), layout=Layout(tp=4))
    assert [type(wave) for wave in waves] == [Collective, Collective]
    assert isinstance(waves[0], Collective)
    assert (waves[0].kind, waves[0].groups.tolist(), waves[0].bytes) == ("tp", [0, 1, 2, 3], 2_000_000)
    assert planned(Doing(do="AllReduce", mb=2, group="cp"), layout=Layout(tp=4))[0] == []
    (wave,), _ = planned(Doing(do="AllToAll", mb=3, group="ep"), layout=Layout(ep=4))
    assert wave == Exchange("ep", 3_000_000)


def test_pipeline_computes_hands_over_and_reduces() -> None:
    doing = Doing(do="pipeline", ms=10.0, backward_ms=20.0, first_ms=1.0, last_ms=5.0, mb=4, tp_mb=2)
    waves, placement = planned(doing, layout=Layout(tp=2, pp=4), micro_batches=2)
    computing = [wave for wave in waves if isinstance(wave, Compute)]
    spent = np.zeros(placement.ranks)
    for wave in computing:
        spent[wave.ranks] += wave.ns
    by_stage = [set(spent[placement.stage_of() == stage].tolist()) for stage in range(4)]
    assert by_stage == [{2 * 32e6}, {2 * 30e6}, {2 * 30e6}, {2 * 40e6}]
    moves = [wave for wave in waves if isinstance(wave, Handover)]
    pairs = [pair for wave in moves for pair in zip(wave.src_stage.tolist(), wave.dst_stage.tolist(), strict=True)]
    chains = len(placement.groups("pp"))
    assert {pair: pairs.count(pair) for pair in pairs} == dict.fromkeys(
        [(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)], 2 * chains
    )
    reduced = [wave for wave in waves if isinstance(wave, Collective)]
    assert len(reduced) == len(computing)


def test_rank_with_partners_in_both_communicators_swaps_them_alone_and_without_them_nobody() -> None:
    doings = (Doing(do="AllReduce", mb=1, group="tp"), Doing(do="AllReduce", mb=1, group="world"))
    waves, placement = planned(*doings, layout=Layout(tp=4))
    assert swap_order(5, waves, placement) == {5: waves[0]}
    waves, placement = planned(Doing(do="AllReduce", mb=1, times=3), layout=Layout())
    assert swap_order(5, waves, placement) == {}


def test_where_groups_cross_in_one_rank_two_of_four_swap_them() -> None:
    """Otherwise the swap would only delay: nobody whom the rank waits for waits for the rank."""
    doings = (Doing(do="AllReduce", mb=1, group="tp", times=3), Doing(do="ReduceScatter", mb=1, group="dp"))
    waves, placement = planned(*doings, layout=Layout(tp=4))
    misordered = swap_order(5, waves, placement)
    assert list(misordered) == [5, 10]
    assert all(left is waves[2] for left in misordered.values())
    tensor = {rank: set(row.tolist()) for row in placement.groups("tp") for rank in row.tolist()}
    data = {rank: set(row.tolist()) for row in placement.groups("dp") for rank in row.tolist()}
    (one,), (other,) = tensor[5] & data[10], data[5] & tensor[10]
    assert len({5, one, 10, other}) == 4
