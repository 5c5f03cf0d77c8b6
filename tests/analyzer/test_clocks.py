"""Clocks are known as well as their hosts say, unless operations prove them wrong."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analyzer.delay_matrix.clocks import HostClocks, clocks_from, widen_errors
from tests.analyzer.build import schema
from tests.builders import SECOND, T0

MS = 1_000_000
OPERATIONS = schema("""comm:uint64 func:string seq:uint64 replay:uint32 host:string last_start_ns:int64
    first_end_ns:int64""")


def clocks(*errors_ns: float, offsets_ns: tuple[int, ...] = (0, 0, 0)) -> HostClocks:
    return HostClocks(("h0", "h1", "h2"), np.array(offsets_ns), np.array(errors_ns, float))


def operation(seq: int, **times: tuple[int, int]) -> list[dict[str, Any]]:
    """Return an all-reduce: when its last rank began and its first one ended, by host."""
    usual = {"comm": 1, "func": "AllReduce", "seq": seq, "replay": 0}
    return [
        usual | {"host": host, "last_start_ns": T0 + start, "first_end_ns": T0 + end}
        for host, (start, end) in times.items()
    ]


def widened(known: HostClocks, *operations: list[dict[str, Any]]) -> list[float]:
    rows = pa.Table.from_pylist([row for rows in operations for row in rows], schema=OPERATIONS)
    errors: list[float] = widen_errors(known, rows).error_ns.tolist()
    return errors


def test_offset_is_the_less_sure_the_older_it_is_and_unknown_of_hosts_that_told_nothing() -> None:
    told = {"host": ["h0", "h1"], "best_offset_ns": [5, -7], "best_error_ns": [100, 100]}
    told |= {"read_ns": [T0, T0 - 10 * SECOND]}
    known = clocks_from(pa.table(told), T0)
    assert (known.offset_ns.tolist(), known.error_ns.tolist()) == ([5, -7], [100, pytest.approx(100 + 500_000)])
    errors = clocks(10, 20, 30).errors_of(np.array(["h1", "h9"], dtype=object))
    assert errors.tolist() == [20, np.inf]
    assert HostClocks().errors_of(np.array(["h1"], dtype=object)).tolist() == [np.inf]


def test_errors_are_widened_by_operations_that_prove_a_clock_wrong_and_by_no_others() -> None:
    fine = operation(1, h0=(0, 5 * MS), h1=(1 * MS, 5 * MS), h2=(0, 6 * MS))
    assert widened(clocks(10, 20, 30), fine) == [10, 20, 30]
    off = operation(1, h0=(0, 10 * MS), h1=(5 * MS, 10 * MS), h2=(-8 * MS, 2 * MS))
    errors = widened(clocks(10, 10, 10), off)
    assert (errors[2], errors[0]) == (3 * MS, 10)
    assert widened(clocks(10, 10, 10, offsets_ns=(0, 0, -8 * MS)), off) == [10, 10, 10]
    early = operation(1, h0=(0, 1 * MS), h1=(0, 1 * MS))
    late = operation(2, h0=(9 * MS, 10 * MS), h1=(9 * MS, 10 * MS))
    assert widened(clocks(10, 10, 10), early, late) == [10, 10, 10]
    assert widened(clocks(10, 20, 30), operation(1, h8=(9 * MS, 0), h9=(0, 0))) == [10, 20, 30]
    assert widened(clocks(10, 20, 30)) == [10, 20, 30]
