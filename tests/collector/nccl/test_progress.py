"""Progress shows what is open, since when, what holds it up, and whether it is open much longer than is usual."""

from typing import Any

import numpy as np

from collector.nccl.communicators import CommunicatorHistory, HostCommunicators, Origins
from collector.nccl.operations import KNOWN
from collector.nccl.progress import (
    FLOOR_NS,
    PATIENCE,
    URGENT_NS,
    UsualTimes,
    mean_times,
    progress_of,
    progress_rows,
    show,
)
from lockstep import wire
from tests.builders import SECOND, T0
from tests.collector.nccl.readings import (
    CLOCKS,
    MS,
    ORIGIN,
    Array,
    communicator,
    handle,
    moving,
    reading,
    row,
    running,
)

NOW = T0 + SECOND


def reported(*live: Array, reports_kernels: bool = True) -> list[dict[str, Any]]:
    history = CommunicatorHistory()
    history.update(communicator(rank=3))
    shown = show([reading(live=list(live)).live])
    found = progress_of(shown, CLOCKS, HostCommunicators([history]), [(0, reports_kernels)], NOW)
    return list(progress_rows(found, Origins(ORIGIN)).to_pylist())


STATES = {wire.WAIT_GPU: "gpu_wait", wire.WAIT_PEER: "peer_wait", wire.WAIT_WIRE: "wire", wire.WAIT_RECV: "recv_wait"}
STATES |= {wire.WAIT_FLUSH: "flush", wire.WAIT_RECV_GPU: "recv_gpu_wait", wire.WAIT_UNKNOWN: "unknown"}


def test_open_operation_is_described_and_held_up_by_the_transfer_that_has_waited_longest() -> None:
    for code, state in STATES.items():
        (found,) = reported(row(), running(), moving(wait=code))
        assert (found["open_bytes"], found["open_dtype"], found["open_algo"]) == (1 << 20, "ncclFloat32", "RING")
        assert (found["oldest_open_ns"], found["head_state"]) == (T0 + MS, state)
        assert found["head_peer"] == (None if code == wire.WAIT_UNKNOWN else 1)
    newer = running(2, enqueue_ticks=9 * MS, bytes=5)
    transfers = [moving(1, wire.WAIT_WIRE, 4 * MS, peer=1), moving(1, wire.WAIT_RECV, 3 * MS, peer=2, channel=6)]
    other = moving(2, wire.WAIT_GPU, 2 * MS, peer=3)
    (found,) = reported(row(), newer, running(1), *transfers, other)
    assert (found["open_bytes"], found["oldest_open_ns"]) == (1 << 20, T0 + MS)
    assert (found["head_state"], found["head_peer"], found["head_channel"]) == ("recv_wait", 2, 6)


def test_rows_of_other_peers_and_functions_are_not_mixed_up_and_the_channel_of_a_kernel_is_no_transfer() -> None:
    send = running(5, func=wire.SEND, peer=2, handle=handle(5))
    stranger = row(key=np.uint64(9 << 40 | wire.ALL_REDUCE << 32))  # of a communicator that is not in the table
    rows = reported(row(), row(wire.SEND, 1, done=2), row(wire.SEND, 2), stranger, send, moving(5))
    states = {(one["func"], one["peer"]): one["head_state"] for one in rows}
    assert states == {("AllReduce", -1): "idle", ("Send", 1): "idle", ("Send", 2): "wire"}
    (found,) = reported(row(), running(), moving(flags=wire.FLAG_KERNEL))
    assert found["head_state"] == "unknown"


def test_nothing_open_is_idle_also_what_was_enqueued_without_detail_and_one_not_begun_is_where_kernels_are_seen() -> (
    None
):
    (found,) = reported(row(done=2))
    assert (found["comm"], found["rank"], found["func"], found["peer"]) == (7, 3, "AllReduce", -1)
    assert (found["enqueued"], found["started"], found["done"], found["ts_ns"]) == (2, 2, 2, NOW)
    assert found["head_state"] == "idle"
    assert {found[name] for name in found if name.startswith(("open", "oldest", "head_p", "head_c"))} == {None}
    dark = running(2, open=0, began=0, flags=wire.FLAG_SEQ_VALID | wire.FLAG_UNTIMED)
    waiting = running(open=0, began=0)
    for shown, reports_kernels, untimed, open_ns, state in (
        ((row(done=2), dark), True, True, None, "idle"),
        ((row(), running(), dark), True, True, T0 + MS, "unknown"),
        ((row(), running()), True, False, T0 + MS, "unknown"),
        ((row(started=0, done=0), waiting), True, False, T0 + MS, "unknown"),
        ((row(started=0, done=0), waiting), False, False, None, "unknown"),
    ):
        (found,) = reported(*shown, reports_kernels=reports_kernels)
        assert (found["untimed"], found["oldest_open_ns"], found["head_state"]) == (untimed, open_ns, state)


def test_operation_without_steps_tells_whether_its_kernel_has_begun_and_one_with_steps_what_they_wait_for() -> None:
    for flag, state in ((0, "unknown"), (wire.FLAG_AWAITS_KERNEL, "kernel_wait"), (wire.FLAG_KERNEL, "kernel_begun")):
        told = running(flags=wire.FLAG_SEQ_VALID | flag)
        newer = running(2, enqueue_ticks=9 * MS, flags=wire.FLAG_SEQ_VALID | wire.FLAG_AWAITS_KERNEL)
        for transfers in ([], [moving(wait=wire.WAIT_UNKNOWN)]):
            (found,) = reported(row(), newer, told, *transfers)
            assert (found["head_state"], found["head_peer"]) == (state, None)
        of_gpu = "kernel_wait" if state == "kernel_wait" else "gpu_wait"
        for wait, said in ((wire.WAIT_RECV, "recv_wait"), (wire.WAIT_GPU, of_gpu)):
            (found,) = reported(row(), told, moving(wait=wait))
            assert (found["head_state"], found["head_peer"]) == (said, 1)


def written(lasted_ns: int, count: int = 5, func: int = wire.ALL_REDUCE) -> np.ndarray:
    made = np.zeros(count, KNOWN)
    made["func"], made["peer"], made["index"] = func, -1, 3
    made["enqueue_ns"], made["active_ns"] = T0, T0 + lasted_ns
    return made


def is_late(usual: UsualTimes, open_ns: int, operations: np.ndarray | None = None) -> bool:
    shown = running(comm=3) if operations is None else operations
    return bool(usual.judge(shown, np.array([T0]), T0 + open_ns).rows)


def usual_after(*lasted_ns: int) -> UsualTimes:
    usual = UsualTimes()
    for one_ns in lasted_ns:
        usual.learn(mean_times(written(one_ns))[0])
    return usual


def test_operation_is_overdue_beyond_its_usual_time_and_one_not_begun_or_of_nobody_never() -> None:
    fast, slow, changed = usual_after(1_000), usual_after(SECOND), usual_after(SECOND, 2 * SECOND)
    assert [is_late(fast, FLOOR_NS), is_late(fast, FLOOR_NS + 1)] == [False, True]
    assert [is_late(slow, PATIENCE * SECOND), is_late(slow, PATIENCE * SECOND + 1)] == [False, True]
    times = [round(PATIENCE * usual_s * SECOND) for usual_s in (1.15, 1.25)]  # the usual follows slowly
    assert [is_late(changed, open_ns) for open_ns in times] == [False, True]
    usual = usual_after(SECOND)
    assert is_late(usual, 2 * SECOND, running(comm=3, func=wire.BROADCAST))
    assert not is_late(usual, 100 * SECOND, running(comm=3, open=0))
    assert not is_late(usual, 100 * SECOND, running(comm=wire.NO_COMM))


def test_hang_is_urgent_only_while_it_is_new() -> None:
    usual = UsualTimes()
    begin = T0 + 2 * SECOND
    states = [
        usual.judge(running(comm=3), np.array([T0]), begin + passed)
        for passed in (0, URGENT_NS - 1, URGENT_NS, 2 * URGENT_NS)
    ]
    assert [state.is_urgent for state in states] == [True, True, False, False]
    assert all(state.rows == {(3, wire.ALL_REDUCE, -1)} for state in states)
    usual.judge(running()[:0], np.empty(0, np.int64), begin + 3 * URGENT_NS)  # it went on
    assert usual.judge(running(comm=3), np.array([T0]), begin + 4 * URGENT_NS).is_urgent
