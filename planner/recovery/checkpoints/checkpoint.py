"""What is known of a job's checkpoints: read from a directory, or told as JSON where the planner sees no files."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from lockstep.clock import NS_PER_S
from lockstep.verdict import Frozen

Format = Literal["dcp", "torch_dist", "ds_zero", "universal"]
State = Literal["complete", "writing", "incomplete", "unverified"]
# Where it lies, nearest first: memory of a rank with the same state, of this host, a disk here, a shared store.
Source = Literal["peer", "memory", "local", "remote"]
# Which layouts can load it: any, those with the same tp, pp and ep, any after a conversion, or only its own.
Moves = Literal["any", "dp", "convert", "never"]

_DIMENSIONS = ("tp", "pp", "dp", "cp", "ep")


class Layout(Frozen):
    """How a job is cut into ranks; None where nothing says it."""

    tp: int | None = Field(None, ge=1, description="ranks that share a layer's tensors")
    pp: int | None = Field(None, ge=1, description="pipeline stages")
    dp: int | None = Field(None, ge=1, description="replicas")
    cp: int | None = Field(None, ge=1, description="ranks that share a sequence")
    ep: int | None = Field(None, ge=1, description="ranks that share the experts")
    world: int | None = Field(None, ge=1, description="ranks; of torch DCP, those that wrote, which may be fewer")

    @classmethod
    def of(cls, target: Mapping[str, int]) -> "Layout":
        """Return the layout in a decision's target, which also holds batch sizes."""
        return cls(**{name: target[name] for name in (*_DIMENSIONS, "world") if name in target})

    def __str__(self) -> str:
        said = [f"{name}{size}" for name in _DIMENSIONS if (size := getattr(self, name))]
        return " ".join(said) or (f"{self.world} ranks" if self.world else "unknown")


class Checkpoint(Frozen):
    """One checkpoint. Only one in state `complete` may be restarted from."""

    path: str
    format: Format
    step: int | None = Field(None, ge=0, description="training step, from its state or its name; None: not told")
    layout: Layout = Layout()
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
