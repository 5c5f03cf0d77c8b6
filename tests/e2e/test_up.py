"""The first two minutes of a newcomer: `lockstep up --demo` names the NIC, and Ctrl-C leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from lockstep.capture.files import read_capture
from lockstep.store.migrations import Layout, check_migrated
from lockstep.store.store import open_store
from tests.testbed.services import LOCKSTEP, await_found, free_port
from tests.waiting import LIMIT_S, eventually

ABOUT_NO_PART = ("telemetry_lost", "global_slow")


class Running:
    """A `lockstep up` process, its address and its state directory."""

    def __init__(self, state: Path, *arguments: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.state = state
        self.environment = os.environ | {"LOCKSTEP_STATE_DIR": str(state), "LOCKSTEP_API_LISTEN": f"127.0.0.1:{port}"}
        self.process = subprocess.Popen(
            [LOCKSTEP, "up", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=LIMIT_S, trust_env=False).json()

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [LOCKSTEP, *arguments], env=self.environment, capture_output=True, text=True, timeout=LIMIT_S
        )

    def interrupt(self) -> tuple[str, str]:
        """Press Ctrl-C, as a terminal does for the whole group, and return what was printed."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.communicate(timeout=LIMIT_S)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "state", "--demo")
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def wait_for_incident(
    running: Running, is_ripe: Callable[[dict[str, Any]], bool] = lambda incident: True
) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        assert running.process.poll() is None, running.process.communicate()
        with suppress(httpx.TransportError):
            return next(filter(is_ripe, running.get("/api/v1/incidents")["items"][:1]), None)
        return None

    return await_found(find, "an incident is there")


def processes_of_group(group: int) -> list[str]:
    listed = subprocess.run(["ps", "-e", "-o", "pgid=,pid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.split()[0] == str(group)]


def slows_the_steps(incident: dict[str, Any]) -> bool:
    ratio = incident["verdict"]["impact"]["step_time_ratio"]
    return ratio is not None and 1.03 < ratio < 1.3  # 1.07 when nothing else is late


@pytest.mark.slow
def test_the_demo_names_the_nic_and_every_command_agrees(demo: Running, tmp_path: Path) -> None:
    incident = wait_for_incident(demo)
    verdict = incident["verdict"]
    assert (verdict["class"], verdict["component"]) == ("comm_slow", "nic:h3/eth1")
    assert verdict["ambiguous_with"] == ["link:h3/eth1--leaf1"]
    wait_for_incident(demo, slows_the_steps)  # told first, after a few slow steps, and put right

    decisions: list[Any] = await_found(
        lambda: demo.get(f"/api/v1/incidents/{incident['id']}")["decisions"], "it is decided"
    )
    assert decisions[0]["mode"] == "observe"
    assert decisions[0]["verdicts"] == [verdict["id"]]

    asked = demo.run("diagnose", "--job", incident["job"], "--json", "--server", demo.url)
    assert [one["component"] for one in json.loads(asked.stdout)] == ["nic:h3/eth1"]

    saved = tmp_path / "case.tar.zst"
    captured = demo.run(
        "capture", "--job", incident["job"], "--since", "5m", "--out", str(saved), "--server", demo.url
    )
    assert captured.returncode == 0, captured.stderr
    assert {"comms", "collectives", "transfer_stats", "agents"} <= set(read_capture(saved).tables)
    replayed = demo.run("diagnose", str(saved), "--json")
    assert [one["component"] for one in json.loads(replayed.stdout)] == ["nic:h3/eth1"]

    out, err = demo.interrupt()
    assert demo.process.returncode == 0, err
    assert "nic:h3/eth1 needs" in out
    assert demo.url in out


BUSY, RUNS, WATCHED_S = 8, 10, 120


@pytest.fixture
def overload() -> Iterator[None]:
    """More loops that never rest than the machine has cores, at the same priority as the head node."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("run", range(1, RUNS + 1))
@pytest.mark.usefixtures("overload")
def test_on_an_overloaded_machine_nobody_innocent_is_named_and_nothing_called_over(demo: Running, run: int) -> None:
    incidents: dict[str, Any] = {}
    eventually(lambda: is_ready(demo))
    deadline = time.monotonic() + WATCHED_S
    while time.monotonic() < deadline:
        incidents |= {each["id"]: each for each in demo.get("/api/v1/incidents")["items"]}
        time.sleep(1)
    told = [(each["verdict"]["class"], each["verdict"]["component"], each["state"]) for each in incidents.values()]
    print(f"run {run}: {told}")
    assert {part for kind, part, _ in told if kind not in ABOUT_NO_PART} <= {"nic:h3/eth1"}
    assert {state for _, part, state in told if part == "nic:h3/eth1"} <= {"open"}, "the NIC stays slow to the end"


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_no_lock_and_no_half_written_file(demo: Running) -> None:
    eventually(lambda: has_rows(demo))
    _, err = demo.interrupt()
    assert demo.process.returncode == 0, err
    assert "Traceback" not in err
    assert processes_of_group(demo.process.pid) == []
    left = {path.name for path in demo.state.iterdir()}
    assert left == {"store", "gateway", "control.db"}, "a -wal or -shm beside it would be an unclean close"
    assert sorted(path.name for path in (demo.state / "gateway").iterdir()) == ["identity", "watermarks.json"]
    assert list(demo.state.rglob("*.partial*")) == []
    with open_store(f"chdb://{demo.state / 'store'}") as store:
        check_migrated(store, Layout(store.database))
        assert store.query("SELECT count() AS n FROM collectives")["n"][0].as_py() > 0


def has_rows(running: Running) -> bool:
    """Return whether more than a thousand have come in."""
    with suppress(httpx.TransportError):
        metrics = httpx.get(running.url + "/metrics", trust_env=False, timeout=LIMIT_S).text
        counted = re.search(r"^lockstep_ingest_rows_total\S* (\S+)$", metrics, re.MULTILINE)
        return counted is not None and float(counted[1]) > 1_000
    return False


@pytest.mark.slow
def test_up_without_the_demo_answers_and_stops_on_sigterm(tmp_path: Path) -> None:
    running = Running(tmp_path / "state")
    eventually(lambda: is_ready(running))
    refused = httpx.get(running.url + "/api/v1/incidents", trust_env=False, timeout=LIMIT_S)
    assert refused.status_code == 401, "reads need a token"
    running.process.send_signal(signal.SIGTERM)
    _, err = running.process.communicate(timeout=LIMIT_S)
    assert running.process.returncode == 0, err


@pytest.mark.slow
def test_demo_ends_although_nobody_reads_what_it_prints(demo: Running) -> None:
    """The terminal is gone; its collectors were left running, and the process never ended."""
    eventually(lambda: has_rows(demo))
    for pipe in (demo.process.stdout, demo.process.stderr):
        assert pipe is not None
        pipe.close()
    demo.process.send_signal(signal.SIGTERM)
    assert demo.process.wait(LIMIT_S) == 0


def is_ready(running: Running) -> bool:
    assert running.process.poll() is None, running.process.communicate()
    with suppress(httpx.TransportError):
        return bool(running.get("/readyz") == {"ready": True})
    return False
