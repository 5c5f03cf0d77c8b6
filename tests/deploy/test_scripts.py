"""What people run as it stands: deploy/make-secrets, deploy/make-tokens, and the manual's backup and restore."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lockstep.clock import SystemClock
from lockstep.records import Agent
from lockstep.state.database import open_control
from lockstep.state.incidents import list_incidents, save_incidents
from lockstep.state.tokens import create_token, find_token, list_tokens, revoke_token
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from lockstep.tables import TABLE_BY_NAME
from tests.builders import make, rows
from tests.cli.commands import LOCKSTEP, environment_for
from tests.conftest import REPO
from tests.deploy.compose_file import load_compose, read_users
from tests.deploy.conftest import make_secrets
from tests.lockstep.state.build import incident

HOSTS = "gpu-001\n\n# a rack that is not there yet\ngpu-002.cluster\n../evil\n.hidden\n"
BACKUP = (REPO / "docs/operations.md").read_text().partition("\n## Backup\n")[2].partition("\n## ")[0]


def files_in(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_every_secret_is_made_and_a_second_run_makes_what_was_deleted(
    secrets: Path,
) -> None:
    assert files_in(secrets).keys() == {Path(file).name for file in load_compose().secrets.values()}
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in secrets.iterdir()} == {0o444}
    passwords = {file.read_text() for file in secrets.glob("*-password")}
    assert len(passwords) == 3
    assert {len(password) for password in passwords} == {64}
    hashes = {element.tag: element.text for element in ElementTree.parse(secrets / "clickhouse-hashes.xml").getroot()}
    users = {"lockstep": "store-password", "grafana": "grafana-store-password"}
    assert hashes == {
        read_users()[user].hash_name: hashlib.sha256((secrets / file).read_bytes()).hexdigest()
        for user, file in users.items()
    }
    before = files_in(secrets)
    make_secrets(secrets)
    assert files_in(secrets) == before
    (secrets / "store-password").unlink()
    make_secrets(secrets)
    changed = {name for name, text in files_in(secrets).items() if text != before[name]}
    assert changed == {"store-password", "clickhouse-hashes.xml"}


def make_tokens(tmp_path: Path, hosts: str, lockstep: str = LOCKSTEP) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "LOCKSTEP": lockstep, "LOCKSTEP_STATE_DIR": str(tmp_path / "state")}
    command = [REPO / "deploy/make-tokens", tmp_path / "tokens"]
    return subprocess.run(command, input=hosts, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow  # a process for each token
def test_each_host_gets_a_token_that_is_good_for_it_alone_once_and_a_new_one_beside_the_old(tmp_path: Path) -> None:
    done = make_tokens(tmp_path, HOSTS)
    assert done.returncode == 0, done.stderr
    tokens = tmp_path / "tokens"
    before = files_in(tokens)
    assert tokens.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in tokens.iterdir()} == {0o600}
    (tokens / "gpu-001").unlink()
    make_tokens(tmp_path, HOSTS)
    assert {name for name, text in files_in(tokens).items() if text != before[name]} == {"gpu-001"}
    with open_control(f"sqlite:///{tmp_path}/state/control.db") as control:
        known = {name: find_token(control, text.strip()) for name, text in before.items()}
        first, *_, last = [token for token in list_tokens(control) if token.host == "gpu-001"]
        revoke_token(control, first.id, SystemClock().now_ns())
        assert find_token(control, (tokens / "gpu-001").read_text().strip()) == last
    assert {name: token and (token.scope, token.host) for name, token in known.items()} == {
        name: ("ingest", name) for name in ("gpu-001", "gpu-002.cluster")
    }


def test_failure_stops_it_and_leaves_no_empty_token(tmp_path: Path) -> None:
    assert make_tokens(tmp_path, "gpu-001\ngpu-002\n", lockstep="false").returncode != 0
    assert [name for name in files_in(tmp_path / "tokens") if not name.startswith(".")] == []


@pytest.mark.slow  # five processes, each of which opens the store or the control database
def test_backup_and_restore_bring_everything_back(tmp_path: Path) -> None:
    make_backup, restore = re.findall(r"^```sh\n(.*?)^```", BACKUP, re.DOTALL | re.MULTILINE)
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    with open_store(f"chdb://{old / 'store'}") as store:
        migrate(store, Layout(store.database), now_ns=1)
        store.insert(TABLE_BY_NAME["agents"], rows(make(Agent, host="h17")), token="t")
    with open_control(f"sqlite:///{old / 'control.db'}") as control:
        save_incidents(control, [incident("i1")], None)
        create_token(control, scope="ingest", host="h17", name="agent-h17", now_ns=1)
    run_block(make_backup, old, tmp_path)
    said = run_block(restore, new, tmp_path)
    assert "agents" in said
    assert "agent-h17" in said
    with open_control(f"sqlite:///{new / 'control.db'}") as control:
        assert [one.id for one in list_incidents(control)] == ["i1"]
    with open_store(f"chdb://{new / 'store'}") as store:
        assert store.query("SELECT host FROM agents")["host"].to_pylist() == ["h17"]


def run_block(block: str, state: Path, folder: Path) -> str:
    here = block.replace("LOCKSTEP_STATE_DIR=/var/lib/lockstep", f"LOCKSTEP_STATE_DIR={state}")
    lines = [line for line in here.splitlines() if not line.startswith("systemctl")]
    assert len(lines) >= 4
    environment = environment_for(state)
    environment["PATH"] = f"{Path(LOCKSTEP).parent}:{Path(sys.executable).parent}:{environment['PATH']}"
    command = ["sh", "-ec", "\n".join(lines)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
