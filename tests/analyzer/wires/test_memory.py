"""Memory knows what a wire usually needs after a few looks, and forgets slowly."""

import numpy as np
import pytest

from analyzer.wires.memory import FORGOTTEN_AFTER, MIN_LOOKS, MOST_LOOKS, WireMemory


def learn(memory: WireMemory, keys: list[int], value: float, times: int = 1) -> WireMemory:
    for _ in range(times):
        memory = memory.learn(np.array(keys, np.uint64), np.full(len(keys), value))
    return memory


def recall(memory: WireMemory, *keys: int) -> list[float]:
    known: list[float] = memory.recall(np.array(keys, np.uint64)).log_delay.tolist()
    return known


def test_usual_delay_is_known_after_a_few_looks() -> None:
    memory = learn(WireMemory(), [5, 3], 2.0, MIN_LOOKS - 1)
    assert np.isnan(recall(memory, 3)).all()
    assert recall(learn(memory, [5, 3], 2.0), 3, 5) == [2.0, 2.0]


def test_rows_never_seen_are_unknown() -> None:
    assert np.isnan(recall(WireMemory(), 1)).all()
    assert np.isnan(recall(learn(WireMemory(), [3], 2.0, 9), 1, 4)).all()


def test_few_looks_are_averaged() -> None:
    memory = learn(learn(WireMemory(), [1], 1.0, 2), [1], 4.0, 1)
    assert recall(memory, 1) == [pytest.approx(2.0)]


def test_long_past_moves_slowly() -> None:
    memory = learn(learn(WireMemory(), [1], 0.0, 2 * MOST_LOOKS), [1], 1.0)
    assert recall(memory, 1) == [pytest.approx(1 / MOST_LOOKS)]


def test_newcomers_find_their_place() -> None:
    memory = learn(learn(WireMemory(), [10, 30], 1.0, 5), [20, 40, 10], 2.0, 5)
    assert recall(memory, 20, 30, 40) == [2.0, 1.0, 2.0]


def test_what_is_gone_for_long_is_forgotten() -> None:
    memory = learn(learn(WireMemory(), [1], 1.0, 5), [2], 1.0, FORGOTTEN_AFTER + 1)
    assert memory.keys.tolist() == [2]


def test_swing_is_how_much_looks_differ() -> None:
    memory = WireMemory()
    for value in (0.0, 1.0, 0.5, 1.5, 0.75):
        memory = learn(memory, [1], value)
    assert memory.recall(np.array([1], np.uint64)).swing.tolist() == [pytest.approx((1 + 0 + 1 + 0) / 4)]
    assert learn(WireMemory(), [1], 2.0, 9).recall(np.array([1], np.uint64)).swing.tolist() == [0.0]
