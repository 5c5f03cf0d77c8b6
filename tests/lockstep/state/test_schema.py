"""The schema is made once, goes forward step by step, and never back."""

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, delete, inspect, select, text, update
from sqlalchemy.exc import DBAPIError

from lockstep.errors import ControlAway, LockstepError, StoreVersionMismatch
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.tables import METADATA, SCHEMA, STEPS, Step, prepare_schema

NEWEST = 1 + len(STEPS)
OF_THE_FIRST_VERSION = {"control_schema", "leases", "incidents", "decisions", "tokens", "audit"}
ADD_A_COLUMN = Step(NEWEST + 1, (text("ALTER TABLE detail_requests ADD COLUMN asked_by VARCHAR"),))
ADD_AN_INDEX = Step(NEWEST + 2, (text("CREATE INDEX detail_requests_by_asker ON detail_requests (asked_by)"),))


@pytest.fixture
def db(control_url: str) -> Iterator[ControlDatabase]:
    """A database of its own, since these tests change the schema."""
    with open_control(control_url) as database:
        yield database


def version_of(db: ControlDatabase) -> int:
    with db.read() as connection:
        return int(connection.execute(select(SCHEMA.c.version)).scalar_one())


def test_empty_database_gets_all_tables_and_the_newest_version(db: ControlDatabase) -> None:
    with db.read() as connection:
        assert set(inspect(connection).get_table_names()) == set(METADATA.tables)
    assert version_of(db) == NEWEST
    assert [step.version for step in STEPS] == list(range(2, NEWEST + 1))


def test_older_database_walks_through_the_steps_it_has_not_seen(db: ControlDatabase) -> None:
    for steps in ((ADD_A_COLUMN,), (ADD_A_COLUMN, ADD_AN_INDEX)):
        with db.begin() as connection:
            prepare_schema(connection, steps)
        assert version_of(db) == steps[-1].version
    with db.read() as connection:
        assert "asked_by" in {column["name"] for column in inspect(connection).get_columns("detail_requests")}
        assert "detail_requests_by_asker" in {
            index["name"] for index in inspect(connection).get_indexes("detail_requests")
        }


def test_database_of_the_first_version_gets_what_came_since(db: ControlDatabase, control_url: str) -> None:
    with db.begin() as connection:
        for table in reversed(METADATA.sorted_tables):
            if table.name not in OF_THE_FIRST_VERSION:
                table.drop(connection)
        connection.execute(text("CREATE TABLE wishes (id VARCHAR PRIMARY KEY)"))
        connection.execute(update(SCHEMA).values(version=1))
    with open_control(control_url) as upgraded, upgraded.read() as connection:
        assert set(inspect(connection).get_table_names()) == {*METADATA.tables, "wishes"}
        for table in METADATA.sorted_tables:
            columns = {column["name"] for column in inspect(connection).get_columns(table.name)}
            indexes = {index["name"] for index in inspect(connection).get_indexes(table.name)}
            assert columns == set(table.c.keys())
            assert indexes >= {index.name for index in table.indexes}
        assert version_of(upgraded) == NEWEST


def test_step_that_fails_leaves_the_older_schema_whole(db: ControlDatabase) -> None:
    broken = Step(NEWEST + 2, (text("ALTER TABLE nowhere ADD COLUMN x INTEGER"),))
    with pytest.raises((LockstepError, DBAPIError), match="nowhere"), db.begin() as connection:
        prepare_schema(connection, (ADD_A_COLUMN, broken))
    assert version_of(db) == NEWEST
    with db.read() as connection:
        assert "asked_by" not in {column["name"] for column in inspect(connection).get_columns("detail_requests")}


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            lambda connection: connection.execute(update(SCHEMA).values(version=99)),
            StoreVersionMismatch,
            "has schema version 99, and this Lockstep knows versions up to",
        ),
        (
            lambda connection: connection.execute(delete(SCHEMA)),
            StoreVersionMismatch,
            "does not say which schema version it has",
        ),
        (SCHEMA.drop, ControlAway, "already exists"),  # tables of somebody else
    ],
    ids=["newer", "version_lost", "foreign"],
)
def test_database_that_cannot_be_brought_up_to_date_is_refused(
    db: ControlDatabase,
    control_url: str,
    damage: Callable[[Connection], object],
    error: type[LockstepError],
    message: str,
) -> None:
    with db.begin() as connection:
        damage(connection)
    with pytest.raises(error, match=message):
        open_control(control_url)
