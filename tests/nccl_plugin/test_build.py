"""The plugin enters every training process, so what it exports and what it needs of the host is pinned here."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lockstep import __version__

PLUGIN = Path(__file__).resolve().parents[2] / "nccl_plugin"
NEWEST_GLIBC = (2, 17)  # CentOS 7 and the first release for aarch64: whatever host NCCL runs on has it
COMPILERS = ["clang", "aarch64-linux-gnu-gcc", "clang --target=aarch64-linux-gnu"]


@pytest.fixture(scope="module", params=["cc", *(pytest.param(other, marks=pytest.mark.slow) for other in COMPILERS)])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler: str = request.param
    if compiler == "cc":  # of which all tests make use
        return Path(request.getfixturevalue("plugin_library"))
    needed = ["make", "readelf", compiler.split()[0]]
    if "aarch64" in compiler:
        needed.append("aarch64-linux-gnu-gcc")  # clang takes the linker and the C library from its neighbour
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"building the plugin with {compiler} needs {', '.join(missing)}")
    build = tmp_path_factory.mktemp("nccl_plugin")
    output_of("make", "-C", str(PLUGIN), f"BUILD={build}", f"CC={compiler}")
    return build / "liblockstep-nccl.so"


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def exported_symbols(library: Path) -> dict[str, str]:
    """Return what others may find in the library: name and kind (OBJECT, FUNC)."""
    rows = map(str.split, output_of("readelf", "--dyn-syms", "--wide", str(library)).splitlines())
    entries = (row for row in rows if len(row) == 8 and row[0].rstrip(":").isdigit())
    return {name: kind for _, _, _, kind, bind, _, section, name in entries if bind != "LOCAL" and section != "UND"}


def test_only_the_profiler_tables_and_the_replayed_clock_are_exported(library: Path) -> None:
    tables = {f"ncclProfiler_v{version}": "OBJECT" for version in range(1, 8)}  # data, as NCCL reads it
    assert exported_symbols(library) == tables | {"lockstep_replay_clock": "FUNC"}


def test_hosts_as_old_as_glibc_2_17_can_load_it(library: Path) -> None:
    listing = output_of("readelf", "--version-info", "--wide", str(library))
    required = set(re.findall(r"Name: (\S+)\s+Flags:", listing))
    assert required, "the plugin calls libc, so readelf must list at least one version"
    assert {name for name in required if not is_old_enough(name)} == set()
    young = ("GLIBC_2.18", "GLIBC_ABI_DT_RELR", "GCC_3.0")  # the second is asked for by a linker of glibc 2.36
    assert [is_old_enough(name) for name in ("GLIBC_2.2.5", "GLIBC_2.17", *young)] == [True] * 2 + [False] * 3


def is_old_enough(symbol_version: str) -> bool:
    numbers = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", symbol_version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) <= NEWEST_GLIBC


def test_only_libc_is_needed_and_it_stays_loaded_when_nccl_closes_it(library: Path) -> None:
    dynamic = output_of("readelf", "--dynamic", "--wide", str(library))
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert set(needed) - {"ld-linux-aarch64.so.1"} == {"libc.so.6"}  # every process has its loader already
    assert "NODELETE" in re.findall(r"\(FLAGS_1\).*Flags: (.+)", dynamic)[0].split()
    assert f"{__version__}\0".encode() in library.read_bytes()
