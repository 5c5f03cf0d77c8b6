"""Receivers made through the API: every change with its line in the audit, secrets kept, names unique."""

import pytest

from lockstep.alert_settings import MOST_TARGETS, Target
from lockstep.errors import BadInput, NotPresent
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import list_audit
from lockstep.state.targets import (
    change_target,
    create_target,
    delete_target,
    enable_target,
    list_health,
    list_targets,
    meet_targets,
    read_health,
    write_health,
)


def target(name: str = "ops", url: str = "https://example.com/") -> Target:
    return Target(name=name, kind="slack", url=url)


def create(db: ControlDatabase, name: str = "ops") -> None:
    create_target(db, target(name), who="ada", why="new team", now_ns=5)


def test_receiver_is_made_changed_and_deleted_with_a_line_each(db: ControlDatabase) -> None:
    create(db)
    change_target(db, target(url="https://example.org/"), who="bob", why="moved", now_ns=6)
    assert [each.url for each in list_targets(db)] == ["https://example.org/"]
    delete_target(db, "ops", who="eve", why="", now_ns=7)
    assert list_targets(db) == []
    lines = [(line.who, line.what, line.subject) for line in list_audit(db, 9)]
    assert lines == [
        ("eve", "delete_target", "ops"),
        ("bob", "change_target", "ops"),
        ("ada", "create_target", "ops"),
    ]


def test_name_is_given_once_and_unknown_ones_are_said(db: ControlDatabase) -> None:
    create(db)
    with pytest.raises(BadInput, match="there is a target 'ops' already"):
        create(db)
    with pytest.raises(NotPresent, match="there is no target 'x'"):
        change_target(db, target("x"), who="ada", why="", now_ns=5)
    with pytest.raises(NotPresent, match="there is no target 'x'"):
        delete_target(db, "x", who="ada", why="", now_ns=5)
    assert len(list_audit(db, 9)) == 1


def test_number_of_receivers_is_bounded(db: ControlDatabase) -> None:
    for number in range(MOST_TARGETS):
        create(db, f"t{number}")
    with pytest.raises(BadInput, match="which is as many as can be"):
        create(db, "one-more")


def test_receiver_is_known_since_it_was_first_met(db: ControlDatabase) -> None:
    meet_targets(db, ["b", "a"], 5)
    meet_targets(db, ["a", "c"], 9)
    meet_targets(db, [], 10)
    assert {name: health.since_ns for name, health in list_health(db).items()} == {"a": 5, "b": 5, "c": 9}


def test_receiver_that_was_disabled_is_enabled_with_a_line(db: ControlDatabase) -> None:
    meet_targets(db, ["ops"], 5)
    with db.begin() as connection:
        gone = read_health(connection, "ops", 6).model_copy(update={"disabled_because": "410", "failures_in_row": 4})
        write_health(connection, "ops", gone)
    enable_target(db, "ops", who="ada", why="it is back", now_ns=7)
    health = list_health(db)["ops"]
    assert (health.disabled_because, health.failures_in_row, health.since_ns) == (None, 0, 5)
    assert list_audit(db, 1)[0].what == "enable_target"
