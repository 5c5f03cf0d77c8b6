"""ft_launcher's questions are answered by the real command, from what a real server's control database says."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from lockstep.state.decisions import save_decisions, save_isolated
from lockstep.state.incidents import save_incidents
from planner.controllers.nvrx import METHOD, SERVICE, NvrxController, NvrxOptions
from tests.api.build import Api, running_api
from tests.api.fake_store import FakeStore
from tests.cli.commands import LOCKSTEP, Run, check_failure, environment_for
from tests.lockstep.state.build import decision, incident
from tests.lockstep.state.test_executions import isolated
from tests.planner.controllers.test_nvrx import decode
from tests.waiting import LIMIT_S


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running_api(tmp_path, FakeStore()) as running:
        save_incidents(running.parts.control, [incident("i1")], None)
        save_decisions(running.parts.control, [decision("d1", created_ns=4 * 10**18)], None)
        save_isolated(running.parts.control, isolated(reason="ECC errors"), running.lease("planner"))
        yield running


@contextmanager
def serving(tmp_path: Path, *words: str) -> Iterator[str]:
    """Run `lockstep nvrx …` and give what it says when it is up; it must end well when told to."""
    environment = environment_for(tmp_path / "state")
    with subprocess.Popen([LOCKSTEP, "nvrx", *words], env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline()
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(LIMIT_S) == 0
            finally:
                process.kill()


def ask_health(socket: Path) -> dict[int, object]:
    import grpc

    with grpc.insecure_channel(f"unix://{socket}") as channel:
        return decode(channel.unary_unary(f"/{SERVICE}/{METHOD}")(b"", timeout=LIMIT_S))


def test_host_is_judged_by_what_the_control_database_says(api: Api, tmp_path: Path) -> None:
    socket, control = tmp_path / "nvhcd.sock", api.parts.control
    to = ("--server", str(api.client.base_url), "--token", api.make_token("read"))
    with serving(tmp_path, "health", "--socket", str(socket), "--name", "h3", *to) as said:
        assert said == f"lockstep: health of h3 at unix://{socket}\n"
        out = ask_health(socket)
        save_isolated(control, isolated(reason="ECC errors", state="returned"), api.lease("planner"))
        back = ask_health(socket)
    assert (out.get(1, 0), out.get(4, "")) == (0, "ECC errors")
    assert (back.get(1, 0), back.get(4, "")) == (1, "")


@pytest.mark.slow
def test_host_is_judged_by_the_controllers_notes(tmp_path: Path) -> None:
    socket, notes = tmp_path / "nvhcd.sock", tmp_path / "notes"
    NvrxController(NvrxOptions(notes)).isolate("h1", "mark-1", "xid 79")
    with serving(tmp_path, "health", "--socket", str(socket), "--name", "h1", "--directory", str(notes)):
        told = ask_health(socket)
    assert (told.get(1, 0), told[4]) == (0, "xid 79")


@pytest.mark.slow
def test_failed_cycle_is_answered_from_the_newest_decision(api: Api, tmp_path: Path) -> None:
    to = ("--server", str(api.client.base_url), "--token", api.make_token("read"))
    with serving(tmp_path, "attribution", "--listen", "127.0.0.1:0", *to) as said:
        url = said.split()[-1]
        with httpx.Client(base_url=url, trust_env=False, timeout=LIMIT_S) as launcher:
            launcher.post("/logs", json={"log_path": "/logs/c0.log", "job_id": "train"})
            answer = launcher.get("/logs", params={"log_path": "/logs/c0.log"}).json()
    assert (answer["status"], answer["recommendation"]["action"]) == ("completed", "RESTART")
    assert json.dumps(answer).count("a spare is cheaper than waiting") == 2


def test_place_to_listen_that_makes_no_sense_is_said(lockstep: Run, tmp_path: Path) -> None:
    check_failure(lockstep("nvrx", "health", "--socket", str(tmp_path / "none" / "s")), "there is no directory")
    check_failure(lockstep("nvrx", "health", "--socket", str(tmp_path / ("s" * 200))), "cannot listen on")
    check_failure(lockstep("nvrx", "attribution", "--listen", "8644"), "--listen '8644' is no host:port")
