"""Seconds and communicators of several processes are told together, each once and nobody mixed up."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collector.nccl.communicators import CommunicatorHistory, HostCommunicators, Origins
from collector.nccl.ledger import ENDED, Seconds
from tests.builders import SECOND, T0
from tests.collector.nccl.readings import ORIGIN, Array, communicator, stacked


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


def test_processes_of_two_jobs_are_distinguished_and_a_second_is_not_reported_again_for_what_came_late() -> None:
    seconds = Seconds(Origins(ORIGIN, replace(ORIGIN, job="j2")))
    for origin in (0, 1, 1):
        seconds.add_operations(ended(origin, T0 + 5))
    assert sorted(reported(seconds, T0 + SECOND)) == [("j1", 0, 1, 0), ("j2", 0, 2, 0)]
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


def test_durations_of_a_forged_clock_do_not_overflow_and_what_never_ends_is_bounded_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("collector.nccl.ledger._MOST_WAITING", 10)
    seconds = Seconds(Origins(ORIGIN))
    seconds.add_operations(np.repeat(ended(0, 1 << 61), 25))
    for start_ns in (-(1 << 62), 1 << 62):
        seconds.add_operations(np.repeat(ended(0, T0 + 5, start_ns=start_ns), 1_000))
    (row,) = seconds.close(T0 + SECOND)["op_stats"].to_pylist()
    assert row["dur_sum_ns"] > row["dur_max_ns"] > 0
    assert seconds.forgotten == 15


def history_of(*members: Array) -> CommunicatorHistory:
    history = CommunicatorHistory()
    for member in members:
        history.update(stacked(member.dtype, [member]))
    return history


def ids_at(comms: HostCommunicators, *asked: tuple[int, int, int]) -> list[int | None]:
    """Return the communicators of processes at places and times."""
    whose, indices, ticks = np.array(asked).T
    members, found = comms.members_at(whose, indices, ticks.astype(np.uint64))
    return [one if known else None for one, known in zip(members["id"].tolist(), found.tolist(), strict=True)]


def test_index_is_what_it_was_in_its_process_at_the_time_and_a_new_communicator_outdates_the_table() -> None:
    comms = HostCommunicators([history_of(communicator(id=1)), history_of(), history_of(communicator(id=3, index=2))])
    assert ids_at(comms, (0, 0, 9), (1, 0, 9), (2, 2, 9), (2, 0, 9), (0, 2, 9)) == [1, None, 3, None, None]
    many = [communicator(incarnation=n, id=n, init_ticks=100 * n) for n in range(1, 21)]
    histories = [history_of(communicator(id=99)), history_of(*many)]
    comms = HostCommunicators(histories)
    asked = [(1, 0, ticks) for ticks in range(0, 2200, 50)]
    assert ids_at(comms, *asked) == [min(ticks // 100, 20) or None for _, _, ticks in asked]
    members, found = comms.latest(np.array([1, 0]), np.array([0, 0]))
    assert (members["id"].tolist(), found.tolist()) == ([20, 99], [True, True])
    assert comms.is_of(histories)
    histories[0].update(communicator(id=8))
    assert not comms.is_of(histories)
