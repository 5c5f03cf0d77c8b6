"""Captures as .tar.zst: packed in a stable order, unpacked without trusting a single name in it."""

import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pyarrow as pa

from lockstep.capture.contents import KNOWN_FILES
from lockstep.errors import BadCapture

MAX_UNPACKED_BYTES = 32 << 30  # a day of 4,096 ranks; more than that is a mistake or an attack
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
        for member in tar:
            name = _checked_name(member, archive)
            if name is None:
                continue
            if name in seen:
                raise BadCapture(f"holds {name} twice", file=archive.name)
            seen.add(name)
            room -= member.size
            if room < 0:
                raise BadCapture(f"unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB", file=archive.name)
            _copy(tar, member, directory / name)


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
            tarfile.open(fileobj=source, mode="r|") as tar,
        ):
            yield tar
    except (tarfile.TarError, OSError, EOFError, pa.ArrowException) as error:
        raise BadCapture(f"is not a whole .tar.zst: {error}", file=archive.name) from None


def _checked_name(member: tarfile.TarInfo, archive: Path) -> str | None:
    """Return which of our files a member is, None for one we do not know, or refuse it."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise BadCapture(f"holds {member.name!r}, which points outside of it", file=archive.name)
    if member.isdir():
        return None
    if not member.isfile():
        raise BadCapture(f"holds {member.name!r}, which is not a plain file", file=archive.name)
    if len(path.parts) > 2:  # files lie at the top, or in one folder
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
