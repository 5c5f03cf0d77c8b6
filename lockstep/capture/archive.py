"""Captures as .tar.zst: packed in a stable order, unpacked without trusting a single name in it."""

import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Self

import pyarrow as pa

from lockstep.capture.contents import KNOWN_FILES
from lockstep.errors import BadCapture

MAX_UNPACKED_BYTES = 32 << 30  # a day of 4,096 ranks; more than that is a mistake or an attack
MAX_MEMBERS = 1_000  # a capture has two dozen files; tarfile remembers each member it has met
_MAX_EXTENSION_BYTES = 64 << 10  # of a header that goes on in a block of its own, which is read in one piece
_EXTENSIONS = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
_CHUNK = 1 << 20


def is_archive(path: Path) -> bool:
    return path.name.endswith((".tar.zst", ".tzst"))


def pack(directory: Path, archive: Path) -> None:
    """Write the files of a capture directory into an archive, whole or not at all."""
    partial = archive.with_name(archive.name + ".partial")
    try:
        with (
            pa.output_stream(str(partial), compression="zstd") as sink,
            tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for file in sorted(directory.iterdir()):
                tar.add(file, arcname=file.name, filter=_anonymous)
        _sync(partial)
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)


def unpack(archive: Path, directory: Path) -> None:
    """Write the known files of an archive into a directory; anything odd in it raises BadCapture.

    Names come from a list of ours, so no name in the archive is ever used as a path.
    """
    with _reading(archive) as tar:
        seen: set[str] = set()
        room = MAX_UNPACKED_BYTES
        for number, member in enumerate(tar):
            name = _checked_name(member, archive)
            room -= member.size  # also of what we skip: skipping reads it
            if room < 0:
                raise BadCapture(f"unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB", file=archive.name)
            if number >= MAX_MEMBERS:
                raise BadCapture(f"holds more than {MAX_MEMBERS} files", file=archive.name)
            if name in seen:
                raise BadCapture(f"holds {name} twice", file=archive.name)
            if name is not None:
                seen.add(name)
                _copy(tar, member, directory / name)


class _Member(tarfile.TarInfo):
    """A member whose header is whole; tarfile itself takes a broken one for the end and says nothing."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # public, yet unknown to typeshed
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None
        if member.type in _EXTENSIONS and member.size > _MAX_EXTENSION_BYTES:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made it and when, so that the same capture gives the same archive."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


@contextmanager
def _reading(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with (
            pa.input_stream(str(archive), compression="zstd") as source,
            tarfile.open(fileobj=source, mode="r|", tarinfo=_Member) as tar,
        ):
            yield tar
    # tarfile lets ValueError and RecursionError out of headers that nobody would write by accident.
    except (tarfile.TarError, OSError, EOFError, pa.ArrowException, ValueError, RecursionError) as error:
        raise BadCapture(f"is not a whole .tar.zst: {error}", file=archive.name) from None


def _checked_name(member: tarfile.TarInfo, archive: Path) -> str | None:
    """Return which of our files a member is, None for one we do not know, or refuse it."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise BadCapture(f"holds {member.name!r}, which points outside of it", file=archive.name)
    if not (member.isfile() or member.isdir()) or member.issparse() or member.size < 0:
        raise BadCapture(f"holds {member.name!r}, which is not a plain file", file=archive.name)
    if member.isdir() or len(path.parts) > 2:  # files lie at the top, or in one folder
        return None
    return path.name if path.name in KNOWN_FILES else None


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None, "isfile() was checked"
    with open(target, "wb") as sink:
        while chunk := source.read(_CHUNK):
            sink.write(chunk)
    if target.stat().st_size != member.size:
        raise BadCapture("ends in the middle of the file", file=member.name)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
