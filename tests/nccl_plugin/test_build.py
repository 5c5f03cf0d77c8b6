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


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = [tool for tool in ("make", "cc", "nm", "readelf") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"building the plugin needs {', '.join(missing)}")
    build = tmp_path_factory.mktemp("nccl_plugin")
    output_of("make", "-C", str(PLUGIN), f"BUILD={build}")
    return build / "liblockstep-nccl.so"


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_only_the_four_profiler_tables_are_exported(library: Path) -> None:
    lines = output_of("nm", "--dynamic", "--defined-only", "--format=posix", str(library)).splitlines()
    exported = {name: kind for name, kind, *_ in map(str.split, lines)}

    assert exported == {f"ncclProfiler_v{version}": "D" for version in (4, 5, 6, 7)}  # D: data, as NCCL reads it


def test_hosts_as_old_as_glibc_2_17_can_load_it(library: Path) -> None:
    listing = output_of("readelf", "--version-info", "--wide", str(library))
    required = set(re.findall(r"Name: (\S+)\s+Flags:", listing))

    assert required, "the plugin calls libc, so readelf must list at least one version"
    assert {name for name in required if not is_old_enough(name)} == set()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("GLIBC_2.2.5", True),
        ("GLIBC_2.17", True),
        ("GLIBC_2.18", False),
        ("GLIBC_ABI_DT_RELR", False),  # what a linker asks for that packs relocations; glibc has it since 2.36
        ("GCC_3.0", False),
    ],
)
def test_age_of_a_symbol_version_is_read_as_numbers(name: str, answer: bool) -> None:
    assert is_old_enough(name) is answer


def is_old_enough(symbol_version: str) -> bool:
    numbers = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", symbol_version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) <= NEWEST_GLIBC


def test_only_libc_is_needed(library: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "--dynamic", "--wide", str(library)))

    assert needed == ["libc.so.6"]


def test_library_greets_with_the_version_of_the_package(library: Path) -> None:
    assert f"lockstep {__version__}: loaded, recording nothing\0".encode() in library.read_bytes()
