"""Checkpoints of the sharded model in torch's distributed format: complete or not there, loaded on any mesh.

`step-12` holds the state after step 12. It is written as `step-12.part` and gets its name when every rank's file and,
last of all, `.metadata` are there.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import BadInput

if TYPE_CHECKING:  # torch is heavy, and who only asks for the newest checkpoint does not need it
    from tests.testbed.training.sharded import Sharded

RESUME_FROM = "LOCKSTEP_RESUME_FROM"
_NAME = re.compile(r"step-(\d+)")


def find_checkpoint(folder: Path, env: Mapping[str, str]) -> Path | None:
    """Return the checkpoint that the environment names, or the newest complete one; None: begin anew."""
    named = env.get(RESUME_FROM)
    if not named:
        return find_newest(folder)
    if not _is_complete(Path(named)):
        raise BadInput(f"{RESUME_FROM} names {named}, which is not a complete checkpoint")
    return Path(named)


def find_newest(folder: Path) -> Path | None:
    """Return the complete checkpoint of the highest step."""
    named = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step-*") if _is_complete(path))
    complete = [(int(name[1]), path) for name, path in named if name]
    return max(complete)[1] if complete else None


def save(folder: Path, step: int, sharded: "Sharded") -> None:
    """Write a checkpoint; all ranks call this together."""
    from torch import distributed
    from torch.distributed.checkpoint import state_dict_saver

    part, whole = folder / f"step-{step}.part", folder / f"step-{step}"
    state_dict_saver.save(_state(sharded, step), checkpoint_id=part)
    if distributed.get_rank() == 0:
        shutil.rmtree(whole, ignore_errors=True)  # of a run that went on from an older checkpoint
        part.rename(whole)
    distributed.barrier()


def load(path: Path, sharded: "Sharded") -> int:
    """Take over the state of a checkpoint, saved on whatever mesh; return its step."""
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.state_dict import set_state_dict

    state = _state(sharded, 0)
    state_dict_loader.load(state, checkpoint_id=path)
    set_state_dict(
        sharded.model, sharded.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return int(state["step"])


def _is_complete(path: Path) -> bool:
    return (path / ".metadata").is_file()


def _state(sharded: "Sharded", step: int) -> dict[str, Any]:  # nested dicts of tensors and options, as torch wants
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(sharded.model, sharded.optimizer)
    return {"model": model, "optimizer": optimizer, "step": step}
