"""The same fault on real NCCL and in a scenario: the same waits are long on the same ranks, and the same ranks hang.

Times differ, as the recordings come from one GPU and loopback or veth; which rank waits for what must not.
"""

from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from lockstep.clock import NS_PER_S
from simulator.operations import Operation, Transfers
from simulator.pairs import NEVER, STATES
from simulator.scenario import ClusterShape, Doing, JobShape, Layout, Scenario
from simulator.simulation import Simulation
from tests.simulator.build import cluster, moved_by, scenario
from tests.simulator.recordings import (
    SIDES,
    Waits,
    lasting,
    live_states,
    real_waiters,
    real_waits,
    real_waits_of,
    recorded,
    struck,
)

MIB4 = 4.194304  # MB


def told_waits(moved: Transfers) -> Waits:
    """Return the same of a simulated operation."""
    found: Waits = {}
    for ranks, names in ((moved.src, SIDES[True]), (moved.dst, SIDES[False])):
        for rank in set(ranks.tolist()):
            found |= {(rank, name): float(getattr(moved, name)[ranks == rank].mean()) for name in names}
    return found


def large(waits: Waits, than: float) -> set[tuple[int, str]]:
    return {key for key, wait in waits.items() if wait > than}


def four_ranks(*lines: str, gbps: float = 16.0, mb: float = MIB4) -> Operation:
    """Return the first all-reduce of four hosts with a GPU and a NIC each, over sockets."""
    shape = cluster(gpus_per_host=1, nics_per_host=1, hosts_per_leaf=4, nic_gbps=gbps, transport="socket")
    return first(shape, JobShape(step=(Doing(do="compute", ms=1.0), Doing(do="AllReduce", mb=mb))), *lines)


def first(shape: ClusterShape, job: JobShape, *lines: str) -> Operation:
    return next(Simulation(scenario(*lines, cluster=shape, job=job), 1).run_until(1))


def waits_of(operation: Operation) -> Waits:
    return told_waits(moved_by(operation))


CASES = {
    "f_hostsleep_r2": "at 0 s fail rank:2 late 30 ms",
    "f_gpuspin_r1": "at 0 s fail gpu:h1/0 to 3.2258 %",  # 1 ms of compute takes 31 ms
}


@pytest.mark.parametrize(("name", "culprit"), [("f_hostsleep_r2", 2), ("f_gpuspin_r1", 1)])
def test_late_rank_makes_the_same_waits_long_and_has_the_shortest_kernel(name: str, culprit: int) -> None:
    numbers, operation = struck(name, above_ms=20), four_ranks(CASES[name])
    assert len(numbers) >= 2
    assert large(real_waits_of(name, numbers), 20e6) == large(waits_of(operation), 20e6)
    duration = operation.end - operation.start
    assert operation.rank[duration.argmin()] == culprit
    assert np.sort(duration)[1] > 5 * duration.min()
    for number in numbers:
        real = {rank: lasting(name, rank, one) for rank, one in recorded(name).operations if one.seq == number}
        assert min(real, key=lambda rank: real[rank]) == culprit
        assert sorted(real.values())[1] > 5 * real[culprit]


def test_healthy_ring_has_no_rank_that_stands_out() -> None:
    numbers = sorted({operation.seq for _, operation in recorded("f_base").operations})
    for waits in (real_waits_of("f_base", numbers), waits_of(four_ranks())):
        for name in ("recv_wait", "wire"):
            spread = [waits[rank, name] for rank in range(4)]
            assert max(spread) < 2 * min(spread) + 1e5


SLOW_EGRESS = "at 0 s fail nic:h2/eth0 tx to 5 %"  # 16 Gb/s to 100 MB/s


def test_slow_egress_hides_in_the_kernel_and_everybody_waits_for_data() -> None:
    numbers = struck("f_netns_egress_r2", above_ms=20)
    assert len(numbers) >= 3
    real, ours = real_waits_of("f_netns_egress_r2", numbers), waits_of(four_ranks(SLOW_EGRESS))
    for waits in (real, ours):
        longest = max(waits.values())
        assert all(waits[rank, "recv_wait"] > 0.3 * longest for rank in range(4))
        assert all(waits[rank, "wire"] < 0.2 * longest for rank in range(4))
        assert all(waits[rank, "recv_gpu_wait"] < 0.1 * longest for rank in range(4))
        assert all(waits[rank, "peer_wait"] < 0.01 * longest for rank in range(4))


# Several communicators: eight ranks on a host each, tensor parallel in pairs, data parallel in fours.

PAIRS = cluster(hosts=8, gpus_per_host=1, nics_per_host=1, hosts_per_leaf=8, nic_gbps=16.0, transport="socket")
PAIR_STEP = JobShape(
    layout=Layout(tp=2),
    step=(
        *(Doing(do="compute", ms=10.0), Doing(do="AllReduce", mb=0.065536, group="tp")) * 2,
        Doing(do="AllReduce", mb=1.0, group="dp"),
    ),
)


def in_pairs(*lines: str) -> Scenario:
    return scenario(*lines, cluster=PAIRS, job=PAIR_STEP)


def told_waiters(operations: list[Operation], kind: str, share: float) -> set[int]:
    lasted: dict[int, list[float]] = defaultdict(list)
    for operation in operations:
        if operation.comms.kind == kind:
            for rank, time in zip(operation.rank.tolist(), (operation.end - operation.start).tolist(), strict=True):
                lasted[rank].append(time)
    median = {rank: float(np.median(values)) for rank, values in lasted.items()}
    return {rank for rank, value in median.items() if value > share * max(median.values())}


def test_slow_gpu_cascades_from_its_tensor_group_to_the_others_data_parallel_groups() -> None:
    """Rank 3 computes 1.8 times as long: rank 2 waits in tp, and everybody but the two of them in dp."""
    operations = list(Simulation(in_pairs("at 0 s fail gpu:h3/0 to 55.6 %"), 1).run_until(1 * NS_PER_S))
    assert told_waiters(operations, "tp", 0.5) == real_waiters("td_gpu_r3", "tp", 0.5) == {2}
    assert told_waiters(operations, "dp", 0.5) == real_waiters("td_gpu_r3", "dp", 0.5) == {0, 1, 4, 5, 6, 7}


@cache
def with_a_slow_flow() -> list[Operation]:
    return list(Simulation(in_pairs("at 0 s fail nic:h4/eth0 tx to 3 %"), 1).run_until(2 * NS_PER_S))


def test_slow_flow_of_a_data_parallel_ring_holds_up_the_same_ranks() -> None:
    """From h4 to h6; the other ring waits too, because tensor partners carry the delay over to it.

    A scenario cannot slow a single flow, so that all that h4 sends is slow; its tensor messages are small.
    """
    for share in (0.3, 0.5, 0.7):
        waiting = told_waiters(with_a_slow_flow(), "dp", share)
        assert waiting == real_waiters("td_link_4to6", "dp", share)
        assert {0, 2, 4, 6} <= waiting
        assert len(waiting) < 8


def test_after_a_slow_flow_its_receiver_and_that_ones_partner_wait_for_their_own_gpus_too() -> None:
    """They begin last, so that what they are to read is there before their kernels."""
    ours = [
        told_waits(operation.transfers)
        for operation in with_a_slow_flow()
        if operation.comms.kind == "dp" and operation.transfers
    ]
    told = {rank: float(np.mean([waits[rank, "recv_gpu_wait"] for waits in ours])) for rank in range(8)}
    dp = ((rank, t) for rank, operation, t in recorded("td_link_4to6").transfers() if operation.bytes == 1 << 20)
    real = {rank: wait for (rank, name), wait in real_waits(dp).items() if name == "recv_gpu_wait"}
    for waits in (told, real):
        assert sorted(waits, key=lambda rank: waits[rank])[-2:] == [6, 7]
        assert waits[6] > 3 * sorted(waits.values())[-3]


def test_rank_that_does_not_come_leaves_the_same_ranks_waiting_in_the_same_states() -> None:
    """Rank 6 was stopped before it enqueued anything: its tensor partner waits for it, then everybody in dp."""
    operations = list(Simulation(in_pairs("at 0.1 s fail rank:6 absent"), 1).run_until(5 * NS_PER_S))
    stuck = [operation for operation in operations if operation.end.max() >= NEVER / 2]
    tensor, data = stuck[0], stuck[-1]
    assert (tensor.comms.kind, data.comms.kind) == ("tp", "dp")
    real = live_states("hang_sigstop_r6_live")
    for operation, role in ((tensor, "tp"), (data, "dp")):
        assert operation.heads is not None
        waiting = (operation.end >= NEVER / 2) & (operation.enqueue < NEVER)
        ours = {
            int(rank): STATES[state]
            for rank, state in zip(operation.rank[waiting], operation.heads.state[waiting], strict=True)
        }
        assert set(ours) == {rank for rank, kind in real if kind == role}
        assert all(state in real[rank, role] for rank, state in ours.items())


def test_stopped_rank_is_where_the_others_waits_lead() -> None:
    real = live_states("h4_sigstop_r1_live")
    assert {rank for (rank, _), states in real.items() if "recv_wait" in states} == {0, 2, 3}
    operation = four_ranks("at 0.002 s fail rank:1 stopped")
    assert operation.heads is not None
    assert (operation.start < 0.002e9).sum() == 4  # in the middle of the operation, as in the recording
    assert [STATES[operation.heads.state[rank]] for rank in (2, 3, 0)] == ["recv_wait"] * 3
    assert operation.heads.peer[[2, 3, 0]].tolist() == [1, 2, 3]
