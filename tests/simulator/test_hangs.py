"""Hangs have one origin, which waits for nobody, and everybody else waits for it through others."""

from functools import lru_cache

import numpy as np
import pytest

from lockstep.clock import NS_PER_S
from simulator.job import place_ranks
from simulator.operations import Operation
from simulator.pairs import GPU_WAIT, NEVER, PEER_WAIT, RECV_WAIT, STATES, WIRE
from simulator.scenario import Doing, JobShape, Layout, Scenario
from simulator.simulation import Simulation
from tests.simulator.build import LINE, TENSOR_THEN_DATA, scenario

HANGS = {
    "link down": "at 0.2 s fail link:h3/eth0--leaf0 tx down",
    "stopped": "at 0.02 s fail rank:3 stopped",
    "killed": "at 0.02 s fail rank:3 killed",
    "absent": "at 0.2 s fail rank:3 absent",
    "gpu stuck": "at 0.02 s fail gpu:h3/0 stuck",
    "gpu stuck in mid-transfer": "at 0.055 s fail gpu:h3/0 stuck",
    "mismatched": "at 0.2 s fail rank:3 mismatched",
}


@lru_cache
def hang(line: str, transport: str, until_s: float = 5.0) -> Operation:
    """Return the operation in which eight ranks, one a host, hang."""
    shape = LINE.model_copy(update={"transport": transport})
    told = scenario(line, cluster=shape, job=JobShape(compute_ms=50.0, allreduce_mb=(64,)))
    *_, last = Simulation(told, 1).run_until(until_s * NS_PER_S)
    assert last.end.min() >= NEVER / 2
    return last


def states(operation: Operation) -> list[str]:
    assert operation.heads is not None
    return [STATES[state] for state in operation.heads.state]


def waits_on(operation: Operation, rank: int) -> int | None:
    """Return whom a rank of a hang waits for, as pairs of states tell; None: for itself or its wire, or it is absent.

    A sender in wire waits for the wire when its receiver waits for data, else for the receiver, which does not read.
    """
    heads = operation.heads
    assert heads is not None
    state, peer = int(heads.state[rank]), int(heads.peer[rank])
    if state in (RECV_WAIT, PEER_WAIT) or (state == WIRE and heads.state[peer] != RECV_WAIT):
        return peer
    return None


def origins(operation: Operation) -> list[int]:
    return [rank for rank in operation.rank.tolist() if waits_on(operation, rank) is None]


@pytest.mark.parametrize(
    ("cause", "transport"), [*((cause, "ib") for cause in HANGS), ("link down", "socket"), ("absent", "socket")]
)
def test_hang_has_one_origin_for_which_everybody_waits_through_those_before_it(cause: str, transport: str) -> None:
    operation = hang(HANGS[cause], transport)
    assert origins(operation) == [3]
    expected = {"link down": "wire", "absent": "idle"}.get(cause, "gpu_wait")
    assert states(operation)[3] in (expected, "recv_gpu_wait")
    assert states(operation)[4] == "recv_wait"
    for rank in range(8):
        way = [rank]
        while (following := waits_on(operation, way[-1])) is not None:
            assert following not in way
            way.append(following)
        assert way[-1] == 3


def test_state_of_a_hang_tells_its_cause() -> None:
    assert states(hang(HANGS["absent"], "ib"))[2] == STATES[PEER_WAIT]
    assert states(hang(HANGS["absent"], "socket"))[2] == STATES[RECV_WAIT]
    for transport in ("ib", "socket"):
        found = states(hang(HANGS["link down"], transport))
        assert [rank for rank in range(8) if found[rank] == STATES[WIRE]] == [3]
    operation = hang(HANGS["absent"], "ib")
    for timestamps in (operation.enqueue, operation.start):
        assert np.flatnonzero(timestamps >= NEVER).tolist() == [3]
    operation = hang(HANGS["gpu stuck"], "ib")
    assert (operation.enqueue < NS_PER_S).all()
    assert np.flatnonzero(operation.start >= NEVER).tolist() == [3]
    operation = hang(HANGS["mismatched"], "ib")
    assert operation.bytes.tolist() == [64_000_000] * 3 + [128_000_000] + [64_000_000] * 4


def test_nothing_is_heard_of_a_stopped_process_though_its_gpu_goes_on() -> None:
    """Inside a host GPUs need no proxy thread: the tensor group ends, but its stopped rank does not say so."""
    told = scenario("at 0.02 s fail rank:5 stopped", job=TENSOR_THEN_DATA)
    tensor, data = list(Simulation(told, 1).run_until(5 * NS_PER_S))[:2]
    assert np.flatnonzero(tensor.end >= NEVER).tolist() == [5]
    assert tensor.rank[tensor.start >= NEVER].tolist() == [5]
    stuck = data.rank[data.end >= NEVER / 2]
    assert sorted(stuck.tolist()) == [1, 5, 9, 13]  # its data-parallel group


def test_process_or_gpu_that_goes_on_is_late_by_as_much() -> None:
    told = scenario("at 0.02 s fail rank:3 stopped for 1 s", cluster=LINE)
    first = next(Simulation(told, 1).run_until(1))
    assert 1.02e9 < first.end.min() < 1.1e9
    assert (first.start < 0.1e9).all()  # kernels began on time, as those of a stopped process do
    told = scenario("at 0.02 s fail gpu:h3/0 stuck for 1 s", cluster=LINE)
    first = next(Simulation(told, 1).run_until(1))
    start = first.start[np.argsort(first.rank)]
    assert start[3] == pytest.approx(start[0] + 1e9, rel=1e-3)


def waits_for(operations: list[Operation], told: Scenario) -> dict[int, set[int]]:
    """Return whom each rank waits for: who has not come to the operation that it has begun and not ended."""
    placement = place_ranks(told)
    waiting: dict[int, set[int]] = {}
    for operation in operations:
        here = (operation.start < NEVER) & (operation.end >= NEVER / 2)
        for rank, group in zip(operation.rank[here].tolist(), operation.group[here].tolist(), strict=True):
            missing = operation.rank[(operation.group == group) & (operation.start >= NEVER)]
            members = placement.groups(operation.comms.kind)[group]
            waiting.setdefault(rank, set(np.intersect1d(members, missing).tolist()))
    return waiting


def test_deadlock_is_a_circle_of_ranks_over_two_communicators_also_with_the_same_members() -> None:
    told = scenario("at 0.1 s fail rank:5 deadlocked", job=TENSOR_THEN_DATA)
    operations = list(Simulation(told, 1).run_until(5 * NS_PER_S))
    waiting = waits_for(operations, told)
    seen: list[int] = [5]
    while seen[-1] not in seen[:-1]:
        (following,) = {rank for rank in waiting[seen[-1]] if rank in waiting} or {-1}
        assert following >= 0
        seen.append(following)
    assert len(set(seen)) >= 4
    kinds = {operation.comms.kind for operation in operations if operation.end.max() >= NEVER / 2}
    assert kinds == {"tp", "dp"}
    job = JobShape(
        layout=Layout(tp=4),
        step=(Doing(do="compute", ms=50.0), Doing(do="AllReduce", mb=8, group="tp"), Doing(do="AllReduce", mb=8)),
    )
    told = scenario("at 0.1 s fail rank:5 deadlocked", job=job)
    operations = list(Simulation(told, 1).run_until(5 * NS_PER_S))
    waiting = waits_for(operations, told)
    assert waiting[4] == {5}
    assert {4, 6, 7} <= waiting[5]


def test_hang_of_a_very_large_ring_has_its_states_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.operations._MOST_CELLS", 0)
    operation = hang.__wrapped__(HANGS["link down"], "ib")
    assert origins(operation) == [3]
    assert states(operation)[3:5] == [STATES[WIRE], STATES[RECV_WAIT]]
    assert STATES[GPU_WAIT] not in states(operation)
