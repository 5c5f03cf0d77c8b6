"""Reads the layouts of NCCL's profiler interface out of the debug information in its binary.

NVIDIA ships libnccl.so.2 with DWARF, so what NCCL hands to a plugin is known from the binary that does it. To write
the golden data again, from the repository's root:

    python -m nccl_plugin.abi.read_dwarf [RELEASE ...]

It downloads one wheel after the other (some 900 MB for all) and says which files changed.
"""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elftools.dwarf.die import DIE
from elftools.dwarf.dwarfinfo import DWARFInfo
from elftools.elf.elffile import ELFFile

from importers.traces.nccl_abi.layouts import RELEASES, ReleaseFacts, StructureFacts, VersionFacts, facts_file
from lockstep.errors import BadInput, NotPresent
from nccl_plugin.abi import names

COMPOSITE = ("DW_TAG_structure_type", "DW_TAG_union_type")
NAMES_ANOTHER = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")
Rename = Callable[[str], str]


def read_release(library: Path, release: str) -> ReleaseFacts:
    """Return what this libnccl.so.2 says about the profiler interface, under our names."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        symbols = known_symbols(elf)
        # NCCL's profiler loader; the other 200 sources take long and add nothing.
        types = list(top_level_types(elf.get_dwarf_info(), "plugin/profiler"))
        return {
            "nccl": release,
            "symbols": symbols,
            "events": enumeration(types, "ncclProfileGroup", names.EVENTS),
            "states": enumeration(types, "ncclProfilerProxyOpSendPosted", names.STATES),
            "versions": {str(version): version_facts(types, version) for version in versions_of(symbols)},
        }


def known_symbols(elf: ELFFile) -> list[str]:
    """Return the tables that the binary can ask a plugin for: the names that it holds as constants."""
    section = elf.get_section_by_name(".rodata")
    constants = section.data() if section else b""
    found = {int(number) for number in re.findall(rb"(?<![A-Za-z])ncclProfiler_v(\d+)(?=\0)", constants)}
    return [f"ncclProfiler_v{version}" for version in sorted(found)]


def versions_of(symbols: Iterable[str]) -> list[int]:
    return [int(symbol.removeprefix("ncclProfiler_v")) for symbol in symbols]


def top_level_types(dwarf: DWARFInfo, source: str) -> Iterator[DIE]:
    """Yield what is declared at the top of each compilation unit whose source file has this in its name."""
    for unit in dwarf.iter_CUs():
        top = unit.get_top_DIE()
        if source in (name_of(top) or ""):
            yield from top.iter_children()


def version_facts(types: list[DIE], version: int) -> VersionFacts:
    """Return the three structures of one version of the interface."""

    def facts(typedef: str, rename: Rename) -> StructureFacts:
        return structure_facts(find_type(types, f"{typedef}_v{version}_t"), rename)

    return {
        "table": facts("ncclProfiler", by(names.TABLE)),
        "descriptor": facts("ncclProfilerEventDescr", each_part(by(names.DESCRIPTOR))),
        "arguments": facts("ncclProfilerEventStateArgs", by(names.ARGUMENTS)),
    }


def structure_facts(structure: DIE, rename: Rename) -> StructureFacts:
    """Return the structure's size and, for each field down to the last level, where it stands."""
    fields = {rename(path): (offset, size) for path, offset, size in _fields(structure)}
    return {"size": structure.attributes["DW_AT_byte_size"].value, "fields": fields}


def find_type(types: list[DIE], name: str) -> DIE:
    """Return the structure or union that goes by this name."""
    for die in types:
        if name_of(die) == name and die.tag in (*NAMES_ANOTHER, *COMPOSITE):
            return behind_names(die)
    raise BadInput(f"the debug information describes no {name}: it was stripped, or NCCL has moved the type")


def enumeration(types: list[DIE], having: str, ours: dict[str, str]) -> dict[str, int]:
    """Return our names and the values of the enumeration that has this member."""
    for die in types:
        members = list(die.iter_children()) if die.tag == "DW_TAG_enumeration_type" else []
        values = {name_of(member) or "": member.attributes["DW_AT_const_value"].value for member in members}
        if having in values:
            in_order = sorted(values.items(), key=lambda item: item[1])
            return {by(ours)(name): value for name, value in in_order}
    raise BadInput(f"the debug information describes no enumeration that has {having}")


def by(ours: dict[str, str]) -> Rename:
    """Return the renaming of one table in names.py, which refuses what is not in it."""

    def rename(name: str) -> str:
        if name not in ours:
            raise BadInput(f"NCCL has `{name}`, for which nccl_plugin/abi/names.py has no name yet: look at it first")
        return ours[name]

    return rename


def each_part(rename: Rename) -> Rename:
    """Return the renaming that goes over a dotted name part by part."""
    return lambda path: ".".join(map(rename, path.split(".")))


def name_of(die: DIE) -> str | None:
    """Return the name in the source, or None for what has none."""
    name = die.attributes.get("DW_AT_name")
    return None if name is None else name.value.decode()


def behind_names(die: DIE) -> DIE:
    """Return the type itself, past typedefs and qualifiers."""
    while die.tag in NAMES_ANOTHER:
        die = die.get_DIE_from_attribute("DW_AT_type")
    return die


def _fields(structure: DIE, base: int = 0, path: tuple[str, ...] = ()) -> Iterator[tuple[str, int, int]]:
    for member in structure.iter_children():
        if member.tag != "DW_TAG_member":
            continue
        location = member.attributes.get("DW_AT_data_member_location")  # a union's members have none
        offset = base + (0 if location is None else location.value)
        name = name_of(member)
        here = path if name is None else (*path, name)
        kind = behind_names(member.get_DIE_from_attribute("DW_AT_type"))
        if kind.tag in COMPOSITE:
            yield from _fields(kind, offset, here)
        else:
            yield ".".join(here), offset, _size(kind)


def _size(kind: DIE) -> int:
    size = kind.attributes.get("DW_AT_byte_size")
    return int(kind.cu["address_size"] if size is None else size.value)  # compilers may leave a pointer's size out


def as_text(facts: ReleaseFacts) -> str:
    """Return the file's content: one field a line, the same bytes for the same facts."""
    spread = json.dumps(facts, indent=1)
    return re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", spread) + "\n"


PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")  # the same NCCL, built with one CUDA or the other
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
PIP_DOWNLOAD = (
    *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),
    "--no-cache-dir",  # else a gigabyte stays behind that nobody else needs
)


@contextmanager
def downloaded_library(release: str) -> Iterator[Path]:
    """Give the release's libnccl.so.2, for this machine's architecture, until the block ends; some 600 MB of disk.

    Raises NotPresent when no wheel can be had, be it that PyPI is out of reach.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-nccl-") as folder:
        wheel = _download(release, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            library = Path(archive.extract(LIBRARY, folder))
        wheel.unlink()
        yield library


def _download(release: str, folder: Path) -> Path:
    complaints = []
    for package in PACKAGES:
        done = subprocess.run(
            [*PIP_DOWNLOAD, "--dest", str(folder), f"{package}=={release}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return next(folder.glob("*.whl"))
        complaints += done.stderr.strip().splitlines()[-1:]
    raise NotPresent(f"pip cannot download the wheel of NCCL {release}: {'; '.join(complaints)}")


def main(releases: list[str]) -> None:
    """Write the golden data of these releases."""
    for release in releases:
        with downloaded_library(release) as library:
            text = as_text(read_release(library, release))
        file = facts_file(release)
        changed = not file.exists() or file.read_text(encoding="utf-8") != text
        file.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{file.name}: {'written' if changed else 'as it was'}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or list(RELEASES))
