"""deploy/make-tokens makes one token a host, once, that the control database knows and nobody else can read."""

import os
import subprocess
from pathlib import Path

import pytest

from lockstep.clock import SystemClock
from lockstep.state.database import open_control
from lockstep.state.tokens import find_token, list_tokens, revoke_token
from tests.conftest import REPO
from tests.deploy.processes import LOCKSTEP

HOSTS = "gpu-001\n\n# a rack that is not there yet\ngpu-002.cluster\n../evil\n.hidden\n"


def make_tokens(tmp_path: Path, hosts: str, lockstep: str = LOCKSTEP) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "LOCKSTEP": lockstep, "LOCKSTEP_STATE_DIR": str(tmp_path / "state")}
    command = [REPO / "deploy/make-tokens", tmp_path / "tokens"]
    return subprocess.run(command, input=hosts, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    done = make_tokens(tmp_path, HOSTS)
    assert done.returncode == 0, done.stderr
    return tmp_path / "tokens"


def test_each_host_has_a_token_that_is_good_for_it_alone(tmp_path: Path, tokens: Path) -> None:
    with open_control(f"sqlite:///{tmp_path}/state/control.db") as control:
        known = {file.name: find_token(control, file.read_text().strip()) for file in tokens.iterdir()}

    assert {name: token and (token.scope, token.host) for name, token in known.items()} == {
        "gpu-001": ("ingest", "gpu-001"),
        "gpu-002.cluster": ("ingest", "gpu-002.cluster"),
    }


def test_nobody_else_can_read_them(tokens: Path) -> None:
    assert tokens.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in tokens.iterdir()} == {0o600}


def test_second_run_makes_only_what_is_missing(tmp_path: Path, tokens: Path) -> None:
    before = {file.name: file.read_text() for file in tokens.iterdir()}

    make_tokens(tmp_path, HOSTS + "gpu-003\n")

    after = {file.name: file.read_text() for file in tokens.iterdir()}
    assert after.keys() - before.keys() == {"gpu-003"}
    assert before.items() <= after.items()


def test_failure_stops_it_and_leaves_no_empty_token(tmp_path: Path) -> None:
    done = make_tokens(tmp_path, "gpu-001\ngpu-002\n", lockstep="false")

    assert done.returncode != 0
    assert [file.name for file in (tmp_path / "tokens").iterdir() if not file.name.startswith(".")] == []


def test_deleted_file_gives_a_new_token_beside_the_old_one_which_stays_until_it_is_revoked(
    tmp_path: Path, tokens: Path
) -> None:
    (tokens / "gpu-001").unlink()
    make_tokens(tmp_path, "gpu-001\n")

    with open_control(f"sqlite:///{tmp_path}/state/control.db") as control:
        first, *_, last = [token for token in list_tokens(control) if token.host == "gpu-001"]
        revoke_token(control, first.id, SystemClock().now_ns())
        current = find_token(control, (tokens / "gpu-001").read_text().strip())
    assert current == last
