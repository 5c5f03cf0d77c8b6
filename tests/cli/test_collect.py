"""The agent of a training host starts with a token, sends what it reads, and leaves when it is told to."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import LOCKSTEP, Run, check_failure, environment_for
from tests.collector.fake_gateway import FakeGateway
from tests.waiting import eventually


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("lks_secret\n")
    return str(file)


def test_agent_without_a_token_says_how_to_get_one(lockstep: Run) -> None:
    check_failure(lockstep("collect"), "make one with `lockstep token create` and set collector.token_file")


def test_empty_token_is_no_token(lockstep: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    outcome = lockstep("collect", LOCKSTEP_COLLECTOR_TOKEN_FILE=str(tmp_path / "token"))
    check_failure(outcome, "the agent needs a token")


def test_token_that_cannot_be_read_is_named(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("collect", LOCKSTEP_COLLECTOR_TOKEN_FILE=str(tmp_path / "absent"))
    check_failure(outcome, f"cannot read the host's token from {tmp_path}/absent")


def test_address_that_no_gateway_can_have_is_one_sentence(lockstep: Run, token_file: str) -> None:
    outcome = lockstep("collect", LOCKSTEP_COLLECTOR_TOKEN_FILE=token_file, LOCKSTEP_COLLECTOR_SERVER="head:8642")
    check_failure(outcome, "'head:8642' is not the address of a gateway; expected http(s)://host:port")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_agent_sends_until_it_is_told_to_stop(tmp_path: Path, token_file: str, how: signal.Signals) -> None:
    with FakeGateway() as gateway:
        environment = environment_for(
            tmp_path / "state",
            LOCKSTEP_COLLECTOR_TOKEN_FILE=token_file,
            LOCKSTEP_COLLECTOR_SERVER=gateway.url,
            LOCKSTEP_COLLECTOR_HOST="h7",
        )
        with subprocess.Popen([LOCKSTEP, "collect"], env=environment, stdout=subprocess.PIPE) as agent:
            eventually(lambda: len(gateway.received) >= 1)
            agent.send_signal(how)
            said, _ = agent.communicate(timeout=30)
    assert (agent.returncode, said) == (0, b"")
    assert {(batch.agent, batch.token) for batch in gateway.received} == {("h7", "Bearer lks_secret")}
    assert len(gateway.received) >= 2, "the end sends what is left"
