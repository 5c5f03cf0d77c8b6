"""Receivers made through the API: every change is audited, names are unique, addresses and secrets lie sealed."""

import base64
import json
import signal
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select, update

from lockstep.alerts import Target
from lockstep.errors import BadInput, NotPresent, SealBroken, StoreVersionMismatch
from lockstep.sealing import Keyring
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.documents import list_audit
from lockstep.state.tables import ALERT_TARGETS
from lockstep.state.targets import (
    LostTarget,
    change_target,
    create_target,
    delete_target,
    enable_target,
    list_health,
    list_targets,
    meet_targets,
    read_health,
    seal_targets,
    write_health,
)
from tests.lockstep.state.child import child, die_in_mid_sealing

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HOOK = Target(name="ops", kind="webhook", url="https://example.com/hooks/verysecret", secrets=(SECRET,))
PAGER = Target(name="pager", kind="pagerduty", secrets=("routing-key-1",))
CLEAR = ("verysecret", SECRET, "routing-key-1")


def create(db: ControlDatabase, *targets: Target) -> None:
    for target in targets:
        create_target(db, target, who="ada", why="", now_ns=5)


def write_clear(db: ControlDatabase, target: Target) -> None:
    """Make a receiver as releases before this one did."""
    create(db, target)
    mine = update(ALERT_TARGETS).where(ALERT_TARGETS.c.id == target.name)
    with db.begin() as connection:
        connection.execute(mine.values(document=target.model_dump_json()))


def documents(db: ControlDatabase) -> dict[str, str]:
    with db.read() as connection:
        rows = connection.execute(select(ALERT_TARGETS)).all()
    return {row.id: row.document for row in rows}


def is_clear(text: str) -> bool:
    return any(secret in text for secret in CLEAR)


def add_key(db: ControlDatabase, key: bytes) -> None:
    assert db.keys.file is not None
    db.keys.file.write_text(f"{base64.b64encode(key).decode()}\n{db.keys.file.read_text()}")


def test_receiver_is_made_changed_and_deleted_with_a_line_each(db: ControlDatabase) -> None:
    create(db, HOOK)
    with pytest.raises(BadInput, match="there is a target 'ops' already"):
        create(db, HOOK)
    for change in (partial(change_target, db, PAGER), partial(delete_target, db, "pager")):
        with pytest.raises(NotPresent, match="there is no target 'pager'"):
            change(who="ada", why="", now_ns=5)
    change_target(db, HOOK, who="bob", why="moved", now_ns=6)
    delete_target(db, "ops", who="eve", why="", now_ns=7)
    assert list_targets(db) == []
    lines = [(line.who, line.what, line.subject) for line in list_audit(db, 9)]
    acts = [("eve", "delete_target"), ("bob", "change_target"), ("ada", "create_target")]
    assert lines == [(*act, "ops") for act in acts]


def test_number_of_receivers_is_bounded(db: ControlDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.state.targets.MOST_TARGETS", 2)
    create(db, *(HOOK.model_copy(update={"name": f"t{number}"}) for number in range(2)))
    with pytest.raises(BadInput, match="which is as many as can be"):
        create(db, PAGER)


def test_receiver_is_known_since_it_was_first_met_and_enabled_again_with_a_line(db: ControlDatabase) -> None:
    for names, now_ns in ((["b", "ops"], 5), (["ops", "c"], 9), ([], 10)):
        meet_targets(db, names, now_ns)
    assert {name: health.since_ns for name, health in list_health(db).items()} == {"ops": 5, "b": 5, "c": 9}
    with db.begin() as connection:
        gone = read_health(connection, "ops", 6).model_copy(update={"disabled_because": "410", "failures_in_row": 4})
        write_health(connection, "ops", gone)
    enable_target(db, "ops", who="ada", why="it is back", now_ns=7)
    health = list_health(db)["ops"]
    assert (health.disabled_because, health.failures_in_row, health.since_ns) == (None, 0, 5)
    assert list_audit(db, 1)[0].what == "enable_target"


def test_rows_in_clear_are_read_and_sealed_once_and_neither_address_nor_secret_is_in_the_row_then(
    db: ControlDatabase,
) -> None:
    write_clear(db, HOOK)
    create(db, PAGER)
    assert list_targets(db) == [HOOK, PAGER]
    assert is_clear(documents(db)["ops"])
    seal_targets(db)
    sealed = documents(db)
    assert not any(map(is_clear, sealed.values()))
    assert list_targets(db) == [HOOK, PAGER]
    seal_targets(db)
    assert documents(db) == sealed
    moved = HOOK.model_copy(update={"url": "https://example.com/hooks/verysecret2"})
    change_target(db, moved, who="ada", why="", now_ns=6)
    assert not is_clear(documents(db)["ops"])
    assert list_targets(db) == [moved, PAGER]


def test_new_key_seals_anew_at_the_next_start_and_the_old_one_opens_until_then(db: ControlDatabase) -> None:
    create(db, HOOK)
    before = documents(db)["ops"]
    add_key(db, b"n" * 32)
    assert list_targets(db) == [HOOK]
    create(db, PAGER)
    seal_targets(db)
    assert documents(db)["ops"] != before
    assert db.keys.file is not None
    db.keys.file.write_text(db.keys.file.read_text().split()[0])
    assert list_targets(db) == [HOOK, PAGER], "the old key is needed no more"


def test_lost_key_loses_its_receivers_and_no_others(db: ControlDatabase) -> None:
    create(db, HOOK)
    assert db.keys.file is not None
    kept = db.keys.file.read_text()
    db.keys.file.unlink()
    seal_targets(db)
    assert not db.keys.file.exists(), "nothing had to be sealed"
    create(db, PAGER)
    lost, pager = list_targets(db)
    assert isinstance(lost, LostTarget)
    assert (lost.name, lost.kind, lost.url, lost.secrets, lost.shown_address) == ("ops", "webhook", "", (), "")
    assert "the address and the secrets of ops cannot be opened: key " in lost.lost_because
    assert f"is not in {db.keys.file}" in lost.lost_because
    assert pager == PAGER
    seal_targets(db)
    assert isinstance(list_targets(db)[0], LostTarget), "what is lost is not written over"
    db.keys.file.write_text(db.keys.file.read_text() + kept)
    assert list_targets(db) == [HOOK, PAGER]


def test_row_does_not_open_in_another_s_place(db: ControlDatabase) -> None:
    create(db, HOOK, PAGER)
    stolen = json.loads(documents(db)["pager"]) | {"sealed": json.loads(documents(db)["ops"])["sealed"]}
    with db.begin() as connection:
        mine = update(ALERT_TARGETS).where(ALERT_TARGETS.c.id == "pager")
        connection.execute(mine.values(document=json.dumps(stolen)))
    swapped = list_targets(db)[1]
    assert isinstance(swapped, LostTarget)
    assert "or changed since" in swapped.lost_because


def test_without_a_key_receivers_are_neither_made_nor_opened(
    db: ControlDatabase, db_url: str, tmp_path: Path
) -> None:
    create(db, HOOK)
    keyless = open_control(db_url, keys=Keyring(tmp_path / "named.key"))
    with keyless as other, pytest.raises(SealBroken, match=r"named\.key cannot be read"):
        create(other, PAGER)
    with open_control(db_url) as other:
        with pytest.raises(SealBroken, match="target:pager cannot be sealed: this process was given no key file"):
            create(other, PAGER)
        (lost,) = list_targets(other)
        assert isinstance(lost, LostTarget)
        assert "this process was given no key file" in lost.lost_because
        seal_targets(other)
    assert list_targets(db) == [HOOK]


def test_row_that_cannot_be_read_is_named_without_its_content(db: ControlDatabase) -> None:
    create(db, HOOK)
    for text in ("[]", "{", '{"name":"ops","kind":"webhook","url":"gopher://verysecret"}'):
        with db.begin() as connection:
            connection.execute(update(ALERT_TARGETS).values(document=text))
        with pytest.raises(StoreVersionMismatch, match="holds a target 'ops' that") as caught:
            list_targets(db)
        assert "verysecret" not in str(caught.value)


@pytest.mark.slow
def test_kill_in_the_middle_of_sealing_loses_nothing(tmp_path: Path) -> None:
    several = [HOOK.model_copy(update={"name": name}) for name in ("a", "b", "c")]
    keys = Keyring(tmp_path / "secrets.key", is_made=True)
    url = f"sqlite:///{tmp_path / 'control.db'}"
    with open_control(url, keys=keys) as db:
        for target in several:
            write_clear(db, target)
    with child(die_in_mid_sealing, url, str(keys.file)) as process:
        assert process.wait() == -signal.SIGKILL
    with open_control(url, keys=keys) as db:
        assert list_targets(db) == several
        seal_targets(db)
        assert list_targets(db) == several
        files = list(tmp_path.glob("control.db*"))
        assert not [file.name for file in files if SECRET.encode() in file.read_bytes()], "not even in the gaps"
