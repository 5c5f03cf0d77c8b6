"""Which checkpoint a framework noted as its newest. That proves nothing: it is held against what was verified."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.recovery.checkpoints.checkpoint import Checkpoint
from planner.recovery.checkpoints.folder import Folder

_NAMES = ("latest", "latest_universal", "latest_checkpointed_iteration.txt")
_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pointer:
    """A file that names the newest checkpoint."""

    file: Path
    target: Path


def find_pointers(folder: Folder) -> list[Pointer]:
    """Return the pointers in a folder; those that cannot be read name nothing."""
    held = ((name, _read(folder, name)) for name in _NAMES if name in folder.files)
    return [Pointer(folder.file(name), folder.path / _folder_of(name, text)) for name, text in held if text]


def explain_pointers(pointers: Iterable[Pointer], checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Return a sentence for each pointer that names a checkpoint which cannot be restarted from."""
    by_path = {each.path: each for each in checkpoints}
    said = []
    for pointer in pointers:
        named = by_path.get(str(pointer.target))
        if named is None:
            said.append(f"{pointer.file.name} names {pointer.target.name}, of which there is no checkpoint here")
        elif named.state != "complete":
            said.append(f"{pointer.file.name} names {pointer.target.name}, which is {named.state}: {named.reason}")
    return said


def _folder_of(name: str, text: str) -> str:
    """Return the folder that a pointer means: Megatron writes only the number."""
    return f"iter_{int(text):07d}" if name.endswith(".txt") and text.isdecimal() else text


def _read(folder: Folder, name: str) -> str | None:
    if folder.files[name].bytes > _MOST_BYTES:
        return None
    try:
        text = folder.file(name).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return text if text.isprintable() and "/" not in text else None
