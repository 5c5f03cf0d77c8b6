"""An open control database of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.control.database import ControlDatabase, open_control
from lockstep.sealing import Keyring


@pytest.fixture
def db(control_url: str, tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(control_url, keys=Keyring(tmp_path / "secrets.key", is_made=True)) as database:
        yield database
