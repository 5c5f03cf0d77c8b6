"""wire.py says what wire.h says: a compiler that reads the header finds every offset, type and value to be ours."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lockstep import wire
from tests.conftest import REPO

HEADER = (REPO / "nccl_plugin" / "wire.h").read_text(encoding="utf-8")
WORDS = (REPO / "nccl_plugin" / "words.c").read_text(encoding="utf-8")
KINDS = {"enqueued": "ENQUEUED", "transfer": "TRANSFER_CLOSED", "kernel": "KERNEL_CLOSED"}
KINDS |= {"step": "STEP_CLOSED", "callback": "CALLBACK"}
BEGIN_BYTES = 8  # of what all records begin with; C has it apart from their kinds
NAMED_OTHERWISE = {"RING": "ALGO_RING"} | {name: f"KIND_{name}" for name in KINDS.values()}
ENDS = {"FUNCS": wire.FUNCS, "DTYPES": wire.DTYPES, "ALGOS": wire.ALGOS, "PROTOS": wire.PROTOS, "WAITS": wire.WAITS}
Dtype = np.dtype[np.void]
Field = tuple[str, np.dtype[np.generic], int]  # path, type and offset


def our_structs() -> dict[str, Dtype]:
    """Return the dtypes of wire.py by their names; those of the union in a callback have none in C."""
    found = {name: one for name, one in vars(wire).items() if isinstance(one, np.dtype)}
    return {name: one for name, one in found.items() if not name.startswith("CALLBACK_")}


def our_constants() -> dict[str, int | bytes]:
    c_name = {ours: theirs for theirs, ours in NAMED_OTHERWISE.items()}
    public = {name: value for name, value in vars(wire).items() if name.isupper() and not name.startswith("_")}
    numbers = {c_name.get(name, name): one for name, one in public.items() if isinstance(one, int | bytes)}
    return numbers | {name: len(names) for name, names in ENDS.items()}


def fields_of(element: Dtype, inside: str = "", start: int = 0) -> Iterator[Field]:
    for name, (kind, offset, *_) in (element.fields or {}).items():
        yield f"{inside}{name}", kind, start + offset
        if c_type(kind.base) is None:
            yield from fields_of(kind.base, f"{inside}{name}.", start + offset)


def c_type(base: np.dtype[np.generic]) -> str | None:
    """Return what C calls the type of a field, None where it has no name."""
    if base.kind == "V":
        return next((f"struct wire_{name.lower()}" for name, one in our_structs().items() if one is base), None)
    return {"u": f"uint{8 * base.itemsize}_t", "i": f"int{8 * base.itemsize}_t", "S": "char"}[base.kind]


def assertions() -> Iterator[tuple[str, str]]:
    """Yield what must be true of the header by the name of what it is about."""
    for ours, element in our_structs().items():
        name, start = f"wire_{ours.lower()}", BEGIN_BYTES if ours in KINDS.values() else 0
        yield name, f"sizeof(struct {name}) == {element.itemsize - start}"
        for path, kind, offset in fields_of(element):
            if not start or path not in (wire.RECORD.names or ()):
                yield from field_assertions(name, path, kind, offset - start)
    for member, ours in KINDS.items():
        yield f"wire_record.{member}", f"offsetof(struct wire_record, {member}) == {BEGIN_BYTES}"
        yield (
            f"wire_record.{member}",
            is_of_type(f"((struct wire_record *)0)->{member}", f"struct wire_{ours.lower()}"),
        )
    for constant, value in our_constants().items():
        if isinstance(value, int):
            yield constant, f"WIRE_{constant} == {value}"


def field_assertions(name: str, path: str, kind: np.dtype[np.generic], offset: int) -> Iterator[tuple[str, str]]:
    field, named = f"((struct {name} *)0)->{path}", c_type(kind.base)
    yield f"{name}.{path}", f"offsetof(struct {name}, {path}) == {offset} && sizeof({field}) == {kind.itemsize}"
    if named:
        yield f"{name}.{path}", is_of_type(field, named)


def is_of_type(field: str, named: str) -> str:
    return f"_Generic({field}, {named}: 1, {named} *: 1, default: 0)"  # an array stands for a pointer here


def differences(header: str, folder: Path) -> str:
    """Return what a compiler says against the assertions, and every name that one side alone has."""
    if shutil.which("cc") is None:
        pytest.skip("comparing with wire.h needs a C compiler")
    lines = [f'_Static_assert({claim}, "{name}");' for name, claim in assertions()]
    program = folder / "probe.c"
    program.write_text("\n".join(["#include <stddef.h>", header, *lines]), encoding="utf-8")
    command = ["cc", "-std=c11", "-fsyntax-only", str(program)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr  # with the lines at fault
    theirs = set(re.findall(r"^\s*struct (wire_\w+) \{", header, re.MULTILINE))
    theirs |= set(re.findall(r"\bWIRE_\w+", header))
    ours = {f"wire_{name.lower()}" for name in our_structs()} | {f"WIRE_{name}" for name in our_constants()}
    magic = "" if f'#define WIRE_MAGIC "{wire.MAGIC.decode()}"\n' in header else "MAGIC"
    return " ".join([said, *sorted(theirs ^ ours), magic]).strip()


def test_every_struct_field_and_constant_of_the_header_is_here_and_nothing_else(tmp_path: Path) -> None:
    assert differences(HEADER, tmp_path) == ""
    for name, element in our_structs().items():
        covered = {byte for _, kind, at in fields_of(element) for byte in range(at, at + kind.itemsize)}
        assert name == "RECORD" or covered == set(range(element.itemsize)), name


CHANGES = [
    ("    uint32_t ready;", "    uint32_t prepared;", "wire_header.ready"),
    ("    int32_t peer; /* -1 unless send", "    uint32_t peer; /* -1 unless send", "wire_operation.peer"),
    ("struct { uint64_t seq, count;", "struct { uint64_t count, seq;", "wire_callback.coll.seq"),
    ("uint32_t waits[4];", "uint16_t waits[8];", "wire_transfer_closed.waits"),
    ("        uint8_t wait;\n", "        uint8_t waited;\n", "wire_open_step.wait"),
    ("    uint32_t unused[19];", "    uint32_t unused[21];", "wire_ring"),
    ("struct wire_record {", "struct wire_more { int32_t one; };\nstruct wire_record {", "wire_more"),
    ("WIRE_TRACE = 4", "WIRE_TRACE = 5", "TRACE"),
    ("WIRE_RECV, WIRE_ALL_TO_ALL", "WIRE_RECV, WIRE_PUT, WIRE_ALL_TO_ALL", "PUT"),
    ("#define WIRE_BUSY 0xFFFFFFFFu", "#define WIRE_BUSY 0xFFFFFFFFu\n#define WIRE_MORE 1", "MORE"),
    ('"LOCKSTEP"', '"LOCKSTOP"', "MAGIC"),
]


def test_changes_of_one_side_alone_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = re.sub(r"_Static_assert.*?;", "", HEADER)
    for written, instead, _ in CHANGES:
        assert written in changed
        changed = changed.replace(written, instead)
    said = differences(changed, tmp_path)
    assert [name for _, _, name in CHANGES if name not in said] == []
    longer = HEADER.replace("    uint64_t file_bytes;", "    uint64_t more, file_bytes;")
    assert "wire_header.host" in differences(re.sub(r"_Static_assert.*?;", "", longer), tmp_path)
    monkeypatch.setattr(wire, "ONLY_OURS", 7, raising=False)
    monkeypatch.setattr(wire, "OURS", wire.RING, raising=False)
    assert {"WIRE_ONLY_OURS", "wire_ours"} <= set(differences(HEADER, tmp_path).split())


def test_words_are_those_of_the_plugin() -> None:
    for table in ("FUNCS", "DTYPES", "ALGOS", "PROTOS"):
        (body,) = re.findall(rf"\b{table}\[WIRE_{table}\] = \{{(.*?)\}};", WORDS, flags=re.DOTALL)
        theirs = {our_constants()[name]: word for name, word in re.findall(r'\[WIRE_(\w+)\]\s*=\s*"(.*?)"', body)}
        assert theirs == dict(enumerate(ENDS[table]))


def test_duration_is_exact_below_2_to_27_and_to_2_to_minus_26_above() -> None:
    for ticks in (0, 1, (1 << 27) - 1, 1 << 27, 123_456_789_012, (1 << 58) - (1 << 31)):
        shift = max(ticks.bit_length() - 27, 0)
        (unpacked,) = wire.unpack_duration(np.array([shift << 27 | ticks >> shift], np.uint32)).tolist()
        assert ticks - unpacked <= ticks >> 26
        assert unpacked == ticks or ticks >= 1 << 27


def test_handles_and_keys_are_taken_apart_and_any_32_bits_are_a_duration() -> None:
    assert wire.unpack_duration(np.array([0xFFFFFFFF], np.uint32)).tolist() == [((1 << 27) - 1) << 31]
    handle = 0xBEEF << wire.TAG_SHIFT | wire.HANDLE_TRANSFER << wire.KIND_SHIFT | 3 << wire.GENERATION_SHIFT | 0x1234
    assert wire.tag_of(np.array([handle, 5], np.uint64)).tolist() == [0xBEEF, 0]
    assert int(wire.tag_of(handle)) == 0xBEEF
    key = np.array([(12 + 1) << 40 | wire.SEND << 32 | 0xFFFFFFFF], np.uint64)
    assert [part.tolist() for part in wire.split_key(key)] == [[12], [wire.SEND], [0xFFFFFFFF]]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", ""),
        (b"node-7\0\0\0", "node-7"),
        (b"node-7\0rm -rf", "node-7"),
        (b"a\nb\x1b[31m\x7f", "ab[31m"),
        ("\u202eabc\u2028d e".encode(), "abcd e"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_text_of_the_file_can_be_printed(raw: bytes, text: str) -> None:
    assert wire.text_of(raw) == text
