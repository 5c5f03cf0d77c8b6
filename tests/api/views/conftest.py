"""A control database of one's own, beside the store that a module shares."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.state.database import ControlDatabase, open_control


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database
