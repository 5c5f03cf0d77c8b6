"""Archives come from anywhere: what is whole is unpacked under our names, everything else is refused."""

import tarfile
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.capture import files as archives
from lockstep.capture.files import KNOWN_FILES, dump_info, is_archive, pack, unpack
from lockstep.errors import BadCapture
from tests.lockstep.capture.build import (
    INFO,
    INFO_MEMBER,
    member,
    tar_of,
    whole_capture,
    write_archive,
    write_capture,
)
from tests.lockstep.memory import taking_less_than


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A directory to unpack into, inside another one in which nothing may appear."""
    made = tmp_path / "outside" / "inside"
    made.mkdir(parents=True)
    return made


def refusal(archive: Path, directory: Path) -> str:
    """Return why an archive is refused, and see that nothing was written beside what we know."""
    with pytest.raises(BadCapture) as caught:
        unpack(archive, directory)
    assert {file.name for file in directory.iterdir()} <= KNOWN_FILES
    assert list(directory.parent.iterdir()) == [directory]
    assert caught.value.file == archive.name
    return caught.value.problem


def refused_tar(tar: bytes, inside: Path) -> str:
    return refusal(write_archive(inside.parent.parent / "case.tar.zst", tar), inside)


@pytest.mark.parametrize("folder", ["", "./", "case/", "./case/"])
def test_known_files_are_unpacked_from_the_top_or_one_folder(folder: str, tmp_path: Path, inside: Path) -> None:
    members = [
        member("notes.txt", b"hello"),
        member("case", type=tarfile.DIRTYPE),
        member("deep/down/steps.parquet", b"too deep"),
        member("evil.parquet", b"no table of ours"),
        member("ü" * 200, b"a name so long that it needs a header of its own"),
        member(f"{folder}capture.json", dump_info(INFO).encode()),
    ]
    unpack(write_archive(tmp_path / "case.tar.zst", tar_of(members)), inside)
    assert [is_archive(Path("/tmp") / name) for name in ("a.tar.zst", "a.tzst", "a", "a.tar")] == [
        True,
        True,
        False,
        False,
    ]
    assert {file.name: file.read_text() for file in inside.iterdir()} == {"capture.json": dump_info(INFO)}


OUTSIDE = ["../capture.json", "/capture.json", "a/../../capture.json", "/etc/passwd", ".."]
ODD_KINDS = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
EXTENSIONS = [
    {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
    {"GNU.sparse.map": "0,1,x"},
    {"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"},
    {"size": "many"},
]
NOT_WHOLE = "is not a whole .tar.zst: *"
REFUSED: list[tuple[list[tuple[tarfile.TarInfo, bytes]], str]] = [
    *(([member(name, b"{}")], f"holds {name!r}, which points outside of it") for name in OUTSIDE),
    *(
        ([INFO_MEMBER, member(name, type=kind, linkname="/etc/passwd")], f"holds {name!r}, which is not a plain file")
        for kind in ODD_KINDS
        for name in ("steps.parquet", "notes.txt")
    ),
    *(
        ([INFO_MEMBER, member(name, b"{}")], "holds capture.json twice")
        for name in ("capture.json", "./capture.json", "copy/capture.json")
    ),
    # Skipping it would read for ever, because a stream is skipped by reading.
    ([INFO_MEMBER, member("notes.txt", b"x", pax_headers={"size": str(10**30)})], "unpacks to more than 64 MiB"),
    *(
        ([member(name, type=kind, pax_headers={"size": "-1024"}), INFO_MEMBER], "*which is not a plain file")
        for name, kind in (
            ("steps.parquet", tarfile.REGTYPE),
            ("notes.txt", tarfile.REGTYPE),
            ("folder/", tarfile.DIRTYPE),
        )
    ),
    *(([member("topology.json", b"{}\n" * 200, pax_headers=extension)], "*") for extension in EXTENSIONS),
]


@pytest.mark.parametrize(("members", "problem"), REFUSED)
def test_member_that_cannot_be_trusted_is_refused(
    members: list[tuple[tarfile.TarInfo, bytes]], problem: str, inside: Path
) -> None:
    assert fnmatchcase(refused_tar(tar_of(members), inside), problem)


def test_what_says_whose_telemetry_it_is_stands_first_and_is_checked_before_the_rest(
    tmp_path: Path, inside: Path
) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    for name in ("agents.parquet", "capture.json", "steps.parquet"):
        (folder / name).write_text("{")
    pack(folder, tmp_path / "c.tar.zst")
    with pytest.raises(BadCapture, match="is not JSON"):
        unpack(tmp_path / "c.tar.zst", inside)
    assert [file.name for file in inside.iterdir()] == ["capture.json"]


def test_more_than_any_capture_has_is_refused(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 4_000)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    for name in ("steps.parquet", "notes.txt"):
        large = tar_of([INFO_MEMBER, member(name, bytes(4_001))])
        assert refused_tar(large, inside).startswith("unpacks to more than")
    together = tar_of([member("steps.parquet", bytes(2_500)), member("events.parquet", bytes(2_500))])
    assert refused_tar(together, inside).startswith("unpacks to more than")
    assert not (inside / "events.parquet").exists()
    crowd = tar_of([member(f"note{number}.txt") for number in range(4)])
    assert refused_tar(crowd, inside) == "holds more than 3 files"


def test_header_that_would_fill_the_memory_is_refused_unread(tmp_path: Path, inside: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    assert fnmatchcase(refused_tar(header.tobuf() * 5_000, inside), NOT_WHOLE), "headers about headers"
    header.size = 64 << 20
    archive = write_archive(tmp_path / "case.tar.zst", header.tobuf() + bytes(header.size))
    with taking_less_than(8 << 20):
        assert refusal(archive, inside) == f"is not a whole .tar.zst: a header of {header.size} bytes"


def test_what_is_no_whole_archive_is_refused(tmp_path: Path, inside: Path) -> None:
    """Cut between two members, too, where it would read like a whole capture of fewer tables."""
    write_capture(tmp_path / "whole.tar.zst", whole_capture())
    whole = (tmp_path / "whole.tar.zst").read_bytes()
    cut_short = [whole[: len(whole) * percent // 100] for percent in (0, 1, 10, 50, 90, 99)]
    for content in (b"not packed at all", b"\x28\xb5\x2f\xfd but not for long", *cut_short):
        (tmp_path / "case.tar.zst").write_bytes(content)
        assert fnmatchcase(refusal(tmp_path / "case.tar.zst", inside), NOT_WHOLE)
    tar = tar_of([INFO_MEMBER, member("steps.parquet", bytes(700)), member("events.parquet", bytes(100))])
    end = tar.rindex(b"events.parquet") + 1024  # header and data; from here on there are only zeros
    for part in (b"no tar", bytes(511), b"x" * 2048, *(tar[:length] for length in range(0, end + 1, 128))):
        assert fnmatchcase(refused_tar(part, inside), NOT_WHOLE)
    damaged = bytearray(tar)
    damaged[tar.rindex(b"steps.parquet")] ^= 1
    assert refused_tar(bytes(damaged), inside) == "is not a whole .tar.zst: bad checksum"
    unpack(write_archive(tmp_path / "case.tar.zst", tar), inside)


SOUND = member("steps.parquet", b"rows", pax_headers={"comment": "x", "size": "4"})
SMALL = tar_of([INFO_MEMBER, SOUND, member("note.txt", b"hello")])
FIELDS = st.sampled_from([0, 5, 100, 124, 130, 135, 156, 157, 257, 345, 512, 520])  # where a header's fields begin


@given(
    st.lists(st.tuples(st.integers(0, len(SMALL) // 512 - 3), FIELDS, st.integers(0, 255)), min_size=1, max_size=4)
)
def test_headers_that_chance_wrote_never_lead_outside(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int, int]]
) -> None:
    tar = bytearray(SMALL)
    for block, place, value in changes:
        tar[block * 512 + place] = value
    for block in range(0, len(tar), 512):
        if tar[block + 257 : block + 262] == b"ustar":
            mend_checksum(tar, block)
    inside = tmp_path_factory.mktemp("outside") / "inside"
    inside.mkdir()
    archive = write_archive(tmp_path_factory.mktemp("archive") / "case.tar.zst", bytes(tar))
    with suppress(BadCapture):
        unpack(archive, inside)
    assert {file.name for file in inside.iterdir()} <= KNOWN_FILES
    assert list(inside.parent.iterdir()) == [inside]


def mend_checksum(tar: bytearray, block: int) -> None:
    """Make a header's sum right again, so that its other fields are looked at."""
    tar[block + 148 : block + 156] = b" " * 8
    tar[block + 148 : block + 156] = b"%06o\0 " % sum(tar[block : block + 512])
