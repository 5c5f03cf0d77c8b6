"""The plugin reads NCCL's memory, so every field of our header stands where NVIDIA's binaries put it."""

import copy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from importers.traces.nccl_abi import arguments_layout, layout
from importers.traces.nccl_abi.layouts import RELEASES, ReleaseFacts, StructureFacts, facts_file, release_facts
from lockstep.errors import BadInput, NotPresent
from nccl_plugin.abi import names
from nccl_plugin.abi.read_dwarf import as_text, by, find_type, structure_facts, top_level_types, versions_of
from nccl_plugin.tests.abi_probe import Place, differences, parse_answers, places, probe_source

PLUGIN = Path(__file__).resolve().parents[2] / "nccl_plugin"
NEWEST = RELEASES[-1]
VERSIONS = range(1, 8)


def compiled(source: str, folder: Path, *flags: str) -> Path:
    """Return the program that the compiler makes of this source; what it complains about fails the test."""
    if shutil.which("cc") is None:
        pytest.skip("compiling the probe of abi.h needs cc")
    (folder / "probe.c").write_text(source, encoding="utf-8")
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{PLUGIN}", *flags]
    done = subprocess.run(
        [*command, str(folder / "probe.c"), "-o", str(folder / "probe")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "probe"


def differences_to_the_header(facts: ReleaseFacts, folder: Path) -> list[str]:
    """Return what the compiled header says otherwise than this release."""
    asked = list(places(facts))
    printed = subprocess.run(
        [compiled(probe_source(asked), folder)], capture_output=True, text=True, check=True
    ).stdout
    return differences(asked, parse_answers(printed))


@pytest.mark.parametrize("release", RELEASES)
def test_the_header_says_of_every_field_what_the_release_says(release: str, tmp_path: Path) -> None:
    facts = release_facts(release)

    assert len(facts["versions"]) >= 4
    assert differences_to_the_header(facts, tmp_path) == []


def test_a_field_that_nccl_has_elsewhere_is_reported(tmp_path: Path) -> None:
    facts = copy.deepcopy(release_facts(NEWEST))
    facts["versions"]["5"]["descriptor"]["fields"]["coll.seq"] = (32, 8)
    facts["versions"]["1"]["descriptor"]["fields"]["coll.func"] = (48, 8)
    facts["states"]["ABI_SEND_WAIT"] = 10

    assert differences_to_the_header(facts, tmp_path) == [
        "ABI_SEND_WAIT: NCCL has 10, abi.h 9",
        "v1 descriptor coll.func size: NCCL has 8, abi.h 1",
        "v5 descriptor coll.seq offset: NCCL has 32, abi.h 24",
    ]


def test_a_field_that_only_nccl_has_does_not_compile(tmp_path: Path) -> None:
    facts = copy.deepcopy(release_facts(NEWEST))
    facts["versions"]["7"]["descriptor"]["fields"]["coll.colour"] = (24, 8)

    with pytest.raises(AssertionError, match="colour"):
        differences_to_the_header(facts, tmp_path)


def test_what_the_probe_does_not_print_is_a_difference() -> None:
    assert differences([Place("v1 table size", 48, "48")], {}) == ["v1 table size: NCCL has 48, abi.h nothing"]


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, StructureFacts]]:
    """Every structure that abi.h declares for NCCL, as the debug information of a program with it tells."""
    kinds = [f"struct abi_descriptor_v{version}" for version in VERSIONS]
    kinds += ["union abi_state_arguments_v1", "union abi_state_arguments"]
    variables = "\n".join(f"{kind} of_{place};" for place, kind in enumerate(kinds))
    source = f'#include "abi.h"\n{variables}\nint main(void) {{ return 0; }}\n'
    with compiled(source, tmp_path_factory.mktemp("declared"), "-g").open("rb") as file:
        types = list(top_level_types(ELFFile(file).get_dwarf_info(), lambda source: source.endswith("probe.c")))
        tags = [kind.split()[1] for kind in kinds]
        yield {tag: structure_facts(find_type(types, tag), lambda name: name) for tag in tags}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_header_declares_no_field_that_nccl_lacks(declared: dict[str, StructureFacts], version: int) -> None:
    arguments = "abi_state_arguments_v1" if version < 4 else "abi_state_arguments"

    assert declared[f"abi_descriptor_v{version}"]["fields"] == dict(layout(version))
    assert declared[arguments]["fields"] == dict(arguments_layout(version))


@pytest.mark.parametrize("release", RELEASES)
def test_releases_agree_on_every_version_that_they_share(release: str) -> None:
    newest = release_facts(NEWEST)
    older = release_facts(release)

    assert {number: newest["versions"][number] for number in older["versions"]} == older["versions"]
    assert newest["events"].items() >= older["events"].items()
    assert newest["states"].items() >= older["states"].items()


@pytest.mark.parametrize(("release", "last"), [("2.27.7", 4), ("2.28.9", 5), ("2.30.7", 6), ("2.32.3", 7)])
def test_each_release_looks_for_every_table_up_to_its_newest(release: str, last: int) -> None:
    facts = release_facts(release)

    assert versions_of(facts["symbols"]) == list(range(1, last + 1))
    assert list(map(int, facts["versions"])) == list(range(1, last + 1))


@pytest.mark.parametrize("release", RELEASES)
def test_golden_data_is_written_as_the_reader_writes_it(release: str) -> None:
    assert facts_file(release).read_text(encoding="utf-8") == as_text(release_facts(release))


def test_no_release_is_left_out_of_the_list() -> None:
    assert {file.stem for file in facts_file(NEWEST).parent.glob("*.json")} == set(RELEASES)


def test_a_layout_has_its_size_and_its_fields() -> None:
    assert (layout(7).size, layout(7)["coll.tag"]) == (136, (128, 8))
    assert "coll.tag" not in layout(6)
    assert [layout(version)["coll.dtype"].size for version in (1, 2)] == [
        1,
        8,
    ]  # v1 numbers it, v2 points to its name
    assert (arguments_layout(3).size, arguments_layout(4).size) == (16, 8)


def test_a_version_that_no_release_has_is_refused() -> None:
    with pytest.raises(NotPresent, match="version 8"):
        layout(8)


def test_a_name_of_nccls_that_we_have_not_looked_at_is_refused() -> None:
    with pytest.raises(BadInput, match="coolness"):
        by(names.DESCRIPTOR)("coolness")
