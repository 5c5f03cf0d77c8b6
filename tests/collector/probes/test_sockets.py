"""Probes and clock questions work in a process that has thousands of files open, as large agents and tests have."""

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from collector.probes.packets import Flow, Shot, fit_token
from collector.probes.sockets import RawExchange
from lockstep.clock import SystemClock

_MANY = 1_100  # select() takes descriptors below 1,024


@pytest.fixture
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * _MANY), hard))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(_MANY)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.needs_root
@pytest.mark.usefixtures("many_open_files")
def test_a_probe_is_answered_on_a_descriptor_above_those_of_select() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    exchange = RawExchange(SystemClock(), timeout_s=2.0)
    shot = Shot(Flow("lo", "h0", "lo", "tcp", 40_001, closed), "127.0.0.1", "127.0.0.1", 1, fit_token("tcp", 7))
    try:
        (arrival,) = exchange.run([shot])
    finally:
        exchange.close()
    assert arrival is not None
    assert (arrival.kind, arrival.responder) == ("reached", "127.0.0.1")
