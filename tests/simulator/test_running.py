"""Ranks wait for their partners and for nobody else: bytes add up, delays cascade, and pipelines bubble."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from simulator.faults import Fault
from simulator.operations import Operation
from simulator.scenario import Doing, JobShape, Layout, Scenario
from simulator.simulation import Simulation
from tests.simulator.build import LINE, TENSOR_THEN_DATA, cluster, moved_by, scenario, slow


def first_step(told: Scenario) -> list[Operation]:
    return list(Simulation(told, 1).run_until(1))


@pytest.mark.parametrize("algo", ["RING", "TREE"])
def test_bytes_sent_are_bytes_received_and_those_that_the_operation_needs(algo: str) -> None:
    job = JobShape(step=(Doing(do="AllReduce", mb=64, algo=algo),))
    (operation,) = first_step(scenario(job=job, cluster=cluster(gpus_per_host=1, nics_per_host=1)))
    moved = moved_by(operation)
    sent = np.bincount(moved.src_index, moved.bytes, 4)
    received = np.bincount(moved.dst_index, moved.bytes, 4)
    assert sent.sum() == received.sum() == pytest.approx(2 * 3 * 64e6, rel=1e-6)
    if algo == "RING":
        assert_allclose(sent, 2 * 3 / 4 * 64e6, rtol=1e-6)
        assert_allclose(received, sent)


def test_all_to_all_sends_to_everybody_else() -> None:
    job = JobShape(layout=Layout(ep=4), step=(Doing(do="AllToAll", mb=12, group="ep"),))
    send, recv = first_step(scenario(job=job))
    assert (send.func, recv.func) == ("Send", "Recv")
    assert send.bytes.sum() == recv.bytes.sum() == 16 * 3 * 3_000_000
    assert sorted(zip(send.index.tolist(), send.peer.tolist(), strict=True)) == sorted(
        zip(recv.peer.tolist(), recv.index.tolist(), strict=True)
    )


# Cascades.


def test_slow_nvlink_delays_its_own_tensor_group_alone() -> None:
    told = scenario("at 0 s fail nvlink:h2/1 to 2 %", job=TENSOR_THEN_DATA)
    tensor, _ = first_step(told)
    duration = (tensor.end - tensor.start)[np.argsort(tensor.rank)].reshape(4, 4)
    assert duration[2].min() > 3 * duration[[0, 1, 3]].max()


def test_slow_gpu_of_a_pipeline_delays_the_stages_after_it_and_a_slow_nic_one_direction() -> None:
    shape = cluster(gpus_per_host=1, nics_per_host=1)
    small, large = (
        JobShape(layout=Layout(pp=4), micro_batches=1, step=(Doing(do="pipeline", ms=20.0, backward_ms=20.0, mb=mb),))
        for mb in (1, 64)
    )
    healthy, slowed = (
        first_step(scenario(*faults, job=small, cluster=shape)) for faults in ((), (slow("gpu:h1/0", 0.5),))
    )
    later = [
        (operation.func, int(operation.rank[0]), float((operation.end - before.end)[0]))
        for before, operation in zip(healthy, slowed, strict=True)
        if operation.func == "Recv"
    ]
    delays = {(rank, number): delay for number, (_, rank, delay) in enumerate(later)}
    assert list(delays) == [(1, 0), (2, 1), (3, 2), (2, 3), (1, 4), (0, 5)]
    assert [round(delay / 1e6) for delay in delays.values()] == [0, 20, 20, 20, 20, 40]
    found = first_step(scenario(slow("nic:h2/eth0", 0.1, side="rx"), job=large, cluster=shape))
    wire = {
        (int(sent.rank[0]), int(sent.peer[0])): float(sent.transfers.wire[0])
        for sent in found
        if sent.func == "Send" and sent.transfers
    }
    assert wire[1, 2] > 5 * wire[1, 0]
    assert wire[1, 0] == wire[0, 1]


def test_slow_nic_slows_its_own_groups_and_shows_on_its_own_wires() -> None:
    """Only two of the four data-parallel groups go through the slow NIC."""
    _, data = first_step(scenario(slow("nic:h1/eth0", 0.25, side="tx"), job=TENSOR_THEN_DATA))
    moved = moved_by(data)
    slowest = moved.wire > 2 * np.median(moved.wire)
    assert set(moved.src[slowest].tolist()) == {4, 5}
    assert set(moved.tx_nic[slowest].tolist()) == {2}
    duration = (data.end - data.start)[np.argsort(data.rank)].reshape(4, 4)
    assert duration[:, :2].min() > 1.5 * duration[:, 2:].max()


@pytest.mark.parametrize(("what", "ranks"), [("pcie:h2/1 to 20 %", {9}), ("nic:h2/eth0 tx delayed 3 ms", {8, 9})])
def test_slow_pcie_and_delay_show_on_the_connections_that_pass_there(what: str, ranks: set[int]) -> None:
    moved, healthy = (
        moved_by(first_step(scenario(*lines, job=TENSOR_THEN_DATA))[1]) for lines in ((f"at 0 s fail {what}",), ())
    )
    grown = set(moved.src[moved.wire > 1.5 * healthy.wire].tolist())
    assert ranks <= grown <= ranks | {4, 5}  # and those that send to a slow PCIe


def test_slow_uplink_of_a_tree_is_slow_one_way_and_a_starved_host_in_its_own_flushes_and_wires() -> None:
    """What h3 sends up is slow; what comes down to it is not."""
    job = JobShape(step=(Doing(do="AllReduce", mb=64, algo="TREE"),))
    (operation,) = first_step(scenario(slow("nic:h3/eth0", 0.1, side="tx"), cluster=LINE, job=job))
    moved = moved_by(operation)
    assert set(moved.src[moved.wire > 3 * np.median(moved.wire)].tolist()) == {3}
    job = JobShape(compute_ms=50.0, allreduce_mb=(64,))
    moved = moved_by(first_step(scenario("at 0 s fail host:h2 starved to 20 %", cluster=LINE, job=job))[0])
    assert set(moved.dst[moved.flush > 1e6].tolist()) == {2}
    assert set(moved.src[moved.wire > 1.05 * np.median(moved.wire)].tolist()) == {2}


# Pipelines.

TWO_STAGES = cluster(hosts=2, gpus_per_host=1, nics_per_host=1)


def forwards(*faults: Fault) -> list[Operation]:
    """Return what the first of two stages sends in a step of three batches."""
    doing = Doing(do="pipeline", ms=20.0, backward_ms=20.0, mb=64)
    job = JobShape(layout=Layout(pp=2), micro_batches=3, step=(doing,))
    found = first_step(scenario(*faults, job=job, cluster=TWO_STAGES))
    return [operation for operation in found if operation.func == "Send" and 0 in operation.rank]


def test_sends_of_a_pipeline_follow_each_other_while_data_are_under_way() -> None:
    first, second, *_ = forwards(slow("nic:h0/eth0", 0.01, side="tx"))
    assert (first.end - first.start)[0] > 0.4e9
    begins = [float(operation.start[operation.rank == 0][0]) for operation in (first, second)]
    assert begins[1] - begins[0] == pytest.approx(20e6, rel=0.05)
    sent = forwards()
    assert [int(operation.seq[operation.rank == 0][0]) for operation in sent] == [0, 1, 2]
    enqueued = [float(operation.enqueue[operation.rank == 0][0]) for operation in sent]
    assert enqueued == sorted(set(enqueued))


@pytest.mark.parametrize(("stages", "batches"), [(4, 4), (8, 3)])
def test_pipeline_bubble_is_that_of_1f1b(stages: int, batches: int) -> None:
    """(P - 1) / (M + P - 1) of the time is idle when nothing is spent on communication."""
    shape = cluster(hosts=8, gpus_per_host=1, nics_per_host=1, nvlink_gbps=1e9, nic_gbps=1e9, hop_latency_us=0.0)
    doing = Doing(do="pipeline", ms=20.0, backward_ms=40.0, mb=0.000001)
    job = JobShape(layout=Layout(pp=stages), micro_batches=batches, step=(doing,))
    simulation = Simulation(scenario(job=job, cluster=shape), 1)
    list(simulation.run_until(1))
    ((_, _, _, begin, end),) = simulation.take_steps()
    whole = float(end.max() - begin.min())
    assert 1 - batches * 60e6 / whole == pytest.approx((stages - 1) / (batches + stages - 1), abs=0.01)
