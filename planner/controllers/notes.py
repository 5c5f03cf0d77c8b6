"""Notes on disk about acts under way, for a planner that died in the middle of one and must not begin afresh."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import ControllerDown


class Notes:
    """Small JSON objects by name in a directory, each written whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> dict[str, str] | None:
        """Return a note; None when there is none."""
        try:
            text = self._path(name).read_text()
        except FileNotFoundError:
            return None
        except OSError as failure:
            raise ControllerDown(f"{self._path(name)} cannot be read: {failure.strerror}") from None
        try:
            return {str(key): str(value) for key, value in json.loads(text).items()}
        except (ValueError, AttributeError):
            raise ControllerDown(f"{self._path(name)} is damaged: look at it, then remove it") from None

    def write(self, name: str, note: Mapping[str, str]) -> None:
        """Write a note so that it is on the disk, whole, before this returns."""
        path = self._path(name)
        draft = path.with_suffix(".draft")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # batch scripts may hold secrets
            with open(draft, "w", opener=_open_private) as file:
                json.dump(dict(note), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
            _sync_directory(self._directory)
        except OSError as failure:
            raise ControllerDown(f"{path} cannot be written: {failure.strerror}") from None

    def remove(self, name: str) -> None:
        """Remove a note if it is there."""
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as failure:
            raise ControllerDown(f"{self._path(name)} cannot be removed: {failure.strerror}") from None

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_directory(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
