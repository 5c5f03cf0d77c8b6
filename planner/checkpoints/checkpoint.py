"""What is known of a job's checkpoints: read from a directory, or told as JSON where the planner sees no files."""

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lockstep.clock import NS_PER_S
from lockstep.verdict import Frozen
from planner.checkpoints.torch_file import find_damage

Format = Literal["dcp", "torch_dist", "ds_zero", "universal"]
# Unreadable: all of it is there, and it cannot be loaded.
State = Literal["complete", "writing", "incomplete", "unverified", "unreadable"]
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
    step: int | None = Field(None, ge=0, description="training step, from its state or its name; None: unknown")
    layout: SavedLayout = SavedLayout()
    state: State
    reason: str = Field(description="one sentence: how it was verified, or what is wrong")
    bytes: int = Field(ge=0)
    files: int = Field(ge=0)
    saved_ns: int = Field(ge=0, description="when its newest file changed")
    source: Source = "remote"
    moves: Moves = Field("never", description="which other layouts can load it")
    moves_because: str = Field("", description="one sentence about `moves`")
    convert_flags: tuple[str, ...] = Field((), description="flags that DeepSpeed's converter needs besides folders")
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
    """A plain file; one that is equal to it later has not changed."""

    bytes: int
    changed_ns: int
    device: int
    inode: int

    @classmethod
    def of(cls, about: os.stat_result) -> "FileSeen":
        return cls(about.st_size, about.st_mtime_ns, about.st_dev, about.st_ino)


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
                files[entry.name] = FileSeen.of(seen)
        except OSError as error:  # a link that leads nowhere or to itself, or a file that has just gone
            problems.append(f"{entry.path} cannot be read: {error.strerror}")
    problem = "; ".join(sorted(problems)[:3]) or None
    if len(entries) > _MOST_ENTRIES:
        problem = f"{path} holds more than {_MOST_ENTRIES} entries"
    # Links last: where a link leads to a folder beside it, that one's own name counts.
    return Folder(path, files, tuple(name for _, name in sorted(folders)), problem)


_MOST_NAMED = 3
Pieces = Sequence[int]  # offset and length of the first, of the second, and so on


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
    pieces: Mapping[str, Pieces] = field(default_factory=dict)  # where in files records of torch lie, by name


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
