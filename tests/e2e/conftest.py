"""What whole systems need that may not be installed."""

import pytest

from lockstep.errors import NotPresent
from tests.testbed.slurm import check_installed


@pytest.fixture(scope="session")
def slurm_is_installed() -> None:
    try:
        check_installed()
    except NotPresent as absent:
        pytest.skip(str(absent))
