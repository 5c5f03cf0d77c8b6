"""The store is migrated, described, backed up, restored and filled.

A token is shown once and kept nowhere; lists and revocations go by its id.
"""

import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lockstep.capture.files import Capture, CaptureInfo
from lockstep.clock import SystemClock
from lockstep.records import Event
from lockstep.state.database import open_control
from lockstep.state.documents import list_audit
from lockstep.state.tokens import find_token
from tests.builders import make, rows
from tests.cli.commands import Run, check_failure
from tests.conftest import REPO
from tests.lockstep.capture.build import write_capture

MIGRATIONS = sorted(path.stem for path in (REPO / "lockstep/store/schema").glob("*.sql"))


def status(lockstep: Run, **variables: str) -> dict[str, Any]:
    (inventory,) = json.loads(lockstep("store", "status", "--json", **variables).out)
    assert isinstance(inventory, dict)
    return inventory


def rows_in(inventory: dict[str, Any], table: str) -> int:
    (size,) = [size for size in inventory["tables"] if size["table"] == table]
    return int(size["rows"])


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture with three events of today, which no retention takes away yet."""
    target, now_ns = tmp_path / "events.tar.zst", SystemClock().now_ns()
    events = rows(*(make(Event, ts_ns=now_ns, message=str(number)) for number in range(3)))
    info = CaptureInfo(job="j1", start_ns=now_ns, end_ns=now_ns + 1)
    write_capture(target, Capture(info, tables={"events": events}))
    return target


def test_plan_follows_hosts_days_retention_and_the_machines_there_are(lockstep: Run) -> None:
    def plan(*arguments: str, **variables: str) -> dict[str, Any]:
        outcome = lockstep("store", "plan", "--json", *arguments, **variables)
        assert outcome.code == 0, outcome.err
        planned: dict[str, Any] = json.loads(outcome.out)
        return planned

    fleet = plan("--hosts", "1250", "--days", "30")
    assert (fleet["shards"], fleet["nodes"]) == (3, 6)
    kept = {table["table"]: table["kept_days"] for table in fleet["tables"]}
    assert (kept["collectives"], kept["transfer_stats"], kept["nic_counters"]) == (3, 30, 30)
    assert plan("--hosts", "1250", "--disk-tb", "30")["shards"] == 1
    assert plan("--hosts", "1250", "--disk-tb", "30", "--cores", "2", "--replicas", "1")["nodes"] == 3
    shorter = plan("--hosts", "1250", LOCKSTEP_STORE_RETENTION_DAYS='{"transfer_stats": 7}')
    assert shorter["shards"] == 2
    told = lockstep("store", "plan", "--hosts", "16").out
    assert "16 hosts after 30 days: 9,395 rows/s, 19.1 billion rows, 0.2 TB" in told
    assert "1 shards of 2 replicas: 2 nodes" in told


def test_store_is_migrated_loaded_once_and_restored(
    lockstep: Run, state: Path, capture: Path, tmp_path: Path
) -> None:
    check_failure(lockstep("store", "load", capture), "run `lockstep store migrate` first")
    before = lockstep("store", "status")
    assert before.code == 0
    assert all(f"{name}  not applied" in before.out for name in MIGRATIONS)
    first, again = lockstep("store", "migrate"), lockstep("store", "migrate")
    assert (first.code, first.out) == (0, "")
    assert first.err.startswith(f"chdb://{state}/store: {', '.join(MIGRATIONS)}; retention set on ")
    assert (again.code, again.err) == (0, f"chdb://{state}/store: nothing to do; retention set on 0 tables\n")
    after = lockstep("store", "status")
    assert (after.code, after.err) == (0, "")
    assert all(f"{name}  applied " in after.out for name in MIGRATIONS)
    assert "not applied" not in after.out
    assert "transfer_stats" in after.out
    for _ in range(2):
        outcome = lockstep("store", "load", capture)
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "loaded 3 rows\n")
    inventory = status(lockstep)
    assert (inventory["address"], inventory["pending"]) == (f"chdb://{state}/store", [])
    assert [f"{past['number']:04}_{past['name']}" for past in inventory["applied"]] == MIGRATIONS
    assert rows_in(inventory, "events") == 3
    made, fresh = lockstep("store", "backup", "monday"), tmp_path / "fresh"
    assert (made.code, made.out, made.err) == (0, "", f"chdb://{state}/store: wrote backup monday\n")
    assert lockstep("store", "backup").code == 0
    lengths = sorted(len(folder.name) for folder in (state / "store" / "backups").iterdir())
    assert lengths == [len("monday"), len("2023-11-14T221320Z")]
    check_failure(lockstep("store", "restore", "monday"), "is not empty: a backup is restored into a new directory")
    shutil.copytree(state / "store" / "backups", fresh / "store" / "backups")
    restored = lockstep("store", "restore", "monday", LOCKSTEP_STATE_DIR=str(fresh))
    assert (restored.code, restored.err) == (0, f"chdb://{fresh}/store: restored backup monday\n")
    assert rows_in(status(lockstep, LOCKSTEP_STATE_DIR=str(fresh)), "events") == 3


def test_store_that_is_none_is_one_sentence_and_no_password(lockstep: Run, tmp_path: Path, state: Path) -> None:
    check_failure(lockstep("store", "load", tmp_path / "absent"), "there is no such file or directory")
    assert not state.exists()
    (tmp_path / "file").write_text("")
    for url, sentence in {
        "mysql://db": "a store is chdb:///directory or http(s)://",
        "chdb://relative": "an embedded store is chdb:// and an absolute directory",
        "http://user:secret@127.0.0.1:1/x": "does not answer",
        f"chdb://{tmp_path}/file/store": f"{tmp_path}/file/store: Not a directory",
    }.items():
        outcome = lockstep("store", "status", LOCKSTEP_STORE_URL=url)
        check_failure(outcome, sentence)
        assert "secret" not in outcome.err
    outcome = lockstep("store", "migrate", LOCKSTEP_STORE_RETENTION_DAYS='{"dreams": 1}')
    check_failure(outcome, "retention names tables that do not exist: dreams")


def listed(lockstep: Run) -> list[dict[str, Any]]:
    tokens: list[dict[str, Any]] = json.loads(lockstep("token", "list", "--json").out)
    return tokens


def test_secret_is_in_no_file_and_no_list_which_has_names_as_they_are(lockstep: Run, state: Path) -> None:
    made = lockstep("token", "create", "host h0", "--scope", "ingest", "--host", "h0")
    assert (made.code, made.err) == (0, "this is shown once; keep it in a file that only its user can read\n")
    assert re.fullmatch(r"lks_[0-9a-f]{16}_[A-Za-z0-9_-]{43}\n", made.out), "alone on standard output"
    token = made.out.strip()
    with open_control(f"sqlite:///{state}/control.db") as control:
        known = find_token(control, token)
    assert known is not None
    assert (known.scope, known.host, known.name) == ("ingest", "h0", "host h0")
    names = ("host h0", "a[/red]", "[bold]b[/]", ":smile:")
    for name in names[1:]:
        lockstep("token", "create", name)
    secret = token.split("_", 2)[2]
    files = [file for file in state.rglob("*") if file.is_file()]
    assert files
    assert [file for file in files if secret.encode() in file.read_bytes()] == []
    outcome = lockstep("token", "list")
    assert (outcome.code, outcome.err) == (0, "")
    assert token.split("_")[1] in outcome.out
    assert all(name in outcome.out for name in names)
    assert secret not in outcome.out + lockstep("token", "list", "--json").out


def test_revoked_token_is_worthless_and_its_reason_is_in_the_audit(lockstep: Run, state: Path) -> None:
    secret = lockstep("token", "create", "reader").out.strip()
    (token,) = listed(lockstep)
    outcome = lockstep("token", "revoke", token["id"], "--why", "lost laptop")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", f"token {token['id']} is revoked\n")
    assert listed(lockstep)[0]["revoked_ns"] > 0
    with open_control(f"sqlite:///{state}/control.db") as control:
        assert find_token(control, secret) is None
        told = [(line.what, line.why) for line in list_audit(control, 10)]
        assert told == [("revoke_token", "lost laptop"), ("create_token", "")]
    assert lockstep("audit", "verify").out.startswith("2 lines are as they were written; the newest digest is ")
    with sqlite3.connect(state / "control.db") as touched:
        touched.execute("UPDATE audit SET who = 'nobody' WHERE id = 1")
    check_failure(lockstep("audit", "verify"), "line 1 of the audit, or one before it, is not as it was written")


def test_what_cannot_be_done_is_one_sentence_without_a_password(lockstep: Run) -> None:
    check_failure(lockstep("token", "revoke", "abc"), "there is no token 'abc'")
    check_failure(lockstep("token", "create", "x", "--scope", "ingest"), "so it needs the host that may send with it")
    check_failure(lockstep("token", "create", "x", "--scope", "root"), "--scope", code=2)
    for url, sentence in {
        "mysql://u:secret@db/x": "the control database cannot be kept in mysql",
        "sqlite:////proc/no/control.db": "cannot be used",
        "postgresql://u:secret@127.0.0.1:1/x?connect_timeout=1": "cannot be used",
    }.items():
        outcome = lockstep("token", "list", LOCKSTEP_CONTROL_URL=url)
        check_failure(outcome, sentence)
        assert "secret" not in outcome.err
