"""The plugin reads NCCL's memory, so every field of our header stands where NVIDIA's binaries put it."""

import copy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from elftools.elf.elffile import ELFFile

from importers.traces.nccl_abi import (
    RELEASES,
    ReleaseFacts,
    StructureFacts,
    arguments_layout,
    facts_file,
    layout,
    release_facts,
)
from lockstep.errors import BadInput, NotPresent
from nccl_plugin.abi.read_dwarf import (
    DESCRIPTOR,
    as_text,
    by,
    find_type,
    structure_facts,
    top_level_types,
    versions_of,
)

PLUGIN = Path(__file__).resolve().parents[2] / "nccl_plugin"
NEWEST = RELEASES[-1]
VERSIONS = range(1, 8)


class Fact(NamedTuple):
    """One fact: what it is of (`v5 descriptor coll.seq offset`), the number that NCCL has, how C asks for ours."""

    of: str
    value: int
    expression: str


def facts_of(facts: ReleaseFacts) -> Iterator[Fact]:
    """Yield everything that a release says and abi.h must say too.

    Our tables end in reserved members that NCCL does not know, so a table's size is not asked for.
    """
    for name, value in (facts["events"] | facts["states"]).items():
        yield Fact(name, value, name)
    for number, version in facts["versions"].items():
        yield from fields_of(f"v{number} table", "struct lockstep_profiler", version["table"])
        arguments = "abi_state_arguments_v1" if int(number) < 4 else "abi_state_arguments"
        kinds = {"descriptor": f"struct abi_descriptor_v{number}", "arguments": f"union {arguments}"}
        for (name, kind), structure in zip(kinds.items(), (version["descriptor"], version["arguments"]), strict=True):
            yield Fact(f"v{number} {name} size", structure["size"], f"sizeof({kind})")
            yield from fields_of(f"v{number} {name}", kind, structure)


def fields_of(label: str, kind: str, facts: StructureFacts) -> Iterator[Fact]:
    for field, (offset, size) in facts["fields"].items():
        yield Fact(f"{label} {field} offset", offset, f"offsetof({kind}, {field})")
        yield Fact(f"{label} {field} size", size, f"sizeof((({kind} *)0)->{field})")


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
    """Return a sentence for each fact on which the compiled header and this release do not say the same."""
    asked = list(facts_of(facts))
    lines = "\n".join(f'    printf("%ld\\t{fact.of}\\n", (long)({fact.expression}));' for fact in asked)
    source = f'#include "abi.h"\n\n#include <stddef.h>\n#include <stdio.h>\n\nint main(void)\n{{\n{lines}\n}}\n'
    printed = subprocess.check_output([compiled(source, folder)], text=True)
    ours = {of: int(number) for number, of in (line.split("\t") for line in printed.splitlines())}
    assert ours.keys() == {fact.of for fact in asked}
    return [
        f"{each.of}: NCCL has {each.value}, abi.h {ours[each.of]}" for each in asked if ours[each.of] != each.value
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_header_golden_data_and_releases_agree_on_every_field(release: str, tmp_path: Path) -> None:
    facts, newest = release_facts(release), release_facts(NEWEST)
    last = {"2.27.7": 4, "2.28.9": 5, "2.30.7": 6, "2.32.3": 7}[release]
    assert versions_of(facts["symbols"]) == list(map(int, facts["versions"])) == list(range(1, last + 1))
    assert len(facts["versions"]) >= 4
    assert differences_to_the_header(facts, tmp_path) == []
    assert {number: newest["versions"][number] for number in facts["versions"]} == facts["versions"]
    assert newest["events"].items() >= facts["events"].items()
    assert newest["states"].items() >= facts["states"].items()
    assert facts_file(release).read_text(encoding="utf-8") == as_text(facts), "as the reader writes it"


def test_a_field_that_nccl_has_elsewhere_is_reported_and_one_of_its_own_does_not_compile(tmp_path: Path) -> None:
    facts = copy.deepcopy(release_facts(NEWEST))
    facts["versions"]["5"]["descriptor"]["fields"]["coll.seq"] = (32, 8)
    facts["versions"]["1"]["descriptor"]["fields"]["coll.func"] = (48, 8)
    facts["states"]["ABI_SEND_WAIT"] = 10
    assert differences_to_the_header(facts, tmp_path) == [
        "ABI_SEND_WAIT: NCCL has 10, abi.h 9",
        "v1 descriptor coll.func size: NCCL has 8, abi.h 1",
        "v5 descriptor coll.seq offset: NCCL has 32, abi.h 24",
    ]
    facts["versions"]["7"]["descriptor"]["fields"]["coll.colour"] = (24, 8)
    with pytest.raises(AssertionError, match="colour"):
        differences_to_the_header(facts, tmp_path)


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, StructureFacts]]:
    """Every structure that abi.h declares for NCCL, as the debug information of a program with it tells."""
    kinds = [f"struct abi_descriptor_v{version}" for version in VERSIONS]
    kinds += ["union abi_state_arguments_v1", "union abi_state_arguments"]
    variables = "\n".join(f"{kind} of_{place};" for place, kind in enumerate(kinds))
    source = f'#include "abi.h"\n{variables}\nint main(void) {{ return 0; }}\n'
    with compiled(source, tmp_path_factory.mktemp("declared"), "-g").open("rb") as file:
        types = list(top_level_types(ELFFile(file).get_dwarf_info(), "probe.c"))
        tags = [kind.split()[1] for kind in kinds]
        yield {tag: structure_facts(find_type(types, tag), lambda name: name) for tag in tags}


def test_the_header_declares_no_field_that_nccl_lacks(declared: dict[str, StructureFacts]) -> None:
    for version in VERSIONS:
        arguments = "abi_state_arguments_v1" if version < 4 else "abi_state_arguments"
        assert declared[f"abi_descriptor_v{version}"]["fields"] == dict(layout(version))
        assert declared[arguments]["fields"] == dict(arguments_layout(version))


def test_a_layout_has_its_size_and_its_fields_and_what_no_release_has_is_refused() -> None:
    assert {file.stem for file in facts_file(NEWEST).parent.glob("*.json")} == set(RELEASES)
    assert (layout(7).size, layout(7)["coll.tag"]) == (136, (128, 8))
    assert "coll.tag" not in layout(6)
    sizes = [layout(version)["coll.dtype"].size for version in (1, 2)]
    assert sizes == [1, 8], "v1 numbers it, v2 points to its name"
    assert (arguments_layout(3).size, arguments_layout(4).size) == (16, 8)
    with pytest.raises(NotPresent, match="version 8"):
        layout(8)
    with pytest.raises(BadInput, match="coolness"):
        by(DESCRIPTOR)("coolness")
