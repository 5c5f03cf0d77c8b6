"""An open control database of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.sealing import Keyring
from lockstep.state.database import ControlDatabase, open_control


@pytest.fixture
def db(control_url: str, tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(control_url, keys=Keyring(tmp_path / "secrets.key", is_made=True)) as database:
        yield database
