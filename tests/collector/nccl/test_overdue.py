"""An operation is overdue when it is open much longer than others of its kind were, and never below a second."""

import numpy as np
import pytest

from collector.nccl.operations import KNOWN
from collector.nccl.progress import FLOOR_NS, PATIENCE, URGENT_NS, UsualTimes, mean_times
from lockstep import wire
from tests.builders import SECOND, T0


def written(lasted_ns: int, count: int = 5, func: int = wire.ALL_REDUCE) -> np.ndarray:
    made = np.zeros(count, KNOWN)
    made["func"], made["peer"], made["index"] = func, -1, 3
    made["enqueue_ns"], made["active_ns"] = T0, T0 + lasted_ns
    return made


def running(func: int = wire.ALL_REDUCE, comm: int = 3, begun: int = 1) -> np.ndarray:
    made = np.zeros(1, wire.OPERATION)
    made["func"], made["peer"], made["comm"], made["open"] = func, -1, comm, begun
    return made


def is_late(usual: UsualTimes, open_ns: int, operations: np.ndarray | None = None) -> bool:
    shown = running() if operations is None else operations
    return bool(usual.judge(shown, np.array([T0]), T0 + open_ns).rows)


def usual_after(*lasted_ns: int) -> UsualTimes:
    usual = UsualTimes()
    for one_ns in lasted_ns:
        usual.learn(mean_times(written(one_ns))[0])
    return usual


@pytest.mark.parametrize(
    ("lasted_ns", "in_time_ns", "late_ns"),
    [
        ((1_000,), FLOOR_NS, FLOOR_NS + 1),
        ((SECOND,), PATIENCE * SECOND, PATIENCE * SECOND + 1),
        ((SECOND, 2 * SECOND), round(PATIENCE * 1.15 * SECOND), round(PATIENCE * 1.25 * SECOND)),
    ],
    ids=["fast ones have a second", "slow ones some times their usual", "the usual follows slowly"],
)
def test_operation_is_overdue_beyond_its_usual_time(
    lasted_ns: tuple[int, ...], in_time_ns: int, late_ns: int
) -> None:
    usual = usual_after(*lasted_ns)
    assert not is_late(usual, in_time_ns)
    assert is_late(usual, late_ns)


def test_kind_of_which_nothing_is_known_has_a_second_and_what_has_not_begun_or_is_of_nobody_all_time() -> None:
    usual = usual_after(SECOND)
    assert is_late(usual, 2 * SECOND, running(func=wire.BROADCAST))
    assert not is_late(usual, 100 * SECOND, running(begun=0))
    assert not is_late(usual, 100 * SECOND, running(comm=wire.NO_COMM))


def test_hang_is_urgent_only_while_it_is_new() -> None:
    usual = UsualTimes()
    begin = T0 + 2 * SECOND
    states = [
        usual.judge(running(), np.array([T0]), begin + passed)
        for passed in (0, URGENT_NS - 1, URGENT_NS, 2 * URGENT_NS)
    ]
    assert [state.is_urgent for state in states] == [True, True, False, False]
    assert all(state.rows == {(3, wire.ALL_REDUCE, -1)} for state in states)
    usual.judge(running()[:0], np.empty(0, np.int64), begin + 3 * URGENT_NS)  # it went on
    assert usual.judge(running(), np.array([T0]), begin + 4 * URGENT_NS).is_urgent
