"""A control database and its lease, for tests of whole rounds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.leases import Lease
from tests.planner.world import lease_of


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


@pytest.fixture
def lease(control: ControlDatabase) -> Lease:
    return lease_of(control)
