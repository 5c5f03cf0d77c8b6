"""wire.py says what wire.h says: a probe compiled from the header is compared with it, in both directions."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lockstep import wire
from tests.conftest import REPO

HEADER = (REPO / "nccl_plugin" / "wire.h").read_text(encoding="utf-8")
WORDS = (REPO / "nccl_plugin" / "words.c").read_text(encoding="utf-8")
KINDS = {"enqueued": "ENQUEUED", "transfer": "TRANSFER_CLOSED", "kernel": "KERNEL_CLOSED"}
KINDS |= {"step": "STEP_CLOSED", "callback": "CALLBACK"}
PREFIX = wire.RECORD.names or ()
NAMED_OTHERWISE = {"RING": "ALGO_RING"} | {name: f"KIND_{name}" for name in KINDS.values()}
ENDS = {"FUNCS": wire.FUNCS, "DTYPES": wire.DTYPES, "ALGOS": wire.ALGOS, "PROTOS": wire.PROTOS, "WAITS": wire.WAITS}
Fields = dict[str, tuple[int, int, str]]  # by path: offset, bytes, and the type of one element


@dataclass(frozen=True)
class Member:
    """One member of a C struct as its text says; members of an anonymous union stand beside the others."""

    path: str
    element: str


def tokens_of(header: str) -> list[str]:
    text = re.sub(r"/\*.*?\*/|^\s*#.*?$|_Static_assert.*?;", " ", header, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\w+|[^\w\s]", text)


def structs_of(header: str) -> dict[str, list[Member]]:
    """Return every struct of the header that has a name, wherever it is defined."""
    found: dict[str, list[Member]] = {}
    tokens = tokens_of(header)
    while tokens:
        if tokens[0] == "struct":
            _, name, _ = tokens.pop(0), tokens.pop(0), tokens.pop(0)
            found[name] = list(members_of(tokens, found, ""))
        tokens.pop(0)
    return found


def members_of(tokens: list[str], found: dict[str, list[Member]], inside: str) -> Iterator[Member]:
    """Yield the members up to the closing brace, which is taken too."""
    while (word := tokens.pop(0)) != "}":
        inner: list[Member] = []
        element = word
        if word in ("struct", "union"):
            element = tokens.pop(0) if tokens[0] != "{" else ""
            if tokens[0] == "{":
                tokens.pop(0)
                inner = list(members_of(tokens, found, ""))
                if element:
                    found[element] = inner
        names = list(declared(tokens))
        yield from (Member(f"{inside}{name}", element or "struct") for name in names)
        yield from (
            Member(f"{inside}{name and name + '.'}{one.path}", one.element)
            for name in (names or [""])
            for one in inner
            if not element
        )


def declared(tokens: list[str]) -> Iterator[str]:
    """Yield what is declared up to the semicolon: `peer, steps` or `waits[4]`."""
    while (word := tokens.pop(0)) != ";":
        if word == "[":
            del tokens[: tokens.index("]") + 1]
        elif word != ",":
            yield word


def constants_of(header: str) -> list[str]:
    enumerations = re.findall(r"\benum \w* ?\{(.*?)\}", " ".join(tokens_of(header)))
    named = [re.split(r"[ =]", one.strip())[0] for body in enumerations for one in body.split(",") if one.strip()]
    return named + re.findall(r"^#define (WIRE_\w+) ", header, flags=re.MULTILINE)


def probe(header: str, folder: Path) -> tuple[dict[str, Fields], dict[str, int | bytes], dict[str, int]]:
    """Compile a program that prints what the compiler made of the header; return structs, constants and sizes."""
    if shutil.which("cc") is None:
        pytest.skip("comparing with wire.h needs a C compiler")
    structs = structs_of(header)
    lines = [f'printf("size {name} %zu\\n", sizeof(struct {name}));' for name in structs]
    for name, members in structs.items():
        for one in members:
            where = f"struct {name}, {one.path}"
            size = f"sizeof(((struct {name} *)0)->{one.path})"
            lines.append(f'printf("field {name} {one.path} {one.element} %zu %zu\\n", offsetof({where}), {size});')
    numbers = [name for name in constants_of(header) if name != "WIRE_MAGIC"]
    lines += [f'printf("number {name} %lld\\n", (long long){name});' for name in numbers]
    lines.append('printf("text WIRE_MAGIC %s\\n", WIRE_MAGIC);')
    program = (
        "#include <stddef.h>\n#include <stdio.h>\n" + header + "\nint main(void) {\n" + "\n".join(lines) + "\n}\n"
    )
    (folder / "probe.c").write_text(program, encoding="utf-8")
    subprocess.run(["cc", "-std=c11", "-o", folder / "probe", folder / "probe.c"], check=True)
    printed = subprocess.run([folder / "probe"], capture_output=True, text=True, check=True).stdout
    return read_probe(printed)


def read_probe(printed: str) -> tuple[dict[str, Fields], dict[str, int | bytes], dict[str, int]]:
    structs: dict[str, Fields] = {}
    constants: dict[str, int | bytes] = {}
    sizes: dict[str, int] = {}
    for kind, name, *rest in map(str.split, printed.splitlines()):
        if kind == "size":
            structs[name], sizes[name] = {}, int(rest[0])
        elif kind == "field":
            path, element, offset, size = rest
            structs[name][path] = (int(offset), int(size), element)
        else:
            constants[name.removeprefix("WIRE_")] = int(rest[0]) if kind == "number" else rest[0].encode()
    return structs, constants, sizes


def numpy_fields(element: np.dtype[np.void], start: int = 0) -> Fields:
    """Return the fields of a dtype as the probe prints those of a struct."""
    found: Fields = {}
    for name, (kind, offset, *_) in (element.fields or {}).items():
        base = kind.base
        c_name = {"u": f"uint{base.itemsize * 8}_t", "i": f"int{base.itemsize * 8}_t", "S": "char", "V": "struct"}
        named = [known for known, one in vars(wire).items() if base.kind == "V" and one is base]
        if named and not named[0].startswith("CALLBACK_"):
            found[name] = (offset - start, kind.itemsize, f"wire_{named[0].lower()}")
            continue
        found[name] = (offset - start, kind.itemsize, c_name[base.kind])
        if base.kind == "V":
            inner = numpy_fields(base, -(offset - start))
            found |= {f"{name}.{path}": value for path, value in inner.items()}
    return found


def our_structs() -> tuple[dict[str, Fields], dict[str, int]]:
    """Return the dtypes of wire.py as C has them: a kind of record without what all records begin with."""
    fields: dict[str, Fields] = {}
    sizes: dict[str, int] = {}
    for name, element in vars(wire).items():
        if not isinstance(element, np.dtype) or name.startswith("CALLBACK_"):
            continue
        start = 8 if name in KINDS.values() else 0
        whole = numpy_fields(element, start)
        fields[f"wire_{name.lower()}"] = {path: one for path, one in whole.items() if not start or path not in PREFIX}
        sizes[f"wire_{name.lower()}"] = element.itemsize - start
    for member, name in KINDS.items():
        fields["wire_record"][member] = (8, sizes[f"wire_{name.lower()}"], f"wire_{name.lower()}")
    return fields, sizes


def our_constants() -> dict[str, int | bytes]:
    c_name = {ours: theirs for theirs, ours in NAMED_OTHERWISE.items()}
    public = {name: value for name, value in vars(wire).items() if name.isupper() and not name.startswith("_")}
    numbers = {c_name.get(name, name): one for name, one in public.items() if isinstance(one, int | bytes)}
    return numbers | {name: len(names) for name, names in ENDS.items()}


def differences(header: str, folder: Path) -> set[str]:
    """Return the name of everything that one side has and the other has not, or has otherwise."""
    structs, constants, sizes = probe(header, folder)
    fields, our_sizes = our_structs()
    different = {
        name for name in constants.keys() | our_constants() if constants.get(name) != our_constants().get(name)
    }
    different |= {name for name in sizes.keys() | our_sizes if sizes.get(name) != our_sizes.get(name)}
    for name in structs.keys() | fields:
        theirs, ours = structs.get(name, {}), fields.get(name, {})
        different |= {f"{name}.{path}" for path in theirs.keys() | ours if theirs.get(path) != ours.get(path)}
    return different


def test_every_struct_field_and_constant_of_the_header_is_here_and_nothing_else(tmp_path: Path) -> None:
    assert differences(HEADER, tmp_path) == set()
    structs, constants, sizes = probe(HEADER, tmp_path)
    assert len(structs) > 15
    assert len(constants) > 80
    for name, fields in structs.items():
        covered = {byte for offset, size, _ in fields.values() for byte in range(offset, offset + size)}
        assert covered == set(range(sizes[name])), name


CHANGES = [
    ("    uint32_t ready;", "    uint32_t prepared;", "wire_header.ready"),
    ("    int32_t peer; /* -1 unless send", "    uint32_t peer; /* -1 unless send", "wire_operation.peer"),
    ("struct { uint64_t seq, count;", "struct { uint64_t count, seq;", "wire_callback.coll.seq"),
    ("uint32_t waits[4];", "uint16_t waits[8];", "wire_transfer_closed.waits"),
    ("        uint8_t wait;\n", "        uint8_t waited;\n", "wire_open_step.wait"),
    ("    uint32_t unused[19];", "    uint32_t unused[21];", "wire_ring"),
    ("struct wire_record {", "struct wire_more { int32_t one; };\nstruct wire_record {", "wire_more.one"),
    ("WIRE_TRACE = 4", "WIRE_TRACE = 5", "TRACE"),
    ("WIRE_RECV, WIRE_ALL_TO_ALL", "WIRE_RECV, WIRE_PUT, WIRE_ALL_TO_ALL", "PUT"),
    ("#define WIRE_BUSY 0xFFFFFFFFu", "#define WIRE_BUSY 0xFFFFFFFFu\n#define WIRE_MORE 1", "MORE"),
    ('"LOCKSTEP"', '"LOCKSTOP"', "MAGIC"),
]


def test_changes_of_the_header_alone_are_seen(tmp_path: Path) -> None:
    changed = re.sub(r"_Static_assert.*?;", "", HEADER)
    for written, instead, _ in CHANGES:
        assert written in changed
        changed = changed.replace(written, instead)
    assert {name for _, _, name in CHANGES} <= differences(changed, tmp_path)
    longer = HEADER.replace("    uint64_t file_bytes;", "    uint64_t more, file_bytes;")
    assert "wire_header.host" in differences(re.sub(r"_Static_assert.*?;", "", longer), tmp_path)


def test_number_that_only_we_have_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ONLY_OURS", 7, raising=False)
    monkeypatch.setattr(wire, "OURS", wire.REQUEST, raising=False)
    assert differences(HEADER, tmp_path) == {"ONLY_OURS", "wire_ours"} | {
        f"wire_ours.{name}" for name in wire.REQUEST.names or ()
    }


@pytest.mark.parametrize("table", ["FUNCS", "DTYPES", "ALGOS", "PROTOS"])
def test_words_are_those_of_the_plugin(table: str) -> None:
    (body,) = re.findall(rf"\b{table}\[WIRE_{table}\] = \{{(.*?)\}};", WORDS, flags=re.DOTALL)
    theirs = {our_constants()[name]: word for name, word in re.findall(r'\[WIRE_(\w+)\]\s*=\s*"(.*?)"', body)}
    assert theirs == dict(enumerate(ENDS[table]))


@pytest.mark.parametrize("ticks", [0, 1, (1 << 27) - 1, 1 << 27, 123_456_789_012, (1 << 58) - (1 << 31)])
def test_duration_is_exact_below_2_to_27_and_to_2_to_minus_26_above(ticks: int) -> None:
    shift = max(ticks.bit_length() - 27, 0)
    packed = np.array([shift << 27 | ticks >> shift], np.uint32)
    (unpacked,) = wire.unpack_duration(packed).tolist()
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
