"""Seconds of several processes are told together, each once, and their memory is bounded."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collector.nccl.communicators import Origins
from collector.nccl.ledger import ENDED, Seconds
from tests.builders import SECOND, T0
from tests.collector.nccl.readings import ORIGIN, Array


def ended(origin: int, at_ns: int, **fields: Any) -> Array:
    made = np.zeros(1, ENDED)
    made["origin"], made["start_ns"], made["end_ns"], made["func"] = origin, at_ns - 10, at_ns, 1
    for name, value in fields.items():
        made[name] = value
    return made


def reported(seconds: Seconds, now_ns: int) -> list[tuple[str, int, int, int]]:
    tables = seconds.close(now_ns)
    rows = tables["op_stats"].to_pylist() if tables else []
    return [(row["job"], (row["ts_ns"] - T0) // SECOND, row["n"], row["late_n"]) for row in rows]


def test_processes_of_two_jobs_are_distinguished() -> None:
    seconds = Seconds(Origins(ORIGIN, replace(ORIGIN, job="j2")))
    for origin in (0, 1, 1):
        seconds.add_operations(ended(origin, T0 + 5))
    assert sorted(reported(seconds, T0 + SECOND)) == [("j1", 0, 1, 0), ("j2", 0, 2, 0)]


def test_second_that_lasts_is_not_reported_again_for_what_came_late() -> None:
    seconds = Seconds(Origins(ORIGIN))
    assert reported(seconds, T0 + SECOND) == []
    seconds.add_operations(ended(0, T0 + 5))  # its second was over
    assert reported(seconds, T0 + SECOND + 500) == []  # or the next close would tell the same second twice
    seconds.add_operations(ended(0, T0 + SECOND + 5))
    assert reported(seconds, T0 + 2 * SECOND) == [("j1", 1, 2, 1)]


def test_number_of_a_process_that_left_is_used_again_when_nothing_of_it_waits() -> None:
    origins = Origins()
    seconds = Seconds(origins)
    first = origins.enter(ORIGIN)
    seconds.add_operations(ended(first, T0 + 5 * SECOND))
    seconds.leave(first)
    seconds.close(T0 + SECOND)
    assert origins.enter(ORIGIN) != first
    assert reported(seconds, T0 + 6 * SECOND) == [("j1", 5, 1, 0)]
    assert origins.enter(ORIGIN) == first


def test_durations_of_a_forged_clock_do_not_overflow() -> None:
    seconds = Seconds(Origins(ORIGIN))
    for start_ns in (-(1 << 62), 1 << 62):
        seconds.add_operations(np.repeat(ended(0, T0 + 5, start_ns=start_ns), 1_000))
    (row,) = seconds.close(T0 + SECOND)["op_stats"].to_pylist()
    assert row["dur_sum_ns"] > row["dur_max_ns"] > 0


def test_what_never_ends_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.nccl.ledger._MOST_WAITING", 10)
    seconds = Seconds(Origins(ORIGIN))
    seconds.add_operations(np.repeat(ended(0, 1 << 61), 25))
    seconds.close(T0)
    assert seconds.forgotten == 15
