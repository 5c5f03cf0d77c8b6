"""The lease of a control database and a planner over both, for tests of whole rounds."""

from pathlib import Path

import pytest

from lockstep.state.database import ControlDatabase
from lockstep.state.leases import Lease
from tests.planner.world import Harness, SiteMaker, lease_of, planner_of, start


@pytest.fixture
def lease(control: ControlDatabase) -> Lease:
    return lease_of(control)


@pytest.fixture
def harness(tmp_path: Path, control: ControlDatabase, lease: Lease) -> Harness:
    """A planner that acts by itself, where h3 of a job of eight nodes has just been named."""
    controller = start(tmp_path, control)
    return Harness(control, controller, lease, planner_of(control, controller))


@pytest.fixture
def sites(tmp_path: Path, control: ControlDatabase, lease: Lease) -> SiteMaker:
    return SiteMaker(tmp_path, control, lease)
