"""A scenario runs the same each time, what breaks comes and goes in its time, and attempts follow each other."""

from dataclasses import fields

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lockstep.clock import NS_PER_S
from simulator.operations import Operation, Transfers
from simulator.pairs import NEVER, Times
from simulator.scenario import Doing, JobShape, Layout, Noise, Scenario
from simulator.simulation import Simulation
from tests.simulator.build import cluster, moved_by, scenario, slow
from tests.tiers import long_except

MIXED = JobShape(
    layout=Layout(tp=2, pp=2),
    micro_batches=3,
    experts=0.3,
    sequences=0.2,
    step=(
        Doing(do="pipeline", ms=5.0, backward_ms=10.0, mb=8, tp_mb=2),
        Doing(do="AllToAll", mb=4, group="dp"),
        Doing(do="AllReduce", mb=64, group="dp"),
        Doing(do="AllReduce", mb=8, algo="TREE"),
    ),
)
NOISY = scenario(slow("nic:h1/eth0", 0.5, at_s=0.25), noise=Noise())
ONE_STEP_NS = 1  # steps begin before this: just the first


def operations(told: Scenario, until_s: float = 0.5, seed: int = 1) -> list[Operation]:
    return list(Simulation(told, seed).run_until(int(until_s * NS_PER_S)))


def first_transfers(told: Scenario) -> Transfers:
    return moved_by(next(Simulation(told, 1).run_until(ONE_STEP_NS)))


def starts_s(found: list[Operation]) -> Times:
    return np.array([operation.start.min() for operation in found]) / NS_PER_S


@pytest.mark.parametrize("told", [NOISY, scenario(job=MIXED, noise=Noise())], ids=["ddp", "mixed"])
def test_same_seed_gives_the_same_operations_bit_for_bit_also_in_pieces(told: Scenario) -> None:
    parts = Simulation(told, 1)
    piecewise = [operation for tenth in range(1, 6) for operation in parts.run_until(tenth * NS_PER_S // 10)]
    columns = [column.name for column in fields(Transfers) if column.name != "trace"]
    for one, other in zip(operations(told, 0.5), piecewise, strict=True):
        for name in ("seq", "bytes", "rank", "peer", "enqueue", "start", "end"):
            assert_array_equal(getattr(one, name), getattr(other, name))
        assert (one.transfers is None) == (other.transfers is None)
        for name in columns if one.transfers else ():
            assert_array_equal(getattr(one.transfers, name), getattr(other.transfers, name))


def test_every_seed_step_and_operation_has_noise_of_its_own() -> None:
    assert (operations(NOISY, seed=1)[0].end != operations(NOISY, seed=2)[0].end).any()
    found = operations(scenario(noise=Noise(), job=JobShape(compute_ms=50.0, allreduce_mb=(64, 64))))[:4]
    pairs = [operation.transfers.wire for operation in found if operation.transfers]
    assert [(pairs[0] != other).any() for other in pairs[1:]] == [True] * 3


def test_every_step_computes_and_then_reduces_its_buckets_and_the_thread_runs_ahead() -> None:
    found = operations(scenario(), 0.2)
    assert [set(operation.seq.tolist()) for operation in found] == [{number} for number in range(len(found))]
    assert [int(operation.bytes[0]) for operation in found[:4]] == [64_000_000, 32_000_000, 64_000_000, 32_000_000]
    assert_allclose(found[0].start, 50e6, rtol=0.01)
    assert_allclose(found[1].start, found[0].end, rtol=0.001)
    assert_allclose(found[2].start, found[1].end + 50e6, rtol=0.001)
    first, second, third, _ = operations(scenario(), 0.1)[:4]
    assert second.enqueue.max() < first.start.min()
    assert (second.enqueue > first.enqueue).all()
    assert third.enqueue.min() >= second.end.min()
    first = operations(scenario(), 0.01)[0]
    chunk = 64e6 / 16 / 2
    outside, inside = chunk * 8 / 100 + 5_000.0, chunk * 8 / 2400 + 1_000.0
    around = (outside + 3 * inside) / 4 + chunk / 500
    assert (first.end - first.start).max() == pytest.approx(30 * max(around, chunk * 8 / 100), rel=0.05)


def test_now_is_before_everything_that_is_still_to_come_and_ranks_wait_for_each_other() -> None:
    simulation = Simulation(scenario(noise=Noise(), job=JobShape(compute_ms=200.0, allreduce_mb=(64, 32))), 1)
    for second in range(1, 4):
        list(simulation.run_until(second * NS_PER_S))
        now_ns = simulation.now_ns
        assert now_ns == second * NS_PER_S
    assert min(operation.enqueue.min() for operation in simulation.run_until(5 * NS_PER_S)) >= now_ns
    for operation in operations(NOISY):
        assert (operation.enqueue <= operation.start).all()
        assert operation.end.min() > operation.start.max()


def test_steps_are_told_once_and_slow_gpus_make_the_others_wait() -> None:
    simulation = Simulation(scenario(), 1)
    list(simulation.run_until(0.5 * NS_PER_S))
    steps = simulation.take_steps()
    assert [number for _, number, *_ in steps] == list(range(simulation.step))
    assert all((begin < end).all() for *_, begin, end in steps)
    assert simulation.take_steps() == []
    slowed = next(Simulation(scenario(slow("gpu:h3/2", 0.5)), 1).run_until(ONE_STEP_NS))
    late = 3 * 4 + 2
    assert_allclose(np.delete(slowed.start, late), 50e6, rtol=0.01)
    assert slowed.start[late] == pytest.approx(100e6, rel=0.01)
    assert_allclose(slowed.enqueue, slowed.enqueue[0])  # its host is on time
    assert slowed.transfers is not None
    assert slowed.transfers.wire.max() < 1.1 * first_transfers(scenario()).wire.max()
    assert slowed.end.min() > 100e6


def test_fault_begins_in_its_time_and_healing_restores_everything() -> None:
    told = scenario(slow("nic:h1/eth0", 0.5, at_s=0.5), "at 1.5 s heal nic:h1/eth0")
    found = [operation for operation in operations(told, 2.5) if operation.bytes[0] == 64_000_000]
    healthy, broken = first_transfers(scenario()).wire, first_transfers(scenario(slow("nic:h1/eth0", 0.5))).wire
    during = [bool(0.5 <= start < 1.5) for start in starts_s(found)]
    assert during.count(True) > 5
    assert not during[0]
    assert not during[-1]
    for operation, is_broken in zip(found, during, strict=True):
        assert operation.transfers is not None
        assert_allclose(operation.transfers.wire, broken if is_broken else healthy, rtol=0.03)
    found = operations(scenario("at 0.2 s fail host:h1 late 30 ms"), 0.5)
    first = [operation for operation in found if operation.bytes[0] == 64_000_000]
    late = [float(np.ptp(operation.enqueue)) for operation in first]
    assert late[0] < 1e6
    assert late[-1] == pytest.approx(30e6, rel=0.05)
    assert set(first[-1].rank[first[-1].enqueue > first[-1].enqueue.min() + 20e6].tolist()) == {4, 5, 6, 7}


def test_rare_faults_and_those_of_large_messages_spare_the_others() -> None:
    told = scenario("at 0 s fail gpu:h1/0 to 50 % in 25 % of steps", job=JobShape(compute_ms=50.0, allreduce_mb=(1,)))
    late = [float(np.ptp(operation.start)) > 20e6 for operation in operations(told, 8.0)]
    assert 0.1 < np.mean(late) < 0.4
    told = scenario("at 0 s fail nic:h1/eth0 to 20 % above 50 MB")
    took, healthy = (
        [operation.end.max() - operation.start.max() for operation in operations(tale, 0.01)]
        for tale in (told, scenario())
    )
    assert took[0] > 2 * healthy[0]
    assert took[1] <= healthy[1]


@pytest.mark.parametrize("transport", long_except(["socket"], ["ib", "socket"]))
def test_flap_holds_up_what_it_hits_and_nothing_else(transport: str) -> None:
    told = scenario("at 0.3 s fail nic:h1/eth0 down for 0.5 s every 2 s", cluster=cluster(transport=transport))
    found = operations(told, 5.0)
    assert max(operation.end.max() for operation in found) < NEVER / 2
    durations = np.array([(operation.end - operation.start).max() for operation in found])
    long = starts_s(found)[durations > 0.2e9]
    assert len(long) == 3
    assert_allclose(long, [0.3, 2.3, 4.3], atol=0.5)
    assert np.median(durations) < 0.02e9


# Pauses, restarts, other mixes.


def test_pause_holds_everybody_or_one_rank() -> None:
    everybody, alone = (
        operations(scenario(line), 2.0) for line in ("at 0.5 s pause 1 s", "at 0.5 s pause rank:3 1 s")
    )
    gap = np.diff(starts_s(everybody)).max()
    assert gap == pytest.approx(1.0, abs=0.1)
    assert max(float(np.ptp(operation.enqueue)) for operation in everybody) < 1e6
    late = max(alone, key=lambda operation: float(np.ptp(operation.enqueue)))
    assert np.ptp(late.enqueue) == pytest.approx(1e9, rel=0.01)
    assert late.rank[late.enqueue.argmax()] == 3
    assert sum(float(np.ptp(operation.enqueue)) > 1e6 for operation in alone) == 2  # the two buckets of one step


def test_restart_begins_a_new_attempt_with_new_communicators_and_processes() -> None:
    found = operations(scenario("at 1 s restart after 0.5 s"), 3.0)
    attempts = [operation.attempt for operation in found]
    assert sorted(set(attempts)) == [0, 1]
    second = found[attempts.index(1)]
    assert set(second.seq.tolist()) == {0}
    assert second.comms.ids[0] != found[0].comms.ids[0]
    assert second.start.min() == pytest.approx(1.55e9, rel=0.01)
    found = operations(scenario("at 0.5 s fail rank:3 stopped", "at 2 s restart after 1 s"), 5.0)
    stuck = [operation for operation in found if operation.end.max() >= NEVER / 2]
    assert {operation.attempt for operation in stuck} == {0}
    assert max(starts_s([operation for operation in found if operation.attempt == 1])) > 4.5


def test_job_goes_on_without_a_host_and_with_a_spare_for_another() -> None:
    lines = "at 0.5 s restart without h3 after 0.1 s", "at 1.5 s restart with h4 for h0 after 0.1 s"
    job = JobShape(compute_ms=50.0, allreduce_mb=(8,), layout=Layout(tp=4))
    told = scenario(*lines, cluster=cluster(spares=2), job=job)
    simulation = Simulation(told, 1)
    ranks = {operation.attempt: len(operation.rank) for operation in simulation.run_until(3 * NS_PER_S)}
    assert ranks == {0: 16, 1: 12, 2: 12}
    assert simulation.hosts.tolist() == [4, 1, 2]
    gone = (f"at 1 s {what}" for what in ("fail rank:15 absent", "fail rank:14 mismatched", "pause rank:13 1 s"))
    told = scenario("at 0.5 s restart without h3 after 0.1 s", *gone, job=job)
    assert max(operation.end.max() for operation in operations(told, 3.0)) < NEVER / 2


def test_absent_rank_hangs_the_job_and_the_scenario_ends_there() -> None:
    simulation = Simulation(scenario("at 0.5 s fail rank:3 absent"), 1)
    found = list(simulation.run_until(10 * NS_PER_S))
    assert starts_s(found[:-2]).max() < 0.6
    assert found[-1].end.min() >= NEVER / 2
    assert simulation.now_ns == 10 * NS_PER_S
    assert list(simulation.run_until(20 * NS_PER_S)) == []


def test_other_mixes_and_slower_first_steps_come_at_their_time() -> None:
    job = JobShape(compute_ms=50.0, allreduce_mb=(64,), second_step=(Doing(do="AllGather", mb=2, times=2),))
    found = operations(scenario("at 0.5 s second mix", job=job), 1.0)
    funcs = [operation.func for operation in found]
    assert funcs.index("AllGather") == funcs.count("AllReduce")
    assert starts_s(found)[funcs.index("AllGather")] == pytest.approx(0.5, abs=0.1)
    job = JobShape(compute_ms=50.0, allreduce_mb=(1,), first_steps_slower=4.0)
    found = operations(scenario("at 1 s restart after 0.1 s", job=job), 2.0)
    for attempt in (0, 1):
        begins = starts_s([operation for operation in found if operation.attempt == attempt])
        assert begins[1] - begins[0] == pytest.approx(0.2, abs=0.02)
        assert_allclose(np.diff(begins)[1:], 0.05, atol=0.02)


def test_sequences_slow_whole_replicas_and_experts_single_ranks() -> None:
    shared = {"compute_ms": 50.0, "allreduce_mb": (1,), "layout": Layout(tp=4)}
    by_replica = operations(scenario(job=JobShape(sequences=0.3, **shared)), 0.01)[0].start.reshape(4, 4)
    assert np.ptp(by_replica, axis=1).max() < 1e5
    assert np.ptp(by_replica[:, 0]) > 1e6
    by_rank = operations(scenario(job=JobShape(experts=0.3, **shared)), 0.01)[0].start.reshape(4, 4)
    assert np.ptp(by_rank, axis=1).min() > 1e6
