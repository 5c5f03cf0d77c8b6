"""The plugin and the worker, built once."""

from pathlib import Path

import pytest

from lockstep.errors import NotPresent
from testbed.ranks import build_ranks


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worker")
    try:
        build_ranks(folder)
    except NotPresent as absence:
        pytest.skip(str(absence))
    return folder
