"""A service runs as a process of its own, answers probes, and leaves without a trace of failure."""

import re
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from lockstep.control.database import open_control
from lockstep.control.leases import take_lease
from tests.cli.commands import LOCKSTEP, environment_for
from tests.waiting import eventually


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("service", ["planner", "analyzer"])
def test_service_is_ready_until_it_is_told_to_stop_and_lets_go_of_its_role(tmp_path: Path, service: str) -> None:
    address = free_address()
    environment = environment_for(tmp_path, **{f"LOCKSTEP_{service}_LISTEN".upper(): address})
    with subprocess.Popen(
        [LOCKSTEP, "serve", service], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        eventually(lambda: is_ready(address), limit_s=60)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert re.search(r'"event": "service is up"', said)
    assert "Traceback" not in said
    with open_control(f"sqlite:///{tmp_path}/control.db") as control:
        successor = take_lease(control, service, "another", 1, now_ns=1)
    assert successor is not None
    assert successor.generation == 2
