"""What is known of a job's checkpoints: read from a directory, or told as JSON where the planner sees no files."""

import os
import stat
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic import Field

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.verdict import Frozen
from planner.checkpoints.inert_pickle import read_state

Format = Literal["dcp", "torch_dist", "ds_zero", "universal"]
State = Literal["complete", "writing", "incomplete", "unverified"]
# Where it lies, nearest first: memory of a rank with the same state, of this host, a disk here, a shared store.
Source = Literal["peer", "memory", "local", "remote"]
# Which layouts can load it: any, those with the same tp, pp and ep, any after a conversion, or only its own.
Moves = Literal["any", "dp", "convert", "never"]

_DIMENSIONS = ("tp", "pp", "dp", "cp", "ep")


class SavedLayout(Frozen):
    """How a job is cut into ranks; None where nothing says it."""

    tp: int | None = Field(None, ge=1, description="ranks that share a layer's tensors")
    pp: int | None = Field(None, ge=1, description="pipeline stages")
    dp: int | None = Field(None, ge=1, description="replicas")
    cp: int | None = Field(None, ge=1, description="ranks that share a sequence")
    ep: int | None = Field(None, ge=1, description="ranks that share the experts")
    world: int | None = Field(None, ge=1, description="ranks; of torch DCP, those that wrote, which may be fewer")

    @classmethod
    def of(cls, target: Mapping[str, int]) -> "SavedLayout":
        """Return the layout in a decision's target, which also holds batch sizes."""
        return cls(**{name: target[name] for name in (*_DIMENSIONS, "world") if name in target})

    def __str__(self) -> str:
        message = [f"{name}{size}" for name in _DIMENSIONS if (size := getattr(self, name))]
        return " ".join(message) or (f"{self.world} ranks" if self.world else "unknown")


class Checkpoint(Frozen):
    """One checkpoint. Only one in state `complete` may be restarted from."""

    path: str
    format: Format
    step: int | None = Field(None, ge=0, description="training step, from its state or its name; None: not told")
    layout: SavedLayout = SavedLayout()
    state: State
    reason: str = Field(description="one sentence: how it was verified, or what is wrong")
    bytes: int = Field(ge=0)
    files: int = Field(ge=0)
    saved_ns: int = Field(ge=0, description="when its newest file changed")
    source: Source = "remote"
    moves: Moves = Field("never", description="which other layouts can load it")
    moves_because: str = Field("", description="one sentence about `moves`")
    convert_flags: tuple[str, ...] = Field((), description="what DeepSpeed's converter must be told besides folders")
    experts: int | None = Field(None, ge=1, description="experts per layer, which must divide by the target's ep")

    def age_s(self, now_ns: int) -> float:
        """Return how long ago it was saved."""
        return (now_ns - self.saved_ns) / NS_PER_S


class Catalogue(Frozen):
    """All checkpoints of a job that were found, the newest step first."""

    job: str | None = None
    folder: str
    seen_ns: int = Field(ge=0)
    checkpoints: tuple[Checkpoint, ...] = ()
    remarks: tuple[str, ...] = Field((), description="what could not be read, and pointers that lead nowhere")

    @property
    def complete(self) -> tuple[Checkpoint, ...]:
        """Return those that may be restarted from, the newest step first."""
        return tuple(each for each in self.checkpoints if each.state == "complete")

    def as_json(self) -> dict[str, Any]:
        """Return the catalogue as it travels; `Catalogue.model_validate` reads it back."""
        return self.model_dump(mode="json")


def newest_first(checkpoint: Checkpoint) -> tuple[bool, int, int, str]:
    """Return a key that sorts by step, downwards; those without a step come last, by age."""
    step = checkpoint.step
    return step is None, -(step or 0), -checkpoint.saved_ns, checkpoint.path


# Extracting reads the shards and writes slices; merging reads the slices and writes the parameters.
_CONVERT_PASSES = 4
# DeepSpeed 0.19.8 on two loaded cores, nearly all of it imports: 3.1 to 8.6 s for a checkpoint of 15 kB.
_CONVERT_START_S = 8.6


class ReadRate(Frozen):
    """How fast a whole job reads from a source."""

    source: Source
    bytes_per_s: float = Field(gt=0)


def estimate_load_s(checkpoint: Checkpoint, rates: Sequence[ReadRate]) -> float | None:
    """Return the seconds that loading takes, or None where no rate is known for its source."""
    return next((checkpoint.bytes / rate.bytes_per_s for rate in rates if rate.source == checkpoint.source), None)


def estimate_convert_s(checkpoint: Checkpoint, rates: Sequence[ReadRate]) -> float | None:
    """Return the seconds that DeepSpeed's converter takes, if it writes as fast as it reads; None: rate unknown."""
    load_s = estimate_load_s(checkpoint, rates)
    return None if load_s is None else _CONVERT_START_S + _CONVERT_PASSES * load_s


_MOST_ENTRIES = 200_000  # of one folder: more is not a checkpoint, and looking at all of it takes minutes


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A plain file."""

    bytes: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as it was at one moment. Links are followed; what is neither file nor folder is left out."""

    path: Path
    files: dict[str, FileSeen] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    problem: str | None = None  # why not all of it was seen

    def file(self, name: str) -> Path:
        return self.path / name


def list_folder(path: Path) -> Folder:
    """Return what lies in a folder; where it cannot be read or holds too much, `problem` says so."""
    try:
        with os.scandir(path) as found:
            entries = list(islice(found, _MOST_ENTRIES + 1))
    except OSError as error:
        return Folder(path, problem=f"{path} cannot be read: {error.strerror}")
    files: dict[str, FileSeen] = {}
    folders: list[tuple[bool, str]] = []
    problems: list[str] = []
    for entry in entries[:_MOST_ENTRIES]:
        try:
            if entry.is_dir():
                folders.append((entry.is_symlink(), entry.name))
            elif stat.S_ISREG((seen := entry.stat()).st_mode):  # opening a pipe would wait for ever
                files[entry.name] = FileSeen(seen.st_size, seen.st_mtime_ns)
        except OSError as error:  # a link that leads nowhere or to itself, or a file that has just gone
            problems.append(f"{entry.path} cannot be read: {error.strerror}")
    problem = "; ".join(sorted(problems)[:3]) or None
    if len(entries) > _MOST_ENTRIES:
        problem = f"{path} holds more than {_MOST_ENTRIES} entries"
    # Links last: where a link leads to a folder beside it, that one's own name counts.
    return Folder(path, files, tuple(name for _, name in sorted(folders)), problem)


_BEGIN, _ENTRY = b"PK\x03\x04", b"PK\x01\x02"
_END = struct.Struct("<4s4H2LH")  # end of central directory, APPNOTE 4.3.16
_LOCATOR = struct.Struct("<4sLQL")  # of the 64-bit end, 4.3.15
_END_64 = struct.Struct("<4sQ2H2L4Q")  # 4.3.14
_TAIL = _END_64.size + _LOCATOR.size + _END.size  # torch writes no comment after them
_MOST_DIRECTORY_BYTES = 64 << 20  # some 100 bytes for each tensor
_MOST_PICKLE_BYTES = 256 << 20


def find_damage(path: Path, size: int) -> str | None:
    """Return what is wrong with a file of that size, or None where its begin, its end and its directory are there."""
    if size == 0:
        return "is empty"
    try:
        with path.open("rb") as file:
            return None if _find_directory(file, size) else "is cut short or no file of torch: its zip has no end"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def read_saved(path: Path, size: int) -> Mapping[Any, Any]:  # Any: what a job saved
    """Return the dictionary that torch.save wrote, its tensors left out, or raise BadInput with a sentence.

    Such a file is a zip whose directory stands at its end: a file that was cut short has lost it.
    """
    try:
        with path.open("rb") as file:
            directory = _find_directory(file, size)
            if not directory or directory[1] > _MOST_DIRECTORY_BYTES:
                raise BadInput(f"{path.name} has no zip directory of a size that torch writes")
            saved = read_state(path.name, _read_pickle(path.name, file))
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, struct.error) as error:
        raise BadInput(f"{path.name} cannot be read: {error}") from None
    if not isinstance(saved, dict):
        raise BadInput(f"{path.name} does not hold a dictionary")
    return saved


def _find_directory(file: BinaryIO, size: int) -> tuple[int, int] | None:
    """Return where the directory of a zip begins and how long it is; None where it is not where it should be."""
    if size < _END.size or file.read(4) != _BEGIN:
        return None
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    if len(tail) < _END.size:
        return None
    mark, *_, length, begin, _ = _END.unpack(tail[-_END.size :])
    if mark != b"PK\x05\x06":
        return None
    if 0xFFFFFFFF in (length, begin):  # both stand in the 64-bit end
        if len(tail) < _TAIL or tail[:4] != b"PK\x06\x06":
            return None
        *_, length, begin = _END_64.unpack(tail[: _END_64.size])
    file.seek(begin if begin + length <= size else size)
    return (begin, length) if file.read(4) == _ENTRY else None


def _read_pickle(name: str, file: BinaryIO) -> bytes:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.filename.endswith("/data.pkl"):
                # torch never compresses, and what is compressed may unfold to anything.
                if member.compress_type != zipfile.ZIP_STORED or member.file_size > _MOST_PICKLE_BYTES:
                    break
                return archive.read(member)
    raise BadInput(f"{name} has no data.pkl as torch writes it")


_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a checkpoint is whole, how that is known, and who can load it."""

    state: State
    reason: str
    layout: SavedLayout = field(default_factory=SavedLayout)
    step: int | None = None
    moves: Moves = "any"
    moves_because: str = ""
    convert_flags: tuple[str, ...] = ()
    experts: int | None = None


def incomplete(reason: str, **known: object) -> Finding:
    """Return the finding that something is missing or broken."""
    return Finding("incomplete", reason, **known)  # type: ignore[arg-type]  # fields of Finding, by name


def name_some(names: Iterable[str]) -> str:
    """Return the first few names and how many more there are."""
    every = sorted(names)
    more = f" and {len(every) - _MOST_NAMED} more" if len(every) > _MOST_NAMED else ""
    return ", ".join(every[:_MOST_NAMED]) + more


def find_damaged(folder: Folder, names: Iterable[str]) -> str | None:
    """Return a sentence about the files of torch among those named that are not whole, or None."""
    damages = {
        name: damage for name in sorted(names) if (damage := find_damage(folder.file(name), folder.files[name].bytes))
    }
    if not damages:
        return None
    first = next(iter(damages))
    more = f"; so are {len(damages) - 1} more" if len(damages) > 1 else ""
    return f"{first} {damages[first]}{more}"


def whole(value: object) -> int | None:
    """Return a number that a job saved where it is a positive whole one; it may have saved anything."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


_NAMES = ("latest", "latest_universal", "latest_checkpointed_iteration.txt")
_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pointer:
    """A file that names the newest checkpoint."""

    file: Path
    target: Path


def find_pointers(folder: Folder) -> list[Pointer]:
    """Return the pointers in a folder; those that cannot be read name nothing."""
    found = []
    for name in _NAMES:
        text = _read(folder, name) if name in folder.files else None
        if text:
            is_number = name.endswith(".txt") and text.isdecimal()  # Megatron writes only the number
            found.append(Pointer(folder.file(name), folder.path / (f"iter_{int(text):07d}" if is_number else text)))
    return found


def explain_pointers(pointers: Iterable[Pointer], checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Return a sentence for each pointer that names a checkpoint which cannot be restarted from."""
    by_path = {each.path: each for each in checkpoints}
    message = []
    for pointer in pointers:
        named = by_path.get(str(pointer.target))
        if named is None:
            message.append(f"{pointer.file.name} names {pointer.target.name}, of which there is no checkpoint here")
        elif named.state != "complete":
            message.append(f"{pointer.file.name} names {pointer.target.name}, which is {named.state}: {named.reason}")
    return message


def _read(folder: Folder, name: str) -> str | None:
    if folder.files[name].bytes > _MOST_BYTES:
        return None
    try:
        text = folder.file(name).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return text if text.isprintable() and "/" not in text else None
