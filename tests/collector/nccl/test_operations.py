"""An operation ends when its kernel has, and not before what comes in has been read."""

import numpy as np
import pytest

from collector.nccl.clock import Interval, JudgedKernels
from collector.nccl.operations import add_kernels, add_transfers, times_of
from tests.builders import T0
from tests.collector.nccl.readings import MS, enqueued, known

HERE = np.array([0])


def end_of(*, kernel_ms: float, read_ms: float | None = None, sent_ms: float | None = None) -> float:
    """Return when an operation ends, given when its kernel and its transfers did; all in milliseconds."""
    operation = known(enqueued())
    times = Interval(np.array([T0]), np.array([T0 + int(kernel_ms * MS)]))
    add_kernels(operation, HERE, JudgedKernels(times, times.last_ns, np.array([True])))
    for ended_ms, sends in ((read_ms, False), (sent_ms, True)):
        if ended_ms is not None:
            interval = Interval(np.array([T0]), np.array([T0 + int(ended_ms * MS)]))
            add_transfers(operation, HERE, interval, np.array([sends]))
    return float(times_of(operation).last_ns[0] - T0) / MS


def test_kernel_says_when_an_operation_ends() -> None:
    assert end_of(kernel_ms=3.0) == end_of(kernel_ms=3.0, read_ms=2.9, sent_ms=2.0) == 3.0


def test_kernel_that_was_stamped_before_the_last_data_came_in_is_put_right() -> None:
    """In trees and grouped sends and receives one warp stamps the end while others still read."""
    assert end_of(kernel_ms=0.2, read_ms=3.7) == pytest.approx(3.7)


def test_proxy_that_looks_a_moment_late_says_nothing_about_the_end() -> None:
    assert end_of(kernel_ms=3.0, read_ms=3.05) == 3.0


def test_what_is_still_being_sent_does_not_hold_the_gpu() -> None:
    assert end_of(kernel_ms=3.0, sent_ms=9.0) == 3.0
