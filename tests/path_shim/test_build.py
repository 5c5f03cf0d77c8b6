"""The shim enters every training process: what it exports and needs is pinned, and its driver plays rough."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.path_shim.playing import build_shim
from tests.testbed.paths.shim import LIBRARY
from tests.waiting import LIMIT_S


@pytest.fixture
def library() -> Path:
    if shutil.which("readelf") is None:
        pytest.skip("looking into the library needs readelf")
    return build_shim() / LIBRARY


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_only_connect_is_exported(library: Path) -> None:
    rows = map(str.split, output_of("readelf", "--dyn-syms", "--wide", library).splitlines())
    entries = [row for row in rows if len(row) == 8 and row[0].rstrip(":").isdigit()]

    assert [row[7] for row in entries if row[4] != "LOCAL" and row[6] != "UND"] == ["connect"]


def test_only_libc_is_needed(library: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "--dynamic", "--wide", library))

    assert set(needed) - {"libdl.so.2"} == {"libc.so.6"}  # glibc before 2.34 has dlsym in a library of its own


def test_nothing_is_allocated(library: Path) -> None:
    symbols = output_of("readelf", "--dyn-syms", "--wide", library)

    assert re.findall(r"\b(malloc|calloc|realloc|free|pthread_mutex_lock)@", symbols) == []


def test_driver_passes_with_threads_forks_and_damaged_files() -> None:
    subprocess.run([build_shim("driver") / "driver"], check=True, timeout=LIMIT_S)
