"""The state of a replica, and where it is found when no peer has it: in the host's memory, else on disk."""

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.training.agreement import Source

_KEPT = 2  # the one before stays until the next is whole
State = Mapping[str, Any]  # Any: what torch's state_dict holds


def check_model(model: nn.Module) -> None:
    """Raise BadInput for a module that talks to other replicas by itself, or holds only a part of its parameters."""
    from torch.distributed.tensor import DTensor  # takes half a second, and is only asked for here

    for name, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise BadInput(
                f"{name or 'the model'} is wrapped in DistributedDataParallel, whose reduction in every backward "
                "cannot outlive a replica: hand over its .module, and let lockstep.training reduce"
            )
        if type(module).__name__ == "FullyShardedDataParallel":
            raise BadInput(f"{name or 'the model'} is wrapped in FSDP: {_SHARDED}")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise BadInput(f"parameter {name} is a DTensor, as fully_shard (FSDP2) makes them: {_SHARDED}")


_SHARDED = "a lost rank takes its shard with it, so no replica is left with the whole state; use a checkpoint"


def take_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Return what a replica that joins needs to go on from here."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def adopt_state(state: State, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Go on from a state."""
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def pack(state: State) -> Tensor:
    """Return a state as bytes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpack(packed: Tensor) -> State:
    """Return the state that was packed."""
    return _load(io.BytesIO(packed.numpy().tobytes()))


def _load(file: io.BytesIO | Path) -> State:
    loaded: State = torch.load(file, map_location="cpu", weights_only=True)
    return loaded


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state as it was when a step began."""

    source: Source
    step: int
    state: State


class Snapshots:
    """The last states of a replica, in folders that outlive its process: on tmpfs its death, on a disk its host's."""

    def __init__(self, memory: Path | None, disk: Path | None) -> None:
        folders: tuple[tuple[Source, Path | None], ...] = (("memory", memory), ("disk", disk))
        self._folders = [(source, path) for source, path in folders if path is not None]

    def save(self, source: Source, step: int, state: State) -> None:
        """Keep a state, whole or not at all."""
        for folder in (path for each, path in self._folders if each == source):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = folder / f"{uuid4().hex}.draft"
            torch.save(state, draft)
            os.replace(draft, folder / f"step-{step:012}.pt")
            for old in sorted(folder.glob("step-*.pt"))[:-_KEPT]:
                old.unlink(missing_ok=True)

    def newest(self) -> Snapshot | None:
        """Return the newest that can be read, the nearer one of two alike."""
        return next(self.readable(), None)

    def readable(self) -> Iterator[Snapshot]:
        """Yield those that can be read, the newest first."""
        files = [(int(file.stem[5:]), -number, file) for number, (_, folder) in enumerate(self._folders)
                 for file in folder.glob("step-*.pt")]  # fmt: skip
        for step, number, file in sorted(files, reverse=True):
            try:
                found = Snapshot(self._folders[-number][0], step, _load(file))
            except Exception:  # noqa: BLE001, S112  # torn, zero-filled, or gone: the one before is asked
                continue
            yield found
