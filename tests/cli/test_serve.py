"""A service runs as a process of its own, answers probes, and leaves without a trace of failure."""

import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from cli.up import _announce
from lockstep.fabrics import leaf_spine
from lockstep.state.database import open_control
from lockstep.state.leases import take_lease
from lockstep.topology import dump_topology
from lockstep.verdict import Incident
from tests.builders import SECOND, T0
from tests.cli.commands import LOCKSTEP, Run, check_failure, environment_for
from tests.lockstep.state.build import incident
from tests.testbed.services import free_port
from tests.waiting import LIMIT_S, eventually


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/readyz", trust_env=False, timeout=LIMIT_S).is_success
    except httpx.TransportError:
        return False


def test_paths_without_a_topology_are_one_sentence(lockstep: Run) -> None:
    outcome = lockstep("serve", "planner", LOCKSTEP_PLANNER_PATHS="true")
    check_failure(outcome, "planner.paths needs to know the fabric: set analyzer.topology, or ")


@pytest.mark.slow
def test_planner_with_paths_keeps_both_duties_up(tmp_path: Path) -> None:
    address, topology = free_address(), tmp_path / "topology.json"
    topology.write_text(dump_topology(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=2)))
    environment = environment_for(
        tmp_path / "state",
        LOCKSTEP_PLANNER_LISTEN=address,
        LOCKSTEP_PLANNER_PATHS="true",
        LOCKSTEP_ANALYZER_TOPOLOGY=str(topology),
    )
    subprocess.run([LOCKSTEP, "store", "migrate"], env=environment, check=True, capture_output=True)
    with subprocess.Popen(
        [LOCKSTEP, "serve", "planner"], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        eventually(lambda: is_ready(address))
        process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert re.findall(r'"service": "(\w+)"', messages) == ["planner", "paths"]


@pytest.mark.parametrize("service", ["planner", "analyzer"])
def test_service_is_ready_until_it_is_told_to_stop_and_lets_go_of_its_role(tmp_path: Path, service: str) -> None:
    address = free_address()
    environment = environment_for(tmp_path, **{f"LOCKSTEP_{service}_LISTEN".upper(): address})
    with subprocess.Popen(
        [LOCKSTEP, "serve", service], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        eventually(lambda: is_ready(address))
        process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert re.search(r'"event": "service is up"', messages)
    assert "Traceback" not in messages
    with open_control(f"sqlite:///{tmp_path}/control.db") as control:
        successor = take_lease(control, service, "another", 1, now_ns=1)
    assert successor is not None
    assert successor.generation == 2


def told(**changes: object) -> Incident:
    whole = incident("i1")
    verdict = whole.verdict.model_copy(update={"since_ns": T0, "component": "nic:[/h3]/eth1"})
    opened = {"opened_ns": T0 + 12 * SECOND, "updated_ns": T0 + 12 * SECOND, "verdict": verdict}
    return whole.model_copy(update=opened | changes)


def test_incident_is_one_line_when_it_opens_and_one_when_it_closes(capsys: pytest.CaptureFixture[str]) -> None:
    _announce(told(), T0 + 17 * SECOND + SECOND // 2)
    assert capsys.readouterr().out == (
        "22:13:32 comm_slow nic:[/h3]/eth1 (0.97, told 17.5 s after it began): "
        "h3's eth1 sends at a tenth of its rate, says Zoë\n"
    )
    _announce(told(updated_ns=T0 + 17 * SECOND), T0 + 18 * SECOND)
    assert capsys.readouterr().out == ""
    _announce(told(state="closed", updated_ns=T0 + 60 * SECOND, closed_because="the part has been normal again"), T0)
    assert capsys.readouterr().out == "22:14:20 closed nic:[/h3]/eth1: the part has been normal again\n"
