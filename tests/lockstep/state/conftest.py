"""An open control database of each kind; both are made once, and each test gets an empty one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from lockstep.sealing import Keyring
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.tables import METADATA, SCHEMA
from tests.fixtures.control import empty_control
from tests.tiers import two_kinds


@pytest.fixture(params=two_kinds("sqlite", "postgres"))
def db_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        (tmp_path / "control.db").write_bytes(empty_control())
        return f"sqlite:///{tmp_path / 'control.db'}"
    return str(request.getfixturevalue("kept_database"))


@pytest.fixture
def db(db_url: str, tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(db_url, keys=Keyring(tmp_path / "secrets.key", is_made=True)) as database:
        if db_url.startswith("postgresql"):
            names = ", ".join(table.name for table in METADATA.sorted_tables if table is not SCHEMA)
            with database.begin() as connection:
                connection.execute(text(f"TRUNCATE {names} RESTART IDENTITY"))
        yield database
