"""The shim enters every training process: what it exports and needs is pinned, and its driver plays rough."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.path_shim.playing import build_shim
from tests.testbed.paths.shim import LIBRARY


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_only_connect_is_exported_only_libc_is_needed_and_nothing_is_allocated() -> None:
    if shutil.which("readelf") is None:
        pytest.skip("looking into the library needs readelf")
    library = build_shim() / LIBRARY
    symbols = output_of("readelf", "--dyn-syms", "--wide", library)
    entries = [row for row in map(str.split, symbols.splitlines()) if len(row) == 8 and row[0].rstrip(":").isdigit()]
    assert [row[7] for row in entries if row[4] != "LOCAL" and row[6] != "UND"] == ["connect"]
    assert re.findall(r"\b(malloc|calloc|realloc|free|pthread_mutex_lock)@", symbols) == []
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "--dynamic", "--wide", library))
    assert set(needed) - {"libdl.so.2"} == {"libc.so.6"}  # glibc before 2.34 has dlsym in a library of its own
