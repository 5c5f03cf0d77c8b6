"""An open control database of each kind."""

from collections.abc import Iterator

import pytest

from lockstep.control.database import ControlDatabase, open_control


@pytest.fixture
def db(control_url: str) -> Iterator[ControlDatabase]:
    with open_control(control_url) as database:
        yield database
