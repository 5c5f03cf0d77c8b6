"""A control database, its lease and a planner over both, for tests of whole rounds."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.leases import Lease
from tests.planner.site import SiteMaker
from tests.planner.world import Harness, lease_of, planner_of, start


@pytest.fixture(scope="session")
def empty_control(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a control database that holds nothing but its schema; to copy it takes less than to make one."""
    path = tmp_path_factory.mktemp("control") / "control.db"
    open_control(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def control(tmp_path: Path, empty_control: Path) -> Iterator[ControlDatabase]:
    shutil.copy(empty_control, tmp_path / "control.db")
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


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
