"""Archives come from anywhere: what is whole is unpacked under our names, everything else is refused."""

import tarfile
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.capture import files as archives
from lockstep.capture.files import KNOWN_FILES, dump_info, is_archive, unpack, write_capture
from lockstep.errors import BadCapture
from tests.lockstep.capture.build import INFO, INFO_MEMBER, member, read_tar, tar_of, whole_capture, write_archive


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A directory to unpack into, inside another one in which nothing may appear."""
    made = tmp_path / "outside" / "inside"
    made.mkdir(parents=True)
    return made


def refusal(archive: Path, directory: Path) -> BadCapture:
    """Return why an archive is refused, and see that nothing was written beside what we know."""
    with pytest.raises(BadCapture) as caught:
        unpack(archive, directory)
    assert {file.name for file in directory.iterdir()} <= KNOWN_FILES
    assert list(directory.parent.iterdir()) == [directory]
    return caught.value


def refused_tar(tar: bytes, inside: Path) -> str:
    """Return why a tar, soundly packed, is refused."""
    archive = write_archive(inside.parent.parent / "case.tar.zst", tar)
    error = refusal(archive, inside)
    assert error.file == "case.tar.zst"
    return error.problem


@pytest.mark.parametrize(("name", "answer"), [("a.tar.zst", True), ("a.tzst", True), ("a", False), ("a.tar", False)])
def test_archive_is_known_by_its_name(name: str, answer: bool) -> None:
    assert is_archive(Path("/tmp") / name) == answer


@pytest.mark.parametrize("folder", ["", "./", "case/", "./case/"])
def test_files_may_lie_at_the_top_or_in_one_folder(folder: str, tmp_path: Path, inside: Path) -> None:
    header = member(f"{folder}capture.json", dump_info(INFO).encode())
    unpack(write_archive(tmp_path / "case.tar.zst", tar_of([header])), inside)
    assert (inside / "capture.json").read_text() == dump_info(INFO)


def test_what_we_do_not_know_is_left_out(tmp_path: Path, inside: Path) -> None:
    strangers = [
        member("notes.txt", b"hello"),
        member("case", type=tarfile.DIRTYPE),
        member("deep/down/steps.parquet", b"too deep"),
        member("evil.parquet", b"no table of ours"),
        member("ü" * 200, b"a name so long that it needs a header of its own"),
    ]
    unpack(write_archive(tmp_path / "case.tar.zst", tar_of([*strangers, INFO_MEMBER])), inside)
    assert [file.name for file in inside.iterdir()] == ["capture.json"]


@pytest.mark.parametrize("name", ["../capture.json", "/capture.json", "a/../../capture.json", "/etc/passwd", ".."])
def test_name_that_points_outside_is_refused(name: str, inside: Path) -> None:
    assert refused_tar(tar_of([member(name, b"{}")]), inside) == f"holds {name!r}, which points outside of it"


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE],
    ids=["symlink", "hard link", "character device", "block device", "fifo"],
)
@pytest.mark.parametrize("name", ["steps.parquet", "notes.txt"])
def test_what_is_no_plain_file_is_refused(kind: bytes, name: str, inside: Path) -> None:
    odd = member(name, type=kind, linkname="/etc/passwd")
    assert refused_tar(tar_of([INFO_MEMBER, odd]), inside) == f"holds {name!r}, which is not a plain file"


@pytest.mark.parametrize("second", ["capture.json", "./capture.json", "copy/capture.json"])
def test_file_that_is_there_twice_is_refused(second: str, inside: Path) -> None:
    again = member(second, b"{}")
    assert refused_tar(tar_of([INFO_MEMBER, again]), inside) == "holds capture.json twice"


@pytest.mark.parametrize("name", ["steps.parquet", "notes.txt"])
def test_member_beyond_the_limit_is_refused(name: str, inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 4_000)
    large = member(name, bytes(4_001))
    assert refused_tar(tar_of([INFO_MEMBER, large]), inside).startswith("unpacks to more than")


def test_members_together_beyond_the_limit_are_refused(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 4_000)
    many = [member("steps.parquet", bytes(2_500)), member("events.parquet", bytes(2_500))]
    assert refused_tar(tar_of(many), inside).startswith("unpacks to more than")
    assert not (inside / "events.parquet").exists()


def test_size_that_no_disk_has_is_refused_at_once(inside: Path) -> None:
    """Skipping it would read for ever, because a stream is skipped by reading."""
    endless = member("notes.txt", b"x", pax_headers={"size": str(10**30)})
    assert refused_tar(tar_of([INFO_MEMBER, endless]), inside) == "unpacks to more than 32 GiB"


@pytest.mark.parametrize("name", ["steps.parquet", "notes.txt", "folder/"])
def test_negative_size_is_refused(name: str, inside: Path) -> None:
    kind = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
    odd = member(name, b"", type=kind, pax_headers={"size": "-1024"})
    assert refused_tar(tar_of([odd, INFO_MEMBER]), inside).endswith("which is not a plain file")


def test_more_members_than_any_capture_has_are_refused(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    crowd = [member(f"note{number}.txt") for number in range(4)]
    assert refused_tar(tar_of(crowd), inside) == "holds more than 3 files"


def test_header_that_would_fill_the_memory_is_refused_unread(tmp_path: Path, inside: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 64 << 20
    archive = write_archive(tmp_path / "case.tar.zst", header.tobuf() + bytes(header.size))
    tracemalloc.start()
    try:
        problem = refusal(archive, inside).problem
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert problem == f"is not a whole .tar.zst: a header of {header.size} bytes"
    assert peak < 8 << 20


@pytest.mark.parametrize(
    "extension",
    [
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
        {"GNU.sparse.map": "0,1,x"},
        {"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"},
        {"size": "many"},
    ],
    ids=lambda extension: " ".join(extension),
)
def test_nonsense_in_a_header_is_refused(extension: dict[str, str], inside: Path) -> None:
    refused_tar(tar_of([member("capture.json", b"{}\n" * 200, pax_headers=extension)]), inside)


def test_headers_about_headers_about_headers_are_refused(inside: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    assert refused_tar(header.tobuf() * 5_000, inside).startswith("is not a whole .tar.zst: ")


@pytest.mark.parametrize("content", [b"", b"not packed at all", b"\x28\xb5\x2f\xfd but not for long"])
def test_what_is_not_zstd_is_refused(content: bytes, tmp_path: Path, inside: Path) -> None:
    (tmp_path / "case.tar.zst").write_bytes(content)
    assert refusal(tmp_path / "case.tar.zst", inside).problem.startswith("is not a whole .tar.zst: ")


@pytest.mark.parametrize("tar", [b"", b"no tar", bytes(511), b"x" * 2048], ids=["nothing", "words", "short", "long"])
def test_what_is_no_tar_is_refused(tar: bytes, inside: Path) -> None:
    assert refused_tar(tar, inside).startswith("is not a whole .tar.zst: ")


@pytest.mark.parametrize("percent", [0, 1, 10, 50, 90, 99])
def test_archive_cut_short_is_refused(percent: int, tmp_path: Path, inside: Path) -> None:
    whole = tmp_path / "whole.tar.zst"
    write_capture(whole, whole_capture())
    cut = tmp_path / "case.tar.zst"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * percent // 100])
    assert refusal(cut, inside).problem.startswith("is not a whole .tar.zst: ")


def test_tar_cut_anywhere_before_packing_is_refused(tmp_path: Path, inside: Path) -> None:
    """Between two members, too, where it would read like a whole capture of fewer tables."""
    tar = tar_of([INFO_MEMBER, member("steps.parquet", bytes(700)), member("events.parquet", bytes(100))])
    end = tar.rindex(b"events.parquet") + 1024  # header and data; from here on there are only zeros
    for length in range(0, end + 1, 128):
        assert refused_tar(tar[:length], inside).startswith("is not a whole .tar.zst: ")
    unpack(write_archive(tmp_path / "case.tar.zst", tar), inside)


def test_damaged_header_in_the_middle_is_refused(inside: Path) -> None:
    tar = bytearray(tar_of([INFO_MEMBER, member("steps.parquet", b"rows"), member("events.parquet", b"rows")]))
    tar[tar.rindex(b"steps.parquet")] ^= 1
    assert refused_tar(bytes(tar), inside) == "is not a whole .tar.zst: bad checksum"


SMALL = tar_of(
    [
        INFO_MEMBER,
        member("steps.parquet", b"rows", pax_headers={"comment": "x", "size": "4"}),
        member("note.txt", b"hello"),
    ]
)
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


def test_archive_holds_its_files_in_a_stable_order(tmp_path: Path) -> None:
    write_capture(tmp_path / "case.tar.zst", whole_capture())
    (tmp_path / "case.tar").write_bytes(read_tar(tmp_path / "case.tar.zst"))
    with tarfile.open(tmp_path / "case.tar") as tar:
        names = tar.getnames()
        owners = {(found.uid, found.gid, found.uname, found.mtime, found.mode) for found in tar}
    assert names == sorted(names)
    assert owners == {(0, 0, "", 0, 0o644)}
