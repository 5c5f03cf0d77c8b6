"""The control database opens from a URL, keeps transactions apart, and says plainly what is wrong with it."""

import sqlite3
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import func, insert, make_url, select, text
from sqlalchemy.exc import IntegrityError

from lockstep.errors import BadInput, ControlAway, NotPresent
from lockstep.state.database import LOCK_WAIT_MS, ControlDatabase, _directory_lock, open_control
from lockstep.state.documents import AuditLine, list_audit, record
from lockstep.state.incidents import get_incident, list_incidents, save_incidents
from lockstep.state.tables import DECISIONS, LEASES
from tests.fixtures.postgres import GUARDED_PASSWORD
from tests.lockstep.state.build import incident
from tests.lockstep.state.child import child, open_and_sign, save_pairs, stop_half_way

LEASE = insert(LEASES).values(name="x", generation=1, expires_ns=1)


def leave_a_line(db: ControlDatabase, subject: str) -> None:
    record(db, who="ada", what="look", subject=subject, why="", now_ns=1)


def count_leases(db: ControlDatabase) -> int:
    with db.read() as connection:
        return connection.execute(select(func.count()).select_from(LEASES)).scalar_one()


def test_sqlite_file_is_durable_and_one_that_a_stranger_keeps_locked_is_away(tmp_path: Path) -> None:
    with open_control(f"sqlite:///{tmp_path}/deep/down/control.db") as db, db.read() as connection:
        settings = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        found = [connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in settings]
    assert found == ["wal", 2, 1, 10_000]
    path = tmp_path / "control.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN EXCLUSIVE")
        assert f"{path} cannot be used: database is locked" in away_message(f"sqlite:///{path}", lock_wait_ms=1)


def test_block_that_raises_is_undone_and_references_are_checked(db: ControlDatabase) -> None:
    with suppress(ZeroDivisionError), db.begin() as connection:
        connection.execute(LEASE)
        assert list_audit(db, 1) == [], "a reader does not wait for a writer"
        raise ZeroDivisionError
    assert count_leases(db) == 0
    orphan = {"id": "d1", "incident": "nowhere", "job": "j", "created_ns": 1, "document": "{}"}
    with pytest.raises(IntegrityError), db.begin() as connection:
        connection.execute(insert(DECISIONS).values(orphan))


@pytest.mark.slow
def test_processes_that_open_an_empty_database_at_once_all_succeed(control_url: str) -> None:
    names = ("a", "b", "c")
    with ExitStack() as stack:
        openers = [stack.enter_context(child(open_and_sign, control_url, name)) for name in names]
        assert [opener.heard() for opener in openers] == ["ready"] * 3
        for opener in openers:
            opener.go()
        counts = [int(opener.heard()) for opener in openers]
    assert max(counts) == 3
    with open_control(control_url) as db:
        assert {line.who for line in list_audit(db, 10)} == set(names)


def test_second_opener_of_a_sqlite_file_waits_while_the_first_prepares_it(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    with ThreadPoolExecutor(1) as pool:
        # As the first opener stands in mid-switch; without its directory lock SQLite would refuse the second at once.
        with _directory_lock(tmp_path), closing(sqlite3.connect(path, isolation_level=None)) as first:
            first.execute("BEGIN IMMEDIATE")
            second = pool.submit(open_control, f"sqlite:///{path}")
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)
        second.result().close()


def test_value_that_no_database_can_hold_is_the_callers_fault(db: ControlDatabase, kept_database: str) -> None:
    with pytest.raises(BadInput, match="cannot hold this value"), db.begin() as connection:
        connection.execute(insert(LEASES).values(name="x", generation=2**70, expires_ns=1))
    with pytest.raises(BadInput, match="cannot hold this value"):
        leave_a_line(db, "half a character: \ud800")
    with open_control(kept_database) as postgres, pytest.raises(BadInput, match="cannot hold this value"):
        get_incident(postgres, "a\x00b")


def test_lines_of_the_audit_come_back_newest_first_and_as_many_as_asked(db: ControlDatabase) -> None:
    first = AuditLine(id=1, ts_ns=5, who="ada", what="approve", subject="decision d1", why="agreed with Zoë")
    second = AuditLine(id=2, ts_ns=4, who="bob", what="undo", subject="decision d1", why="")
    for line in (first, second):
        record(db, who=line.who, what=line.what, subject=line.subject, why=line.why, now_ns=line.ts_ns)
    assert list_audit(db, 10) == [second, first]
    assert list_audit(db, 1) == [second]
    with pytest.raises(BadInput, match="limit is -1"):
        list_audit(db, -1)


def test_lost_connection_is_replaced_and_one_lost_in_mid_transaction_is_away_and_undone(
    postgres_database: str,
) -> None:
    with open_control(postgres_database) as db:
        leave_a_line(db, "before")
        with psycopg.connect(postgres_database, autocommit=True) as killer:
            killer.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        leave_a_line(db, "after")
        assert [line.subject for line in list_audit(db, 10)] == ["after", "before"]

        def write_and_lose_the_server() -> None:
            with db.begin() as connection:
                connection.execute(LEASE)
                connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

        with pytest.raises(ControlAway, match="terminating connection"):
            write_and_lose_the_server()
        assert count_leases(db) == 0


def test_wrong_password_and_missing_grant_are_away_and_named(guarded_database: str, kept_database: str) -> None:
    with open_control(guarded_database) as db:
        leave_a_line(db, "the right password works")
    message = away_message(guarded_database.replace(GUARDED_PASSWORD, "hunter2"))
    assert "password authentication failed" in message
    assert "hunter2" not in message
    own, foreign = (make_url(url).database for url in (guarded_database, kept_database))
    assert "permission denied" in away_message(guarded_database.replace(f"/{own}?", f"/{foreign}?"))


ABSENT = (
    "postgresql://ada:hunter2@/lockstep?host=/nowhere",
    "postgresql://ada:hunter2@127.0.0.1:1/lockstep",
    "postgresql://ada@/lockstep?host=/nowhere&password=hunter2",
    "postgresql://ada:hunter2@/lockstep?host=/nowhere&no_such_option=hunter2",
)
UNUSABLE = (
    "mysql://ada:hunter2@db/lockstep",
    "postgresql://ada:p@hunter2@db/lockstep",
    "postgresql://ada:hunter2@db:port/lockstep",
    "hunter2",
    "sqlite://",
    "sqlite:///:memory:",
)


@pytest.mark.parametrize("url", ABSENT + UNUSABLE)
def test_url_of_an_absent_server_or_of_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ControlAway if url in ABSENT else BadInput) as caught:
        open_control(url)
    message = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in message
    assert url in UNUSABLE or "the control database lockstep at" in message


def test_damaged_file_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    with open_control(f"sqlite:///{path}") as db:
        leave_a_line(db, "before")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    assert "malformed; it is damaged, restore it from a backup" in away_message(f"sqlite:///{path}")
    path.write_bytes(b"not a database at all" * 500)
    message = away_message(f"sqlite:///{path}")
    assert f"{path} cannot be used: file is not a database; it is damaged, restore it from a backup" in message
    for nowhere in (path / "control.db", tmp_path):
        assert "cannot be used" in away_message(f"sqlite:///{nowhere}")


@pytest.mark.slow
def test_kill_in_mid_transaction_leaves_nothing_half_written(db: ControlDatabase, db_url: str) -> None:
    with child(stop_half_way, db_url) as process:
        assert process.heard() == "in mid-transaction"
    with pytest.raises(NotPresent):
        get_incident(db, "half")
    # The dead process held a lock on this very id; writing it shows that the lock went with the process.
    save_incidents(db, [incident("half")], None)
    assert list_incidents(db) == [incident("half")]


@pytest.mark.slow
def test_kill_at_any_moment_keeps_what_was_acknowledged_in_whole_pairs(db: ControlDatabase, db_url: str) -> None:
    with child(save_pairs, db_url) as process:
        acknowledged = {process.heard() for _ in range(20)}
    found = [saved.id for saved in list_incidents(db, limit=100_000)]
    left, right = ({name.removeprefix(side) for name in found if name.startswith(side)} for side in ("left", "right"))
    assert acknowledged <= left == right


def away_message(url: str, lock_wait_ms: int = LOCK_WAIT_MS) -> str:
    """Return all that a log would show when the database cannot be opened."""
    with pytest.raises(ControlAway) as caught:
        open_control(url, lock_wait_ms=lock_wait_ms)
    return "".join(traceback.format_exception(caught.value))


def test_file_of_the_database_is_its_owner_s_alone_also_where_an_earlier_release_made_it(tmp_path: Path) -> None:
    file = tmp_path / "state" / "control.db"
    for _ in range(2):
        with open_control(f"sqlite:///{file}") as db:
            record(db, who="ann", what="approve", subject="d1", why="", now_ns=7)
            modes = {each.name: oct(each.stat().st_mode & 0o777) for each in file.parent.iterdir()}
        assert modes["control.db"] == modes["control.db-wal"] == "0o600"
        file.chmod(0o644)
    assert oct(file.parent.stat().st_mode & 0o777) == "0o700"
