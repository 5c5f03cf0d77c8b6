"""What the reader of one format found out about one checkpoint, before age and size are added to it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from planner.recovery.checkpoints.checkpoint import Layout, Moves, State
from planner.recovery.checkpoints.folder import Folder
from planner.recovery.checkpoints.torch_file import find_damage

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a checkpoint is whole, how that is known, and who can load it."""

    state: State
    reason: str
    layout: Layout = field(default_factory=Layout)
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
