"""The commands for backup and restore in docs/operations.md, run as they stand, bring everything back."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.records import Agent
from lockstep.state.database import open_control
from lockstep.state.incidents import list_incidents, save_incidents
from lockstep.state.tokens import create_token
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from lockstep.tables import TABLE_BY_NAME
from tests.builders import make, rows
from tests.cli.commands import LOCKSTEP, environment_for
from tests.conftest import REPO
from tests.lockstep.state.build import incident

pytestmark = pytest.mark.slow  # five processes, each of which opens the store or the control database

SECTION = (REPO / "docs/operations.md").read_text().partition("\n## Backup\n")[2].partition("\n## ")[0]


def test_backup_and_restore_bring_everything_back(tmp_path: Path) -> None:
    make_backup, restore = re.findall(r"^```sh\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
    old, new = tmp_path / "old", tmp_path / "new"
    fill(old)

    run_block(make_backup, old, tmp_path)
    said = run_block(restore, new, tmp_path)

    assert "agents" in said
    assert "agent-h17" in said
    with open_control(f"sqlite:///{new / 'control.db'}") as control:
        assert [one.id for one in list_incidents(control)] == ["i1"]
    with open_store(f"chdb://{new / 'store'}") as store:
        assert store.query("SELECT host FROM agents")["host"].to_pylist() == ["h17"]


def fill(state: Path) -> None:
    """Make a state directory with a row in the store, and an incident and a token in the control database."""
    state.mkdir()
    with open_store(f"chdb://{state / 'store'}") as store:
        migrate(store, Layout(store.database), now_ns=1)
        store.insert(TABLE_BY_NAME["agents"], rows(make(Agent, host="h17")), token="t")
    with open_control(f"sqlite:///{state / 'control.db'}") as control:
        save_incidents(control, [incident("i1")], None)
        create_token(control, scope="ingest", host="h17", name="agent-h17", now_ns=1)


def run_block(block: str, state: Path, folder: Path) -> str:
    here = block.replace("LOCKSTEP_STATE_DIR=/var/lib/lockstep", f"LOCKSTEP_STATE_DIR={state}")
    lines = [line for line in here.splitlines() if not line.startswith("systemctl")]
    assert len(lines) >= 4
    environment = environment_for(state)
    environment["PATH"] = f"{Path(LOCKSTEP).parent}:{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", "\n".join(lines)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
