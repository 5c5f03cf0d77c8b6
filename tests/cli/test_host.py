"""The agent of a training host starts with a token, sends what it reads, and leaves when it is told to."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cli.host import StopSignals
from lockstep.fabrics import leaf_spine
from lockstep.topology import dump_topology
from tests.cli.commands import LOCKSTEP, Outcome, Run, check_failure, environment_for
from tests.collector.fake_gateway import FakeGateway
from tests.waiting import LIMIT_S, eventually

NOBODY = {"LOCKSTEP_COLLECTOR_SERVER": "http://127.0.0.1:1", "LOCKSTEP_COLLECTOR_LISTEN": "127.0.0.1:1"}
CLOCKS = {"LOCKSTEP_COLLECTOR_SOURCES": '["clocks"]', "LOCKSTEP_COLLECTOR_HOST": "h3"}


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("lks_secret\n")
    return str(file)


def test_agent_without_a_token_or_a_gateway_s_address_says_so(lockstep: Run, tmp_path: Path, token_file: str) -> None:
    def refusal(file: object, **more: str) -> Outcome:
        return lockstep("collect", LOCKSTEP_COLLECTOR_TOKEN_FILE=str(file), **more)

    check_failure(lockstep("collect"), "make one with `lockstep token create` and set collector.token_file")
    (tmp_path / "empty").write_text("\n")
    check_failure(refusal(tmp_path / "empty"), "the agent needs a token")
    check_failure(refusal(tmp_path / "absent"), f"cannot read the host's token from {tmp_path}/absent")
    sentence = "'head:8642' is not the address of a gateway; expected http(s)://host:port"
    check_failure(refusal(token_file, LOCKSTEP_COLLECTOR_SERVER="head:8642"), sentence)


@contextmanager
def collecting(
    folder: Path, gateway: FakeGateway, token_file: str, **settings: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """Give the agent of h7 in a process of its own, which does not outlive the block, whatever happens in it."""
    environment = environment_for(
        folder / "state",
        LOCKSTEP_COLLECTOR_TOKEN_FILE=token_file,
        LOCKSTEP_COLLECTOR_SERVER=gateway.url,
        LOCKSTEP_COLLECTOR_HOST="h7",
        **settings,
    )
    command = [LOCKSTEP, "collect"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
        try:
            yield agent
        finally:
            agent.kill()


def ask(address: Path, question: bytes) -> bytes:
    """Return the agent's answer; nothing where it is not there yet, or where the question came too slowly for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker, suppress(OSError):
        asker.settimeout(60)
        asker.connect(str(address))
        asker.send(question)
        return asker.recv(1024)
    return b""


@pytest.mark.needs_root
@pytest.mark.slow
def test_agent_that_follows_paths_answers_jobs_that_ask_for_ports(tmp_path: Path, token_file: str) -> None:
    topology, paths = tmp_path / "topology.json", tmp_path / "paths"
    topology.write_text(dump_topology(leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=2)))
    settings = {
        "LOCKSTEP_COLLECTOR_TOPOLOGY": str(topology),
        "LOCKSTEP_COLLECTOR_PATHS_FILE": str(paths / "plan"),
        "LOCKSTEP_COLLECTOR_PATHS_AGENT": str(paths / "agent"),
    }
    with FakeGateway() as gateway, collecting(tmp_path, gateway, token_file, **settings) as agent:
        question = b"1 10.0.0.1 10.0.0.2 5201"  # no plan has named it yet
        eventually(lambda: ask(paths / "agent", question) == b"-")
        agent.send_signal(signal.SIGINT)
        _, said = agent.communicate(timeout=LIMIT_S)
    assert agent.returncode == 0
    assert b"Traceback" not in said


def test_signal_that_came_before_the_wait_ends_it() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before, wakeup = [signal.getsignal(number) for number in numbers], signal.set_wakeup_fd(-1)
    try:
        for number in numbers:
            signals = StopSignals()
            os.kill(os.getpid(), number)
            signals.wait()
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_what_has_to_be_mended_is_the_last_word(lockstep: Run) -> None:
    outcome = lockstep("host", "check", **NOBODY, **CLOCKS)
    assert outcome.code == 1
    assert "failed   head         http://127.0.0.1:1 does not answer" in outcome.out
    assert outcome.err == "lockstep: h3 is not ready: mend head\n"
    as_json = json.loads(lockstep("host", "check", "--json", **NOBODY, **CLOCKS).out)
    assert {each["name"] for each in as_json} == {"head", "collector", "plugin", "clocks"}
    assert as_json[0]["state"] == "failed"
