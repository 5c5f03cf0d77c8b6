"""The real shim and the programs that play against it, built once per run and outside the working tree."""

import atexit
import tempfile
from functools import cache
from pathlib import Path

import pytest

from lockstep.errors import NotPresent
from tests.testbed.paths.shim import build


@cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="lockstep-shim-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@cache
def build_shim(*programs: str) -> Path:
    """Return the folder with the library, and with these programs."""
    try:
        build(_folder(), *programs)
    except NotPresent as absence:
        pytest.skip(str(absence))
    return _folder()
